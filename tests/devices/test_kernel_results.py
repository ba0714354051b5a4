"""What kernels return is one array, whatever uses it, and may be empty, as where XLA computes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from replicant import kernels


def convolve(x: Any, w: Any, **how: Any) -> Any:
    how = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")} | how
    return lax.conv_general_dilated(x, w, **how)


def pool(kind: str, x: Any, size: int, stride: int) -> Any:
    combine, first = {"max": (lax.max, -np.inf), "sum": (lax.add, 0.0)}[kind]
    return lax.reduce_window(x, first, combine, (1, size, size, 1), (1, stride, stride, 1), "VALID")


def pool_gradient(x: Any, w: Any) -> Any:
    return jax.grad(lambda x: (pool("max", x, 3, 2) * w[:3, :3]).sum())(x)


def first_axes(x: Any, w: Any) -> Any:
    return lax.dot_general(x, w, (((0,), (0,)), ((), ())))


Case = tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]


def cases(rows: int) -> dict[str, Case]:
    """Functions that kernels compute, and the shapes of their operands."""
    doubled = {"lhs_dilation": (2, 2), "padding": [(2, 2), (2, 2)]}
    return {
        "direct_conv, depthwise": (lambda x, w: convolve(x, w, feature_group_count=2), (rows, 6, 6, 2), (3, 3, 1, 2)),
        "direct_conv, two filters each": (lambda x, w: convolve(x, w, feature_group_count=2), (rows, 6, 6, 2), (3, 3, 1, 4)),
        "direct_conv, one channel": (convolve, (rows, 6, 6, 1), (3, 3, 1, 4)),
        "direct_conv, two channels": (lambda x, w: convolve(x, w, padding="VALID"), (rows, 8, 8, 2), (2, 2, 2, 3)),
        "direct_conv, filters": (lambda x, w: jax.grad(lambda w: (convolve(x, w) ** 2).sum())(w), (rows, 6, 6, 2), (3, 3, 2, 2)),
        "numba_conv": (convolve, (rows, 16, 16, 3), (3, 3, 3, 16)),
        "strided_conv": (lambda x, w: convolve(x, w, **doubled), (rows, 6, 6, 3), (3, 3, 3, 12)),
        "strided_conv, depthwise": (lambda x, w: convolve(x, w, feature_group_count=3, **doubled), (rows, 6, 6, 3), (3, 3, 1, 3)),
        "strided_conv, one position": (lambda x, w: convolve(x, w, padding="VALID"), (rows, 6, 6, 3), (6, 6, 3, 5)),
        "max_pool": (lambda x, w: pool("max", x * w + x, 3, 2), (rows, 7, 7, 3), (7, 7, 3)),
        "max_pool, gradient": (lambda x, w: pool_gradient(x * w, w), (rows, 7, 7, 3), (7, 7, 3)),
        "avg_pool": (lambda x, w: pool("sum", x * w + x, 3, 2), (rows, 7, 7, 3), (7, 7, 3)),
        "avg_pool, every position": (lambda x, w: pool("sum", x * w, 3, 1), (rows, 7, 7, 3), (7, 7, 3)),
        "dot, narrow": (lambda x, w: first_axes(x * x[:1], w), (512 * rows, 40), (512 * rows, 4)),
        "dot": (lambda x, w: first_axes(x * x[:1], w), (1024 * rows, 130), (1024 * rows, 64)),
    }


def uses(function: Any) -> Any:
    """What goes wrong if a result has other numbers for one of its users than for another."""

    def compute(x: Any, w: Any) -> Any:
        result = function(x, w)
        flat = result.reshape(result.shape[0], -1)
        best = flat.max(-1)
        at_best = jnp.take_along_axis(flat, jnp.argmax(flat, -1)[:, None], -1)[:, 0]
        slopes = jax.grad(lambda x, w: (function(x, w).reshape(flat.shape).max(-1) ** 2).sum(), (0, 1))(x, w)
        return (flat == best[:, None]).any(-1).all(), (at_best == best).all(), [jnp.isfinite(slope).all() for slope in slopes]

    return compute


@pytest.mark.long
@pytest.mark.parametrize("level", ["0", "3"])
@pytest.mark.parametrize("rows", [3, 11])
def test_all_users_of_a_result_see_the_same_numbers(rows: int, level: str) -> None:
    rng = np.random.default_rng(rows)
    given = {
        name: [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes] for name, (_, *shapes) in cases(rows).items()
    }

    def program(given: Any) -> Any:
        return {name: uses(function)(*given[name]) for name, (function, *_) in cases(rows).items()}

    compiled = jax.jit(program).lower(given).compile(compiler_options={"xla_backend_optimization_level": level})
    assert [name for name, seen in compiled(given).items() if not all(jax.tree.leaves(seen))] == []


@pytest.mark.parametrize("kind", ["max", "sum"])
def test_a_window_that_is_larger_than_the_images_leaves_nothing(kind: str) -> None:
    x = jnp.ones((2, 7, 1, 4))
    assert jax.jit(lambda x: pool(kind, x, 3, 2))(x).shape == (2, 3, 0, 4)
    assert jax.jit(jax.grad(lambda x: pool(kind, x, 3, 2).sum()))(x).tolist() == np.zeros(x.shape).tolist()


@pytest.mark.long
def test_empty_operands() -> None:
    for name, (function, *shapes) in cases(0).items():
        x, w = map(jnp.ones, shapes)
        with kernels.disabled():
            expected = jax.jit(lambda x, w, function=function: function(x, w))(x, w)
        found = jax.jit(lambda x, w, function=function: function(x, w))(x, w)
        assert (name, found.tolist(), found.shape) == (name, expected.tolist(), expected.shape)
