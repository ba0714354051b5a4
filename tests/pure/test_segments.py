"""Where a long program is cut into segments, and which of them are alike."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from replicant.tracing.segments._identical_segments import Alike
from replicant.tracing.segments._segments import cut


def layers(count: int, width: int = 4) -> Any:
    """Trace a step of gradient descent of some layers."""

    def loss(weights: Any, x: Any) -> Any:
        for kernel, bias in weights:
            x = jnp.maximum(x @ kernel + bias, 0)
        return jnp.sum(x**2)

    def step(weights: Any, x: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))

    weights = [(jnp.ones((width, width)), jnp.ones(width))] * count
    return jax.make_jaxpr(step)(weights, jnp.ones((8, width))).jaxpr


def keys(jaxpr: Any, least: int = 5, most: int = 40) -> list[Any]:
    alike = Alike()
    return [alike.key(segment) for segment in cut(jaxpr, least, most)]


def of(fn: Any, *args: Any) -> Any:
    """The key of a function as one segment."""
    (key,) = keys(jax.make_jaxpr(fn)(*args).jaxpr)
    return key


def test_segments_are_the_whole_program_in_order() -> None:
    jaxpr = layers(30)
    segments = cut(jaxpr, 5, 40)
    eqns = [eqn for segment in segments for eqn in segment.eqns]
    assert all(5 <= len(segment.eqns) <= 40 for segment in segments[:-1])
    needed = {id(eqn) for eqn in eqns}
    assert eqns == [eqn for eqn in jaxpr.eqns if id(eqn) in needed]
    known = {*jaxpr.invars, *jaxpr.constvars}
    for segment in segments:
        assert known.issuperset(segment.inputs)
        known.update(segment.outputs)
    assert known.issuperset(v for v in jaxpr.outvars)


def test_four_times_as_many_layers_have_no_more_different_segments() -> None:
    few, many = keys(layers(50)), keys(layers(200))
    assert len(many) > 3 * len(few)
    assert len(set(many)) <= len(set(few)) + 1
    assert len(set(many)) < 15


def test_what_no_result_needs_is_left_out() -> None:
    def fn(x: Any) -> Any:
        jnp.sin(x)
        return jnp.cos(x)

    jaxpr = jax.make_jaxpr(fn)(1.0).jaxpr
    assert [eqn.primitive.name for segment in cut(jaxpr, 5, 40) for eqn in segment.eqns] == ["cos"]


def test_nothing_to_compute_has_no_segments() -> None:
    assert cut(jax.make_jaxpr(lambda x: x)(1.0).jaxpr, 5, 40) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(lambda x: x + 0.0, lambda x: x + -0.0, id="signs of zero"),
        pytest.param(lambda x: x * 2.0, lambda x: x * 3.0, id="numbers"),
        pytest.param(lambda x: x[0] - x[1], lambda x: x[1] - x[0], id="order of operands"),
        pytest.param(lambda x: jnp.sum(x, 0), lambda x: jnp.sum(x, 1), id="parameters"),
        pytest.param(jax.jit(jnp.sin), jax.jit(jnp.cos), id="inner programs"),
        pytest.param(jax.jit(lambda y: y + 1.0), jax.jit(lambda y: y + 2.0), id="inner numbers"),
        pytest.param(lambda x: (jnp.sin(x), jnp.cos(x))[0], lambda x: (jnp.sin(x), jnp.cos(x)), id="results"),
        pytest.param(
            lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
            lambda x: jax.lax.cond(x[0, 0] > 0, jnp.cos, jnp.sin, x),
            id="branches",
        ),
    ],
)
def test_segments_that_differ_are_not_alike(one: Any, other: Any) -> None:
    x = jnp.ones((4, 4))
    assert of(one, x) != of(other, x)


def test_shapes_dtypes_and_weak_types_are_told_apart() -> None:
    given = [jnp.ones(3), jnp.ones(4), jnp.ones(3, jnp.bfloat16), 1.0, jnp.float32(1)]
    assert len({of(jnp.sin, x) for x in given}) == len(given)


def test_the_same_computation_is_alike_wherever_it_was_traced() -> None:
    def twice(fn: Any) -> set[Any]:
        return {of(lambda x: fn(x) * 2.0, jnp.ones(4)) for _ in range(2)}

    assert len(twice(jnp.sin)) == 1
    assert len(twice(jax.nn.relu)) == 1  # a custom_jvp in a jit
    assert len(twice(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * 2.0, x))) == 1
