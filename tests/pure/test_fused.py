"""Fused replicas: the same results as one replica after another, and sums over replicas computed as one."""

from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from replicant.programs.steps._replica_step import named
from replicant.replicas._collectives import AXIS
from replicant.replicas._placement import Placement
from replicant.tracing.replicas._fused import Stack, fuse

N = 3


def rows(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Numbers for N replicas. They are NumPy's, because JAX compiles a program for each slice of an array of its own."""
    rng = np.random.default_rng(sum(shape))
    return rng.integers(-4, 5, (N, *shape)).astype(dtype)


def traced(fn: Callable[..., Any], args: list[Any], stacked: list[bool]) -> Any:
    shapes = [jax.ShapeDtypeStruct(x.shape[1:] if s else x.shape, x.dtype) for x, s in zip(args, stacked, strict=True)]
    return named(Placement(tuple(jax.devices()[:N]), fused=True), lambda: jax.make_jaxpr(fn)(*shapes))


def fused(fn: Callable[..., Any], args: list[Any], stacked: list[bool]) -> list[Any]:
    """Each result of `fn`: a row per replica, or one value for all."""
    closed = traced(fn, args, stacked)

    @jax.jit
    def compute(*args: Any) -> list[Any]:
        return [x.rows if isinstance(x, Stack) else x.value for x in fuse(closed, args, stacked, N)]

    return [np.asarray(x) for x in compute(*args)]


def apart(fn: Callable[..., Any], args: list[Any], stacked: list[bool]) -> Any:
    """What each replica computes by itself; `fn` without exchanges."""
    fn = jax.jit(fn)
    each = [fn(*[x[i] if s else x for x, s in zip(args, stacked, strict=True)]) for i in range(N)]
    return np.stack(each)


def check_sum(fn: Callable[..., Any], args: list[Any], stacked: list[bool]) -> str:
    """The sum of `fn` over replicas is that of one replica after another; the result is the program."""
    expected = apart(fn, args, stacked).sum(0)
    (got,) = fused(lambda *xs: lax.psum(fn(*xs), AXIS), args, stacked)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    (each,) = fused(fn, args, stacked)
    np.testing.assert_allclose(each, apart(fn, args, stacked), rtol=1e-5, atol=1e-5)
    closed = traced(lambda *xs: lax.psum(fn(*xs), AXIS), args, stacked)
    return str(jax.make_jaxpr(lambda *xs: [x.value for x in fuse(closed, xs, stacked, N)])(*args))


def gradient(loss: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda w, *xs: jnp.sum(loss(w, *xs)))


def test_the_gradient_of_a_matrix_is_one_product() -> None:
    program = check_sum(gradient(lambda w, x: jnp.tanh(x @ w)), [rows(4, 2)[0], rows(5, 4)], [False, True])
    assert f"f32[{N},4,2]" not in program  # no gradient per replica


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("options", [{}, {"window_strides": (2, 1)}, {"rhs_dilation": (2, 1)}, {"padding": "VALID"}])
def test_the_gradient_of_a_convolution_is_one_convolution(layout: str, options: dict[str, Any]) -> None:
    options = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": (layout, "HWIO", layout)} | options
    images = rows(4, 7, 6, 2) if layout == "NHWC" else rows(4, 2, 7, 6)
    program = check_sum(
        gradient(lambda w, x: lax.conv_general_dilated(x, w, **options) ** 2), [rows(3, 2, 2, 5)[0], images], [False, True]
    )
    assert f"feature_group_count={N}" not in program
    assert f"batch_group_count={N}" not in program


@pytest.mark.parametrize(("groups", "kernel"), [(2, (3, 3, 1, 4)), (4, (3, 3, 1, 8))])
def test_the_gradient_of_a_grouped_convolution(groups: int, kernel: tuple[int, ...]) -> None:
    def conv(w: Any, x: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups)

    channels = groups * kernel[2]
    program = check_sum(gradient(lambda w, x: conv(w, x) ** 2), [rows(*kernel)[0], rows(2, 5, 5, channels)], [False, True])
    assert f"batch_group_count={N * groups}" not in program


def test_the_gradient_of_an_embedding_is_one_scatter() -> None:
    ids = jnp.asarray([[0, 1, 1], [4, 0, 4], [2, 2, 2]])
    program = check_sum(gradient(lambda table, i: jnp.sin(table[i])), [rows(5, 2)[0], ids], [False, True])
    assert f"f32[{N},5,2]" not in program


LINEAR: dict[str, Callable[..., Any]] = {
    "transposed": lambda w, x: x @ w.T,
    "reshaped": lambda w, x: x @ w.reshape(4, 2),
    "scaled": lambda w, x: x @ (w.reshape(4, 2) * 3.0),
    "negated": lambda w, x: -(x @ w.T),
    "divided": lambda w, x: x @ (w.T / 4.0),
    "used twice": lambda w, x: jnp.tanh(x @ w.T) @ w,
    "used with its sum": lambda w, x: (x @ w.T) + w.sum(),
    "broadcast": lambda w, x: x * w[0, 0] + (x @ w.T).sum(),
}


@pytest.mark.parametrize("name", LINEAR)
def test_what_is_done_to_a_gradient_is_done_to_its_sum(name: str) -> None:
    check_sum(gradient(LINEAR[name]), [rows(2, 4)[0], rows(5, 4)], [False, True])


def test_half_precision_adds_up_as_on_one_device() -> None:
    w, x = rows(4, 2)[0].astype(jnp.bfloat16), rows(5, 4)

    def loss(w: Any, x: Any) -> Any:
        return jnp.sum((x.astype(jnp.bfloat16) @ w).astype(jnp.float32))

    (got,) = fused(lambda w, x: lax.psum(jax.grad(loss)(w, x).astype(jnp.float32), AXIS), [w, x], [False, True])
    np.testing.assert_array_equal(got, np.asarray(jax.grad(loss)(w, x.reshape(-1, 4)).astype(jnp.float32)))


CONTROL: dict[str, Callable[..., Any]] = {
    "scan": lambda w, x: lax.scan(lambda c, row: (jnp.tanh(c @ w + row[:2]), c.sum()), jnp.zeros(2), x)[0],
    "while": lambda w, x: lax.while_loop(lambda c: c.sum() < 50, lambda c: c * 2 + 1, jnp.abs(x[0, :2]) + jnp.abs(w).sum()),
    "cond": lambda w, x: lax.cond(x[0, 0] > 0, lambda: x[:2, :2] @ w, lambda: -(x[:2, :2] @ w)),
    "cond on what all share": lambda w, x: lax.cond(w[0, 0] > 0, lambda: x[:2, :2] @ w, lambda: -(x[:2, :2] @ w)),
    "jit": lambda w, x: jax.jit(lambda a, b: jnp.where(a > 0, a, b))(x[:2, :2], w),
    "custom derivative": lambda w, x: jax.nn.relu(x[:2, :2] @ w),
    "checkpoint": lambda w, x: jax.grad(jax.checkpoint(lambda w: jnp.sin(x[:, :2] @ w).sum()))(w),
    "window": lambda w, x: lax.reduce_window(x * w[0, 0], -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"),
    "window over rows": lambda w, x: lax.reduce_window(x * w[0, 0], -jnp.inf, lax.max, (2, 2), (1, 1), "SAME"),
    "random numbers": lambda w, x: jax.random.normal(jax.random.key(jnp.abs(x[0, 0]).astype(int)), (2,)) + w[0],
    "callback for each": lambda w, x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((5, 4), np.float32), x),
}


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow_and_calls(name: str) -> None:
    check_sum(CONTROL[name], [rows(2, 2)[0], rows(5, 4)], [False, True])


def test_a_max_pool_joins_rows_and_keeps_its_gradient() -> None:
    def pool(x: Any) -> Any:
        return jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2)

    images = rows(2, 4, 4, 3)
    program = check_sum(jax.grad(pool), [images], [True])
    assert f"window_dimensions=({', '.join('11221')})" not in program  # rank 5: slow
    assert "window_dimensions=(1, 2, 2, 1)" in program


COLLECTIVES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "replica id": (lambda w, x: lax.axis_index(AXIS) + x[0, 0], lambda w, x: np.arange(N) + x[:, 0, 0]),
    "sum of what all share": (lambda w, x: lax.psum(w, AXIS), lambda w, x: w * N),
    "largest": (lambda w, x: lax.pmax(x, AXIS), lambda w, x: x.max(0)),
    "gathered": (lambda w, x: lax.all_gather(x, AXIS, axis=1, tiled=True), lambda w, x: np.concatenate(list(x), 1)),
    "in a loop": (
        lambda w, x: lax.fori_loop(0, 2, lambda i, c: c + lax.psum(x[0, 0], AXIS), 0.0),
        lambda w, x: 2 * x[:, 0, 0].sum(),
    ),
    "sum of a sum": (lambda w, x: lax.psum(lax.psum(x, AXIS) + w[0, 0], AXIS), lambda w, x: N * (x.sum(0) + w[0, 0])),
    "shifted": (
        lambda w, x: lax.ppermute(x, AXIS, [(i, (i + 1) % N) for i in range(N)]),
        lambda w, x: np.roll(x, 1, axis=0),
    ),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(name: str) -> None:
    fn, expected = COLLECTIVES[name]
    w, x = rows(2, 2)[0], rows(5, 4)
    (got,) = fused(fn, [w, x], [False, True])
    np.testing.assert_allclose(got, expected(np.asarray(w), np.asarray(x)), rtol=1e-6)


def test_a_callback_that_exchanges_cannot_be_fused() -> None:
    def fn(x: Any) -> Any:
        return lax.cond(x[0] > 0, lambda: lax.psum(x, AXIS), lambda: x)

    with pytest.raises(Exception, match="differs between replicas"):
        fused(fn, [rows(2)], [True])


@hypothesis.given(
    dims=st.tuples(*[st.integers(1, 4)] * 4),
    batch=st.sampled_from([(), (0,)]),
    stacked=st.sampled_from([(True, True), (True, False), (False, True)]),
)
@hypothesis.settings(max_examples=12)
@pytest.mark.long
def test_products_of_any_shape(dims: tuple[int, ...], batch: tuple[int, ...], stacked: tuple[bool, bool]) -> None:
    b, m, k, n = dims
    left, right = rows(b, m, k), rows(b, k, n)
    numbers = (((2,), (1,)), (batch, batch)) if batch else (((0, 2), (0, 1)), ((), ()))
    args = [x if s else x[0] for x, s in zip((left, right), stacked, strict=True)]
    check_sum(lambda a, c: lax.dot_general(a, c, numbers), args, list(stacked))
