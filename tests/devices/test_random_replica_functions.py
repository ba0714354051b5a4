"""Random replica functions on every number of rows: each replica computes what NumPy computes of its rows, and sums are of these.

The functions add and multiply rows, variables, constants and numbers of rows, choose by the number of rows, exchange, and assign to
variables of every aggregation.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import replicant
from replicant.errors import DivergenceError

RULES = ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA")
FIRST = {"NONE": 2.0, "SUM": 3.0, "MEAN": 1.0, "ONLY_FIRST_REPLICA": 4.0}  # values of the variables, by their aggregation


@dataclasses.dataclass(frozen=True)
class Node:
    """kind "number", "array", "rows", "ones", "sum", "read", "+", "*", "if", "all_reduce"."""

    kind: str
    detail: Any = None
    parts: tuple["Node", ...] = ()

    def __iter__(self) -> Iterator["Node"]:
        """Itself and all inside of it but what is exchanged, which all replicas have alike."""
        yield self
        for part in () if self.kind == "all_reduce" else self.parts:
            yield from part


leaf = st.one_of(
    st.builds(Node, st.sampled_from(["number", "array"]), st.integers(0, 3)),
    st.builds(Node, st.sampled_from(["rows", "ones", "sum"])),
    st.builds(Node, st.just("read"), st.sampled_from(RULES)),
)


def larger(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    pairs = st.tuples(inner, inner)
    return st.builds(Node, st.sampled_from("+*"), st.none(), pairs) | st.builds(Node, st.just("if"), st.integers(0, 3), pairs)


local = st.recursive(leaf, larger, max_leaves=4)
exchanged = st.builds(Node, st.just("all_reduce"), st.sampled_from(["SUM", "MEAN"]), st.tuples(local))
expression = local | exchanged | st.builds(Node, st.sampled_from("+*"), st.none(), st.tuples(exchanged, local))
assignment = st.tuples(st.sampled_from(("NONE", *RULES)), st.sampled_from(["assign", "assign_add"]), expression)


def computed(node: Node, x: Any, variables: dict[str, replicant.Variable]) -> Any:
    """The node's value in a replica function."""
    parts = [] if node.kind == "if" else [computed(part, x, variables) for part in node.parts]
    match node.kind:
        case "number":
            return node.detail
        case "array":
            return jnp.asarray(float(node.detail))
        case "rows":
            return len(x)
        case "ones":
            return jnp.ones(len(x)).sum()
        case "sum":
            return jnp.sum(x)
        case "read":
            return variables[node.detail].value()
        case "+":
            return parts[0] + parts[1]
        case "*":
            return parts[0] * parts[1]
        case "if":
            return computed(node.parts[len(x) <= node.detail], x, variables)
        case _:
            context = replicant.get_replica_context()
            assert context is not None
            return context.all_reduce(node.detail, jnp.asarray(parts[0], jnp.float32))


def expected(node: Node, rows: Sequence[np.ndarray], values: dict[str, float]) -> list[float]:
    """The node's value on every replica."""
    parts = [expected(part, rows, values) for part in node.parts]
    match node.kind:
        case "number" | "array":
            return [float(node.detail)] * len(rows)
        case "rows" | "ones":
            return [float(len(x)) for x in rows]
        case "sum":
            return [float(np.sum(x)) for x in rows]
        case "read":
            return [values[node.detail]] * len(rows)
        case "+":
            return [a + b for a, b in zip(*parts, strict=True)]
        case "*":
            return [a * b for a, b in zip(*parts, strict=True)]
        case "if":
            return [a if len(x) > node.detail else b for a, b, x in zip(*parts, rows, strict=True)]
        case _:
            return [sum(parts[0]) / (len(rows) if node.detail == "MEAN" else 1)] * len(rows)


def assigned(rule: str, how: str, operands: list[float], old: float) -> float:
    new = {"SUM": sum(operands), "MEAN": sum(operands) / len(operands)}.get(rule, operands[0])
    return old + new if how == "assign_add" else new


@settings(max_examples=40)
@given(
    num_replicas=st.integers(1, 3),
    extra=st.integers(0, 7),
    compiled=st.booleans(),
    assignments=st.lists(assignment, min_size=1, max_size=2),
    result=expression,
)
@pytest.mark.long
def test_replicas_compute_what_numpy_computes(num_replicas, extra, compiled, assignments, result) -> None:
    num_rows = extra % (2 * num_replicas + 2)
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    with strategy.scope():
        variables = {rule: replicant.Variable(FIRST[rule], aggregation=rule) for rule in RULES}
    data = np.arange(1.0, num_rows + 1, dtype=np.float32)
    (batch,) = strategy.experimental_distribute_dataset([data])
    size = math.ceil(num_rows / num_replicas)
    rows = [data[r * size : (r + 1) * size] for r in range(num_replicas)]

    values, must_agree, must_differ = dict(FIRST), True, False
    for rule, how, node in assignments:
        operands = expected(node, rows, values)
        if rule == "NONE":
            must_differ |= len(set(operands)) > 1
            kinds = {part.kind for part in node}
            equal_rows = len({len(x) for x in rows}) == 1
            must_agree &= num_replicas == 1 or not kinds & ({"sum"} if equal_rows else {"sum", "rows", "ones", "if"})
        values[rule] = assigned(rule, how, operands, values[rule])

    def replica(x: Any) -> Any:
        for rule, how, node in assignments:
            getattr(variables[rule], how)(jnp.asarray(computed(node, x, variables), jnp.float32))
        return jnp.asarray(computed(result, x, variables), jnp.float32) * jnp.ones(())

    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(x,)))

    try:
        total = (replicant.function(step) if compiled else step)(batch)
    except DivergenceError:
        event("differs")
        assert not must_agree
        values = FIRST
    else:
        event("ragged" if len({len(x) for x in rows}) > 1 else "equal")
        assert not must_differ
        assert float(total) == pytest.approx(sum(expected(result, rows, values)), rel=1e-5)
    assert {rule: float(v.numpy()) for rule, v in variables.items()} == pytest.approx(values, rel=1e-5)
