"""Convolutions as sums of shifted arrays: what XLA computes, in any layout, and only where they are faster."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

from replicant import kernels

SPACE = "XYZ"
CHANNELS_LAST = ("NHWC", "HWIO", "NHWC")


def convolve(x: Any, w: Any, *, groups: int = 1, strides: Any = (1, 1), padding: Any = "SAME", **how: Any) -> Any:
    how.setdefault("dimension_numbers", CHANNELS_LAST)
    return lax.conv_general_dilated(x, w, strides, padding, feature_group_count=groups, **how)


def with_gradients(function: Any) -> Any:
    def all_three(x: Any, w: Any, cotangent: Any) -> Any:
        value, pull = jax.vjp(function, x, w)
        return value, *pull(cotangent)

    return all_three


def both_ways(function: Any, *args: Any) -> tuple[Any, Any]:
    jitted = jax.jit(function)
    with kernels.disabled("direct_conv"):
        plain = jitted(*args)
    return jitted(*args), plain


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[dict[str, Any], list[int], list[int], int]:
    """The arguments, the shapes of images and filters, and a seed."""
    space = SPACE[: draw(st.integers(1, 3))]
    depthwise, channels = draw(st.booleans()), draw(st.integers(1, 5))
    filters = draw(st.integers(1, 3)) * channels if depthwise else draw(st.integers(1, 5))
    each = [draw(st.integers(1, 3)) for _ in space]
    sizes = {"N": draw(st.integers(1, 5)), "C": channels, **{axis: draw(st.integers(3, 7)) for axis in space}}
    of_filters = {"O": filters, "I": 1 if depthwise else channels, **dict(zip(space, each, strict=True))}
    layouts = tuple("".join(draw(st.permutations(list(names + space)))) for names in ("NC", "OI", "NC"))
    how = {
        "groups": channels if depthwise else 1,
        "strides": [draw(st.integers(1, 2)) for _ in space],
        "padding": [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in space],
        "lhs_dilation": [draw(st.integers(1, 2)) for _ in space],
        "rhs_dilation": [draw(st.integers(1, 2)) for _ in space],
        "dimension_numbers": layouts,
    }
    return how, [sizes[axis] for axis in layouts[0]], [of_filters[axis] for axis in layouts[1]], draw(st.integers(0, 2**16))


@pytest.mark.again
@settings(max_examples=300 if os.environ.get("REPLICANT_TEST_FULL") else 15, deadline=None)
@given(convolutions())
@pytest.mark.long
def test_values_and_gradients_are_those_of_xla(case: Any) -> None:
    how, image_shape, filter_shape, seed = case
    rng = np.random.default_rng(seed)
    x, w = (jnp.asarray(rng.integers(-4, 5, shape), jnp.float32) for shape in (image_shape, filter_shape))
    shape = jax.eval_shape(lambda x, w: convolve(x, w, **how), x, w).shape
    cotangent = jnp.asarray(rng.integers(-4, 5, shape), jnp.float32)  # whole numbers: sums are exact in any order
    results, plain = both_ways(with_gradients(lambda x, w: convolve(x, w, **how)), x, w, cotangent)
    for actual, expected in zip(results, plain, strict=True):
        np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))


def text_of(x_shape: Any, w_shape: Any, dtype: Any = jnp.float32, **how: Any) -> str:
    x, w = (jax.ShapeDtypeStruct(shape, dtype) for shape in (x_shape, w_shape))
    return jax.jit(lambda x, w: convolve(x, w, **how)).lower(x, w).as_text()


@pytest.mark.parametrize(
    ("x", "w", "how", "is_direct"),
    [
        ((8, 9, 9, 1), (3, 3, 1, 32), {}, True),
        ((8, 9, 9, 3), (3, 3, 3, 32), {}, True),
        ((8, 9, 9, 3), (3, 3, 3, 33), {}, False),  # 27 products are too many for so many filters
        ((8, 9, 9, 2), (3, 3, 2, 64), {}, True),
        ((8, 9, 9, 3), (5, 5, 3, 8), {}, False),
        ((8, 9, 9, 5), (1, 1, 5, 8), {}, False),  # a matrix product
        ((8, 9, 9, 16), (3, 3, 1, 16), {"groups": 16}, True),
        ((8, 9, 9, 16), (7, 7, 1, 32), {"groups": 16}, True),
        ((8, 9, 9, 16), (8, 8, 1, 16), {"groups": 16}, False),
        ((8, 9, 9, 16), (3, 3, 4, 16), {"groups": 4}, False),  # groups of several channels
        ((8, 9, 9, 1), (3, 3, 1, 32), {"dtype": jnp.bfloat16}, False),  # every addition would be rounded to 8 bits
    ],
)
def test_only_those_with_few_products(x: Any, w: Any, how: dict[str, Any], is_direct: bool) -> None:
    with kernels.disabled("numba_conv"):  # which comes first, where it is on
        assert ("stablehlo.convolution" in text_of(x, w, **how)) is not is_direct
    with kernels.disabled("direct_conv", "numba_conv"):
        assert "stablehlo.convolution" in text_of(x, w, **how)


def test_a_window_that_does_not_fit_leaves_nothing() -> None:
    x, w = jnp.ones((1, 1, 3, 2)), jnp.ones((3, 3, 2, 4))
    assert jax.jit(convolve, static_argnames="padding")(x, w, padding="VALID").shape == (1, 0, 1, 4)
    grouped = jax.jit(lambda x, w: convolve(x, w, groups=2, padding="VALID"))
    assert grouped(x, jnp.ones((3, 3, 1, 2))).shape == (1, 0, 1, 2)


def test_the_gradients_of_a_depthwise_convolution_have_no_convolution_left() -> None:
    x, w, cotangent = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4, 9, 9, 8), (3, 3, 1, 8), (4, 5, 5, 8)))
    function = with_gradients(lambda x, w: convolve(x, w, groups=8, strides=(2, 2)))
    assert "stablehlo.convolution" not in jax.jit(function).lower(x, w, cotangent).as_text()


X = np.random.default_rng(3).integers(-3, 4, (6, 7, 7, 3)).astype(np.float32)
W = np.random.default_rng(4).integers(-3, 4, (3, 3, 1, 3)).astype(np.float32)


def gradient(x: Any) -> Any:
    return jax.grad(lambda x, w: (convolve(x, w, groups=3) ** 2).sum(), argnums=(0, 1))(x, W)


def shard_mapped(check_vma: bool) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("replica",))

    def summed(x: Any) -> Any:
        by_image, by_filter = jax.grad(lambda x, w: (convolve(x, w, groups=3) ** 2).sum(), argnums=(0, 1))(x, jnp.asarray(W))
        return by_image, by_filter if check_vma else lax.psum(by_filter, "replica")

    specs = (P("replica"), P())
    return jax.shard_map(summed, mesh=mesh, in_specs=P("replica"), out_specs=specs, check_vma=check_vma)


PLACES: dict[str, Any] = {
    "vmap": jax.vmap(lambda row: gradient(row[None])),
    "scan": lambda x: lax.scan(lambda carry, row: (carry, gradient(row[None])), 0, x)[1],
    "shard_map": shard_mapped(check_vma=False),
    "shard_map with checked types": shard_mapped(check_vma=True),
    "gradient of a gradient": jax.grad(lambda x: sum((g**2).sum() for g in gradient(x)) * 1e-6),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.long_cases("gradient of a gradient")
def test_everywhere(place: str) -> None:
    results, plain = both_ways(PLACES[place], jnp.asarray(X))
    for actual, expected in zip(jax.tree.leaves(results), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-6, atol=1e-6)
