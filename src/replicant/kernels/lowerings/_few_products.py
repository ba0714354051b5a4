"""Computes convolutions that add up few products for each element of the result as sums of shifted and scaled arrays.

There are two kinds of them: those of images with one to four channels (a network's first layer), and depthwise ones, which combine
no channels. XLA:CPU computes both with matrix products that are too small for it. As elementwise operations on slices, they run
along the channels of the result, at the speed of memory. The gradient of a depthwise convolution with respect to its filter is the
sum of a few such products per image.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from ._lowering import Kernel
from ._pooling import at, positions
from ._result_shape import result_shape

_WIDE = ("float32", "float64")  # with 16 bits, every addition would be rounded
MAX_CHANNELS = 4  # of a convolution that combines all channels
MAX_TERMS = 27  # products per element of such a convolution; this was measured, see docs/kernels.md
_ANY_WIDTH_TERMS = 18  # products up to which it is faster for any number of filters
_NARROW_FILTERS = 32  # filters up to which it is faster with more products
MAX_DEPTHWISE_TERMS = 49


def sum_of_shifts(
    lhs: Array,
    rhs: Array,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    **_: Any,
) -> Array:
    """A convolution that combines all channels, or none of them (then `feature_group_count` is their number)."""
    image, filters = _channels_last(lhs, dimension_numbers.lhs_spec), _filters_last(rhs, dimension_numbers.rhs_spec)
    image = _dilated(image, padding, lhs_dilation)
    window = filters.shape[:-2]
    out = [
        (size - 1 - (w - 1) * d) // s + 1
        for size, w, d, s in zip(image.shape[1:-1], window, rhs_dilation, window_strides, strict=True)
    ]

    result = None
    for position in positions(window):
        shifted = _shifted(image, [p * d for p, d in zip(position, rhs_dilation, strict=True)], out, window_strides)
        for term in _terms(shifted, filters[position], depthwise=feature_group_count > 1):
            result = term if result is None else result + term
    assert result is not None  # a filter has at least one element
    return lax.transpose(result, _inverse(_order(dimension_numbers.out_spec)))


def filter_gradient(
    lhs: Array,
    rhs: Array,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    **_: Any,
) -> Array:
    """The gradient of a depthwise convolution with respect to its filter.

    JAX writes it as a convolution in which the channels are the batch. `lhs` are the images, and `rhs` is the gradient of the
    result. For each position of the filter and each channel, this is the sum of their products.
    """
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    images = _dilated(_channels_last(lhs, (lhs_spec[1], lhs_spec[0], *lhs_spec[2:])), padding, lhs_dilation)
    gradients = _channels_last(rhs, (rhs_spec[1], rhs_spec[0], *rhs_spec[2:]))
    spread = gradients.shape[1:-1]
    window = [
        (size - 1 - (n - 1) * d) // s + 1
        for size, n, d, s in zip(images.shape[1:-1], spread, rhs_dilation, window_strides, strict=True)
    ]

    def of_image(pair: tuple[Array, Array]) -> Array:
        image, gradient = (x[None] for x in pair)
        rows = [
            jnp.sum(_shifted(image, [p * s for p, s in zip(q, window_strides, strict=True)], spread, rhs_dilation) * gradient, axes)
            for q in positions(window)
        ]
        return jnp.stack(rows)

    axes = tuple(range(gradients.ndim - 1))
    total = jnp.sum(lax.map(of_image, (images, gradients)), axis=0)
    return lax.transpose(total.reshape(1, *window, -1), _inverse(_order(out_spec)))


def _order(spec: Sequence[int]) -> tuple[int, ...]:
    """The axes of an array in the order batch, space, channels. Its batch is axis spec[0], and its channels are axis spec[1]."""
    return (spec[0], *spec[2:], spec[1])


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(order.index(axis) for axis in range(len(order)))


def _channels_last(array: Array, spec: Sequence[int]) -> Array:
    return lax.transpose(array, _order(spec))


def _filters_last(rhs: Array, spec: Sequence[int]) -> Array:
    """The filters in the shape (*window, channels, filters)."""
    return lax.transpose(rhs, (*spec[2:], spec[1], spec[0]))


def _dilated(image: Array, padding: Sequence[tuple[int, int]], dilation: Sequence[int]) -> Array:
    """`image` with zeros around it and between its elements."""
    space = [(low, high, d - 1) for (low, high), d in zip(padding, dilation, strict=True)]
    if all(edge == (0, 0, 0) for edge in space):
        return image
    return lax.pad(image, jnp.zeros((), image.dtype), [(0, 0, 0), *space, (0, 0, 0)])


def _shifted(image: Array, start: Sequence[int], out: Sequence[int], strides: Sequence[int]) -> Array:
    return at(image, (0, *start, 0), (image.shape[0], *out, image.shape[-1]), (1, *strides, 1))


def _terms(shifted: Array, filters: Array, *, depthwise: bool) -> list[Array]:
    """What one position of the window adds. The shape of `filters` is (channels, filters), or (1, channels * filters of each)."""
    if not depthwise:
        return [shifted[..., c : c + 1] * filters[c] for c in range(shifted.shape[-1])]
    channels = shifted.shape[-1]
    if filters.shape[-1] == channels:
        return [shifted * filters[0]]
    product = shifted[..., None] * filters[0].reshape(channels, -1)
    return [product.reshape(*shifted.shape[:-1], -1)]


def _choose(lhs: Any, rhs: Any, **params: Any) -> Any:
    if lhs.dtype.name not in _WIDE or lhs.dtype != rhs.dtype:
        return None
    if params["preferred_element_type"] not in (None, lhs.dtype):
        return None
    spec, shape = params["dimension_numbers"], result_shape(lhs, rhs, params)
    channels, filters = lhs.shape[spec.lhs_spec[1]], rhs.shape[spec.rhs_spec[0]]
    window = [rhs.shape[axis] for axis in spec.rhs_spec[2:]]
    if params["batch_group_count"] > 1:
        batch = lhs.shape[spec.lhs_spec[0]]
        one_to_one = params["batch_group_count"] == batch == filters and params["feature_group_count"] == 1
        num_positions = math.prod(shape[axis] for axis in spec.out_spec[2:])
        return filter_gradient if one_to_one and num_positions <= MAX_DEPTHWISE_TERMS else None
    terms = math.prod(window)
    if params["feature_group_count"] == channels > 1:
        return sum_of_shifts if terms <= MAX_DEPTHWISE_TERMS else None
    if params["feature_group_count"] > 1 or channels > MAX_CHANNELS:
        return None
    limit = MAX_TERMS if filters <= _NARROW_FILTERS else _ANY_WIDTH_TERMS
    return sum_of_shifts if terms * channels <= limit else None


KERNEL = Kernel("direct_conv", lax.conv_general_dilated_p, _choose, is_fusible=True)
