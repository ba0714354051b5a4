"""Random losses with exchanges, on every number of rows: their values and gradients are those of one device.

One device computes each replica's part from its rows, one after the other, and an exchange from the parts of all.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import replicant

Parts: TypeAlias = list[Any]  # one value per replica


@dataclasses.dataclass(frozen=True)
class Node:
    """A vector of three numbers, which each replica computes from its rows and the weights, or from such vectors."""

    kind: str
    parts: tuple["Node", ...] = ()


leaf = st.builds(Node, st.sampled_from(["rows", "weights", "gathered"]))
ONE = ("SUM", "MEAN", "psum", "pmean", "pmax", "all_gather", "tanh", "stop", "jit", "replica")


def larger(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.builds(Node, st.sampled_from(ONE), st.tuples(inner)) | st.builds(Node, st.sampled_from("+*"), st.tuples(inner, inner))


expression = st.recursive(leaf, larger, max_leaves=5)


def in_replica(node: Node, w: Any, x: Any) -> Any:
    """The node's value in a replica function."""
    context: Any = replicant.get_replica_context()
    parts = [in_replica(part, w, x) for part in node.parts]
    match node.kind:
        case "rows":
            return (x * w).sum(0)
        case "weights":
            return w
        case "gathered":
            return jnp.sin(context.all_gather(x * w, axis=0)).sum(0)
        case "SUM" | "MEAN":
            return context.all_reduce(node.kind, parts[0])
        case "psum" | "pmean":
            return getattr(lax, node.kind)(parts[0], "replica")
        case "pmax":  # has no gradient in JAX
            return lax.pmax(lax.stop_gradient(parts[0]), "replica")
        case "all_gather":
            return (lax.all_gather(parts[0], "replica") ** 2).sum(0)
        case "replica":
            return parts[0] * (1 + lax.axis_index("replica"))
        case _:
            return LOCAL[node.kind](*parts)


LOCAL: dict[str, Callable[..., Any]] = {
    "tanh": jnp.tanh,
    "stop": lax.stop_gradient,
    "jit": jax.jit(jnp.cos),
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b / 4,
}


def on_one_device(node: Node, weights: Parts, rows: Sequence[Any]) -> Parts:
    """The node's value for each replica."""
    n = len(rows)
    operands = [on_one_device(part, weights, rows) for part in node.parts]
    match node.kind:
        case "rows":
            return [(x * w).sum(0) for w, x in zip(weights, rows, strict=True)]
        case "weights":
            return weights
        case "gathered":
            return [sum(jnp.sin(x * w).sum(0) for w, x in zip(weights, rows, strict=True))] * n
        case "SUM" | "psum":
            return [sum(operands[0])] * n
        case "MEAN" | "pmean":
            return [sum(operands[0]) / n] * n
        case "pmax":
            return [lax.stop_gradient(jnp.stack(operands[0]).max(0))] * n
        case "all_gather":
            return [sum(part**2 for part in operands[0])] * n
        case "replica":
            return [part * (1 + r) for r, part in enumerate(operands[0])]
        case _:
            return [LOCAL[node.kind](*each) for each in zip(*operands, strict=True)]


def check(num_replicas: int, num_rows: int, node: Node, seed: int, *, how: str) -> None:
    random = np.random.default_rng(seed)
    data, w = random.normal(size=(num_rows, 3)).astype(np.float32), random.normal(size=3).astype(np.float32)
    size = math.ceil(num_rows / num_replicas)
    rows = [data[r * size : (r + 1) * size] for r in range(num_replicas)]
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    (batch,) = strategy.experimental_distribute_dataset([data])

    def step(x: Any) -> Any:
        if how == "jax":
            return jax.value_and_grad(lambda w: in_replica(node, w, x).sum())(jnp.asarray(w))
        weights = jnp.asarray(w)
        with replicant.GradientTape() as tape:
            tape.watch(weights)
            loss = in_replica(node, weights, x).sum()
        return loss, tape.gradient(loss, weights, unconnected_gradients="zero")

    losses, grads = (strategy.experimental_local_results(found) for found in strategy.run(step, args=(batch,)))
    parts = [jnp.asarray(w)] * num_replicas
    expected = [part.sum() for part in on_one_device(node, parts, rows)]
    np.testing.assert_allclose(losses, expected, rtol=1e-3, atol=1e-3)
    expected = jax.grad(lambda parts: sum(part.sum() for part in on_one_device(node, parts, rows)))(parts)
    np.testing.assert_allclose(np.broadcast_to(grads, (num_replicas, 3)), expected, rtol=1e-3, atol=1e-3)


cases = given(
    num_replicas=st.integers(1, 3),
    num_rows=st.integers(1, 7),
    node=expression,
    seed=st.integers(0, 100),
    how=st.sampled_from(["tape", "jax"]),
)


@pytest.mark.long
@pytest.mark.both_ways
@settings(max_examples=200)
@cases
def test_exchanges_and_gradients_of_random_losses(num_replicas, num_rows, node, seed, how):
    check(num_replicas, num_rows, node, seed, how=how)


@settings(max_examples=6)
@cases
def test_exchanges_and_gradients_of_a_few_random_losses(num_replicas, num_rows, node, seed, how):
    check(num_replicas, num_rows, node, seed, how=how)
