"""Which equations a gradient needs, and the order in which they are evaluated."""

import jax
import jax.numpy as jnp
import pytest

from replicant.errors import GradientError
from replicant.tracing.gradients._gradient_paths import GradientPath, connected_sources, find_paths, in_order
from replicant.tracing.jaxprs._marks import gradient_p, own_p, region_p


def gradient(call: int, target, *sources, tape: int = 0, owners=None, absent=()):
    owners = tuple(range(len(sources))) if owners is None else owners
    one = {"num_targets": 1, "rows": None, "at_once": True, "gathered": ()}
    return gradient_p.bind(target, jnp.ones(()), *sources, tape=tape, call=call, owners=owners, absent=absent, **one)


def names(entry) -> list[str]:
    return [eqn.primitive.name for eqn in entry.eqns] if isinstance(entry, GradientPath) else [entry.primitive.name]


def one_tape(x, w):
    region_p.bind(tape=0, opens=True)
    y = jnp.sin(x) * w
    z = jnp.tanh(y)
    metric = jnp.exp(y)
    region_p.bind(tape=0, opens=False)
    outside = jnp.cos(z)
    (g,) = gradient(0, z, w)
    return w - g, metric, outside


def test_a_path_holds_what_lies_between_sources_and_target() -> None:
    jaxpr = jax.make_jaxpr(one_tape)(1.0, 2.0).jaxpr
    (path,) = find_paths(jaxpr).values()
    assert names(path) == ["mul", "tanh"]
    assert path.connected == (True,)
    assert [names(entry) for entry in in_order(jaxpr, find_paths(jaxpr))] == [
        ["sin"],
        ["mul", "tanh"],
        ["exp"],
        ["cos"],
        ["replicant_gradient"],
        ["sub"],
    ]


def two_losses(x, v, w):
    region_p.bind(tape=0, opens=True)
    region_p.bind(tape=1, opens=True)
    fake = v * x
    shared = jnp.tanh(w * fake)
    first, second = jnp.sin(shared), jnp.cos(shared)
    (a,) = gradient(0, first, v)
    (b,) = gradient(1, second, w, tape=1)
    return a, b


def test_overlapping_paths_are_evaluated_once_each() -> None:
    jaxpr = jax.make_jaxpr(two_losses)(1.0, 2.0, 3.0).jaxpr
    paths = find_paths(jaxpr)
    assert [names(path) for path in paths.values()] == [["mul", "mul", "tanh", "sin"], ["mul", "tanh", "cos"]]
    entries = in_order(jaxpr, paths)
    assert (
        sum(isinstance(entry, GradientPath) for entry in entries) == 1
    )  # the later one; the other is evaluated for its gradient alone
    assert sum((names(entry) for entry in entries), []).count("tanh") == 1


def crossing(x, v, w):
    """Two paths that feed each other: neither can be evaluated as a whole before the other."""
    region_p.bind(tape=0, opens=True)
    region_p.bind(tape=1, opens=True)
    a1 = jnp.sin(v)
    b1 = jnp.cos(w)
    a2 = a1 * jax.lax.stop_gradient(b1)
    b2 = b1 * jax.lax.stop_gradient(a1)
    (a,) = gradient(0, a2, v)
    (b,) = gradient(1, b2, w, tape=1)
    return a, b


def test_paths_that_feed_each_other() -> None:
    jaxpr = jax.make_jaxpr(crossing)(1.0, 2.0, 3.0).jaxpr
    entries = in_order(jaxpr, find_paths(jaxpr))
    order = sum((names(entry) for entry in entries), [])
    assert sorted(order) == sorted(e.primitive.name for e in jaxpr.eqns if e.primitive is not region_p)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x, w: gradient(0, x * 2, x, w), {0: {0: True, 1: False}}),
        (lambda x, w: gradient(0, x * w, x, w), {0: {0: True, 1: True}}),
        (lambda x, w: gradient(3, jnp.ones(()), x, w), {3: {0: False, 1: False}}),
        (lambda x, w: gradient(0, x, x), {0: {0: True}}),
        (lambda x, w: gradient(0, own_p.bind(x) * w, x, w), {0: {0: False, 1: True}}),
        (lambda x, w: (gradient(0, x, x), gradient(1, w, x, w)), {0: {0: True}, 1: {0: False, 1: True}}),
        (lambda x, w: gradient(0, x * 2, x, w, owners=(2, 2), absent=(1,)), {0: {1: False, 2: True}}),
    ],
)
def test_connected_sources(fn, expected) -> None:
    assert connected_sources(jax.make_jaxpr(fn)(1.0, 2.0).jaxpr) == expected


def test_a_scalar_constant_has_no_name() -> None:
    jaxpr = jax.make_jaxpr(lambda x: gradient(0, x * 3.0, jnp.float32(3.0)))(1.0).jaxpr
    message = r"the scalar constant 3\.0, .* the tape does not watch\. Call `tape\.watch\(x\)` before you compute anything from it"
    with pytest.raises(GradientError, match=message):
        find_paths(jaxpr)
