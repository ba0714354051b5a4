"""Transposed convolutions by phases, and convolutions of one position as products: what XLA computes, in any layout."""

import os
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from replicant import kernels
from replicant.kernels.lowerings import _strided_convolutions
from replicant.kernels.lowerings._once import BARRIERS_HOLD

SPACE = "XYZ"
CHANNELS_LAST = ("NHWC", "HWIO", "NHWC")


def convolve(x: Any, w: Any, **how: Any) -> Any:
    arguments: dict[str, Any] = {"window_strides": (1, 1), "padding": [(0, 0), (0, 0)], "dimension_numbers": CHANNELS_LAST, **how}
    return lax.conv_general_dilated(x, w, **arguments)


def both_ways(function: Any, *args: Any) -> tuple[Any, Any]:
    jitted = jax.jit(function)
    with kernels.disabled("strided_conv"):
        plain = jitted(*args)
    return jitted(*args), plain


def text_of(function: Any, *shapes: Any, dtype: Any = jnp.float32) -> str:
    return jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)).as_text()


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[dict[str, Any], list[int], list[int], int]:
    """The arguments, the shapes of images and filters, and a seed. Some are transposed, and some leave one position."""
    space = SPACE[: draw(st.integers(1, 2))]
    depthwise, channels = draw(st.booleans()), draw(st.integers(1, 4))
    filters = draw(st.integers(1, 2)) * channels if depthwise else draw(st.integers(1, 4))
    plain = draw(st.booleans())  # neither strides nor space between the elements of the filter
    sizes = {"N": draw(st.integers(1, 3)), "C": channels, **{axis: draw(st.integers(1, 6)) for axis in space}}
    of_filters = {"O": filters, "I": 1 if depthwise else channels, **{axis: draw(st.integers(1, 4)) for axis in space}}
    layouts = tuple("".join(draw(st.permutations(list(names + space)))) for names in ("NC", "OI", "NC"))
    how = {
        "feature_group_count": channels if depthwise else 1,
        "window_strides": [1 if plain else draw(st.integers(1, 2)) for _ in space],
        "padding": [(draw(st.integers(-1, 3)), draw(st.integers(-1, 3))) for _ in space],
        "lhs_dilation": [draw(st.integers(1, 3)) for _ in space],
        "rhs_dilation": [1 if plain else draw(st.integers(1, 2)) for _ in space],
        "dimension_numbers": layouts,
    }
    return how, [sizes[axis] for axis in layouts[0]], [of_filters[axis] for axis in layouts[1]], draw(st.integers(0, 2**16))


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute all convolutions by phases that can be, and not only the large ones, which are faster so."""
    monkeypatch.setattr(_strided_convolutions, "_pays", lambda *_: True)
    monkeypatch.setattr(_strided_convolutions, "LARGE", 1)


@pytest.mark.again
@pytest.mark.usefixtures("everywhere")
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=300 if os.environ.get("REPLICANT_TEST_FULL") else 20 if os.environ.get("REPLICANT_TEST_SLOW") else 10,
    deadline=None,
)
@given(convolutions())
@pytest.mark.long
def test_values_and_gradients_are_those_of_xla(case: Any) -> None:
    how, image_shape, filter_shape, seed = case

    def function(x: Any, w: Any) -> Any:
        return convolve(x, w, **how)

    rng = np.random.default_rng(seed)
    x, w = (jnp.asarray(rng.integers(-4, 5, shape), jnp.float32) for shape in (image_shape, filter_shape))
    try:
        shape = jax.eval_shape(function, x, w).shape
    except ValueError:  # the padding takes away more than there is
        return
    cotangent = jnp.asarray(rng.integers(-4, 5, shape), jnp.float32)  # whole numbers: sums are exact in any order
    # A program each: XLA:CPU returns wrong gradients for some layouts if one program computes them all.
    for part, args in (
        (function, (x, w)),
        (lambda w, g: jax.linear_transpose(lambda x: function(x, w), x)(g)[0], (w, cotangent)),
        (lambda x, g: jax.linear_transpose(lambda w: function(x, w), w)(g)[0], (x, cotangent)),
    ):
        actual, expected = both_ways(part, *args)
        np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))


ZEROS_BETWEEN = "lhs_dilate = [2, 2]"
TWO = {"lhs_dilation": (2, 2), "padding": [(2, 2), (2, 2)]}


@pytest.mark.parametrize(
    ("filters", "image", "how", "num_convolutions"),
    [
        ((3, 3, 16, 12), 8, TWO, 4),
        ((3, 3, 16, 12), 8, {"lhs_dilation": (2, 1), "padding": [(2, 2), (2, 2)]}, 2),
        ((1, 1, 16, 12), 8, {"lhs_dilation": (2, 2)}, 1),  # three phases are zero
        ((3, 3, 1, 16), 8, {**TWO, "feature_group_count": 16}, 0),  # depthwise: each phase is a sum of shifted arrays
        ((9, 9, 16, 2), 4, {"lhs_dilation": (2, 2), "padding": [(2, 2), (2, 2)]}, 4),  # a filter gradient
        ((3, 3, 16, 11), 8, TWO, 1),  # too few filters
        ((3, 3, 16, 12), 3, TWO, 1),  # too small images
        ((2, 2, 16, 12), 8, {"lhs_dilation": (2, 2)}, 1),  # windows that do not overlap
        ((9, 9, 16, 1), 4, {"lhs_dilation": (2, 2), "padding": [(2, 2), (2, 2)]}, 1),  # the gradient of one filter
        ((6, 6, 16, 12), 8, {"lhs_dilation": (5, 5), "padding": [(2, 2), (2, 2)]}, 1),  # 25 phases are too many
        ((3, 3, 16, 12), 16, {"lhs_dilation": (2, 2), "window_strides": (2, 2)}, 1),
        ((3, 3, 16, 12), 16, {"lhs_dilation": (2, 2), "rhs_dilation": (2, 2)}, 1),
        ((3, 3, 16, 12), 16, {"padding": "SAME"}, 1),  # no zeros
    ],
)
def test_a_convolution_for_each_phase_where_that_is_faster(
    filters: Any, image: int, how: dict[str, Any], num_convolutions: int
) -> None:
    def function(x: Any, w: Any) -> Any:
        return convolve(x, w, **how)

    assert text_of(function, (2, image, image, 16), filters).count("stablehlo.convolution") == num_convolutions
    with kernels.disabled("strided_conv", "direct_conv"):
        assert text_of(function, (2, image, image, 16), filters).count("stablehlo.convolution") == 1


def test_the_gradients_of_a_strided_convolution_with_one_element_are_products() -> None:
    def gradients(x: Any, w: Any, g: Any) -> Any:
        return jax.vjp(lambda x, w: convolve(x, w, window_strides=(2, 2), padding="SAME"), x, w)[1](g)

    text = text_of(gradients, (4, 16, 16, 16), (1, 1, 16, 8), (4, 8, 8, 8))
    assert text.count("stablehlo.dot_general") == 1  # the filter's
    assert ZEROS_BETWEEN not in text
    assert text.count("stablehlo.convolution") == 1  # the one phase of the image's that is not zero


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.complex64])
def test_other_types_are_left_to_xla(dtype: Any) -> None:
    text = text_of(lambda x, w: convolve(x, w, lhs_dilation=(2, 2)), (1, 4, 4, 8), (2, 2, 8, 8), dtype=dtype)
    assert ZEROS_BETWEEN in text


@pytest.mark.usefixtures("everywhere")
def test_sixteen_bits() -> None:
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.integers(-2, 3, shape), jnp.bfloat16) for shape in ((2, 5, 5, 4), (3, 3, 4, 4)))
    actual, expected = both_ways(lambda x, w: convolve(x, w, lhs_dilation=(2, 2), padding=[(1, 1), (1, 1)]), x, w)
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(actual, np.float32), np.asarray(expected, np.float32))


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(("size", "strides"), [(3, 2), (4, 2), (2, 3), (1, 2), (5, (1, 3))])
@pytest.mark.long_cases("2-3-same", "3-2-same")
def test_a_keras_layer_has_the_same_value_and_gradients(size: int, strides: Any, padding: Any) -> None:
    layer = keras.layers.Conv2DTranspose(3, size, strides=strides, padding=padding)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 6, 4)), jnp.float32)
    layer.build(x.shape)
    kernel = jnp.asarray(np.random.default_rng(1).normal(size=layer.kernel.shape), jnp.float32)

    def gradients(kernel: Any, x: Any) -> Any:
        def loss(kernel: Any, x: Any) -> Any:
            value: Any = layer.stateless_call([kernel, jnp.zeros(3)], [], x)[0]
            return (value**2).sum(), value

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(kernel, x)

    results, plain = both_ways(gradients, kernel, x)
    for actual, expected in zip(jax.tree.leaves(results), jax.tree.leaves(plain), strict=True):
        scale = float(jnp.max(jnp.abs(expected)))
        np.testing.assert_allclose(np.asarray(actual) / scale, np.asarray(expected) / scale, atol=1e-6)


def depthwise(x: Any, w: Any) -> Any:
    return convolve(x, w, window_strides=(2, 2), feature_group_count=x.shape[-1])


def gradient_by_images(x: Any, w: Any, cotangent: Any) -> Any:
    return jax.vjp(lambda x: depthwise(x, w), x)[1](cotangent)[0]


def depthwise_case(rows: int, seed: int = 0) -> list[Any]:
    """Images, a filter, and a cotangent of 900 elements an image."""
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((rows, 32, 32, 4), (3, 3, 1, 4), (rows, 15, 15, 4))]


@pytest.mark.long
def test_what_a_large_depthwise_gradient_reads_is_made_first() -> None:
    """On one device, its images are computed once. Small ones, exported programs and cut ones are left to XLA."""
    large, small = depthwise_case(80), depthwise_case(20)
    assert large[2].size >= _strided_convolutions.LARGE > small[2].size
    mesh = Mesh(np.array(jax.devices()[:2]), ("a",))
    x, w, cotangent = large
    rows, same = NamedSharding(mesh, P("a")), NamedSharding(mesh, P())
    cut = [jax.device_put(x, rows), jax.device_put(w, same), jax.device_put(cotangent, rows)]
    with kernels.disabled("direct_conv"):  # whose results are computed once, too
        exported = jax.export.export(jax.jit(gradient_by_images))(*large)
        texts = [jax.jit(gradient_by_images).lower(*case).as_text() for case in (large, small, cut)]
        sign = "stablehlo.optimization_barrier" if BARRIERS_HOLD else "stablehlo.case"
        assert [sign in text for text in (*texts, exported.mlir_module())] == [True, False, False, False]
    each = jax.shard_map(gradient_by_images, mesh=mesh, in_specs=(P("a"), P(), P("a")), out_specs=P("a"))
    with kernels.disabled():
        expected = jax.jit(gradient_by_images)(*large)
    jitted = jax.jit(gradient_by_images)
    for found in (jitted(*large), exported.call(*large), jitted(*cut), jax.jit(each)(*large)):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("first", [np.nan, np.inf, -0.0])
def test_the_condition_holds_whatever_it_reads(first: float) -> None:
    x, w, cotangent = depthwise_case(80)
    cotangent = cotangent.at[0, 0, 0, 0].set(first)
    found, plain = both_ways(gradient_by_images, x, w, cotangent)
    np.testing.assert_allclose(found, plain, atol=1e-5)
    assert np.isfinite(np.asarray(found)).sum() >= found.size - 9


@pytest.mark.slow
def test_two_hundred_steps_are_the_same() -> None:
    """A model with strided depthwise convolutions and BatchNormalization learns the same with the kernel and without."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(40, 16, 16, 3)).astype(np.float32), rng.integers(0, 3, 40)

    def losses() -> tuple[list[float], list[Any]]:
        keras.utils.set_random_seed(2)
        layers = [keras.layers.Conv2D(12, 3, padding="same"), keras.layers.BatchNormalization(), keras.layers.ReLU()]
        layers += [keras.layers.DepthwiseConv2D(3, 2, padding="same"), keras.layers.BatchNormalization(), keras.layers.ReLU()]
        layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]
        model: Any = keras.Sequential([keras.Input((16, 16, 3)), *layers])
        model.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model.fit(x, y, batch_size=40, epochs=200, shuffle=False, verbose=0).history["loss"], model.get_weights()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_strided_convolutions, "LARGE", 1)
        found, weights = losses()
    with kernels.disabled("strided_conv"):
        plain, expected = losses()
    np.testing.assert_allclose(found, plain, atol=1e-5)
    assert found[-1] < 0.99 * found[0]
    for one, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
