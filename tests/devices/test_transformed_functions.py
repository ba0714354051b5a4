"""Variables in functions under jax.jit, jax.checkpoint, jax.vmap, jax.grad and jax.custom_vjp."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import GradientTape
from replicant.errors import ContextError, VariableError

from .test_control_flow import everywhere

pytestmark = pytest.mark.both_ways


def test_under_jit() -> None:
    v, w = replicant.Variable(1.0), replicant.Variable(0.0)

    @jax.jit
    def add(x: Any) -> Any:
        v.assign_add(x)
        return {"now": v.value(), "twice": 2 * v}

    def fn() -> Any:
        first = add(1.0)
        second = add(1.0)  # JAX knows the shapes, and the value has changed
        w.assign(v * 10.0)
        return first, second

    assert everywhere(fn, [v, w]) == ([2.0, 4.0, 3.0, 6.0], [3.0, 30.0])


def test_what_jit_keeps_is_not_read_twice() -> None:
    v = replicant.Variable(1.0)

    @jax.jit
    def read() -> Any:
        return v * 1.0

    def fn() -> Any:
        first = read()
        v.assign(5.0)
        second = read()
        inside = jax.lax.scan(lambda c, _: (c, (v.assign_add(1.0), read())[1]), 0, length=2)[1]
        return first, second, inside, read()

    assert everywhere(fn, [v]) == ([1.0, 5.0, [6.0, 7.0], 7.0], [7.0])


def test_a_jitted_function_keeps_what_it_was() -> None:
    def f(x: Any, n: int) -> Any:
        return x * n

    jitted = jax.jit(f, static_argnames="n")
    assert float(jitted(2.0, n=3)) == 6.0
    assert jitted.__name__ == "f"
    assert "jit_f" in jitted.lower(2.0, 3).as_text()
    assert jitted.__wrapped__(2.0, 3) == 6.0


def test_under_checkpoint() -> None:
    v, w = replicant.Variable(2.0), replicant.Variable(3.0)

    def fn() -> Any:
        @jax.checkpoint
        def inner(x: Any) -> Any:
            v.assign_add(1.0)
            return jnp.sin(x * w) * v

        with GradientTape() as tape:
            y = inner(jnp.float32(0.0))
        return y, tape.gradient(y, [w, v]), jax.grad(inner)(jnp.float32(0.0))

    found, state = everywhere(fn, [v, w])
    assert state == [4.0, 3.0]
    np.testing.assert_allclose(found, [0.0, 0.0, 0.0, 12.0], atol=1e-6)


def test_under_grad() -> None:
    seen, w = replicant.Variable(0.0), replicant.Variable(3.0)

    def fn() -> Any:
        def loss(x: Any) -> Any:
            seen.assign_add(x)
            return x * x * w + seen

        def with_more(x: Any) -> Any:
            return loss(x), x + 1

        return jax.grad(loss)(2.0), jax.value_and_grad(with_more, has_aux=True)(1.0)

    # No gradient passes through the assignment.
    assert everywhere(fn, [seen, w]) == ([12.0, 6.0, 2.0, 6.0], [3.0, 3.0])


def test_batch_statistics_under_value_and_grad() -> None:
    layer = keras.layers.BatchNormalization(momentum=0.5)
    layer.build((None, 1))
    x = jnp.asarray([[1.0], [3.0]])

    def fn() -> Any:
        return jax.grad(lambda x: layer(x, training=True).sum() + jnp.sum(x))(x)

    assert everywhere(fn, [layer.moving_mean])[1] == [[1.0]]


def test_under_vmap() -> None:
    count, v = replicant.Variable(0), replicant.Variable(0.0)

    def fn() -> Any:
        def each(x: Any) -> Any:
            count.assign_add(1)
            return x * count

        return keras.ops.vectorized_map(each, jnp.arange(3)), jax.vmap(each, in_axes=1, out_axes=1)(jnp.ones((2, 3), int))

    assert everywhere(fn, [count]) == ([[0, 1, 2], [[2, 2, 2], [2, 2, 2]]], [2])

    with pytest.raises(VariableError, match=r"under jax\.vmap assigns 'Variable', and a value .*differs between the elements"):
        replicant.function(lambda: jax.vmap(v.assign)(jnp.arange(3.0)))()

    def mean() -> Any:
        v.assign(jnp.mean(jax.vmap(lambda x: 2 * x)(jnp.arange(3.0))))  # what the message says

    replicant.function(mean)()
    assert float(v) == 2.0


def test_custom_vjp() -> None:
    """The rules read the values that the variables have where the function is called, in later calls too."""
    scale, count = replicant.Variable(2.0), replicant.Variable(0)

    @jax.custom_vjp
    def scaled(x: Any) -> Any:
        count.assign_add(1)
        return x * scale

    def forward(x: Any) -> Any:
        return scaled.fun(x), (scale.value(), x)

    def backward(residuals: Any, upstream: Any) -> Any:
        kept, _ = residuals
        return (upstream * kept * 100.0 + scale,)

    scaled.defvjp(forward, backward)
    x = jnp.float32(3.0)

    def fn() -> Any:
        with GradientTape() as tape:
            y = scaled(x * 1.0)
            scale.assign_add(1.0)
            z = scaled(y)
        return y, z, tape.gradient(z, y), jax.grad(scaled)(x)

    assert everywhere(fn, [scale, count]) == ([6.0, 18.0, 303.0, 303.0], [3.0, 3])
    assert everywhere(fn, [scale, count]) == ([9.0, 36.0, 404.0, 404.0], [4.0, 6])


@pytest.mark.parametrize("uses_a_variable", [True, False])
def test_a_forward_rule_that_calls_its_function(uses_a_variable: bool) -> None:
    """As JAX's documentation writes them: the rule calls the function itself, which is not differentiated there."""
    scale = replicant.Variable(2.0)

    @jax.custom_vjp
    def scaled(x: Any) -> Any:
        return x * (scale.value() if uses_a_variable else 2.0)

    scaled.defvjp(lambda x: (scaled(x), x), lambda x, upstream: (upstream * (scale if uses_a_variable else 2.0) * x,))

    def fn() -> Any:
        scale.assign_add(1.0)
        return scaled(5.0), jax.grad(scaled)(5.0)

    first = ([15.0, 15.0], [3.0]) if uses_a_variable else ([10.0, 10.0], [3.0])
    assert everywhere(fn, [scale]) == first


@pytest.mark.parametrize("calls", ["itself", "fun"])
def test_second_derivatives_through_a_forward_rule(calls: str) -> None:
    """JAX differentiates the rule that the function is called in. Where it calls itself and uses variables, that is told."""
    scale = replicant.Variable(2.0)

    @jax.custom_vjp
    def scaled(x: Any) -> Any:
        return x * x * scale.value()

    inner = scaled if calls == "itself" else scaled.fun
    scaled.defvjp(lambda x: (inner(x), x), lambda x, upstream: (upstream * scale.value() * x * 100.0,))

    def of_the_slope() -> Any:
        return jax.grad(jax.grad(scaled))(5.0)

    def of_the_value() -> Any:
        return jax.grad(lambda x: jax.value_and_grad(scaled)(x)[0])(5.0)

    assert everywhere(lambda: jax.grad(scaled)(5.0), []) == ([1000.0], [])
    if calls == "fun":
        assert everywhere(of_the_slope, []) == ([200.0], [])
        assert everywhere(of_the_value, []) == ([20.0], [])
        return
    for second in (of_the_slope, of_the_value):
        with pytest.raises(ContextError, match=r"second derivative through .* itself\. Call its `fun` in the forward rule"):
            replicant.function(second)()


def test_a_custom_vjp_without_variables_is_left_alone() -> None:
    traces: list[str] = []

    @jax.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return x * y["a"]

    f.defvjp(lambda x, y: (f.fun(x, y), x), lambda x, g: (g * 7.0, {"a": None}))

    def fn() -> Any:
        traces.append(str(jax.make_jaxpr(lambda x: f(x, {"a": 3.0}))(1.0)))
        return jax.grad(f)(2.0, {"a": 3.0})

    assert everywhere(fn, []) == ([7.0], [])
    assert "custom_vjp_call" in traces[0]


def test_what_custom_vjp_cannot_do() -> None:
    v = replicant.Variable(1.0, name="v")

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return x * v

    def backward(_: Any, g: Any) -> Any:
        v.assign(g)
        return (g,)

    f.defvjp(lambda x: (x, None), backward)
    with pytest.raises(ContextError, match=r"The backward rule of a jax\.custom_vjp assigns 'v'"):
        replicant.function(lambda: f(1.0))()


def test_under_other_transformations_the_message_says_what_to_write() -> None:
    v = replicant.Variable(0.0, name="v")

    def assigns(x: Any) -> Any:
        v.assign_add(x)
        return x

    with pytest.raises(ContextError, match=r"'v' was assigned inside a function that JAX traces separately.*jax\.jvp"):
        replicant.function(lambda: jax.jvp(assigns, (1.0,), (1.0,)))()

    def returns(x: Any) -> Any:
        (y, new), _ = jax.jvp(lambda x: (x, v + x), (x,), (x,))
        v.assign(new)
        return y

    replicant.function(returns)(jnp.float32(1.0))
    assert float(v) == 1.0
