"""Computes convolutions and their gradients with a function that numba compiles, where this is faster than XLA's own.

A forward convolution and its input gradient are the same operation with other filters. JAX writes the filter gradient as a
convolution in which channels and batch change places, in as many groups as channels if the convolution is depthwise. Exported
programs never contain a call of the function (see `Kernel.is_local`).
"""

import math
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from ..lowerings._lowering import Kernel
from ..lowerings._result_shape import result_shape
from ._registration import Native

FAMILY = "numba_conv"
TARGET = "replicant_convolution"
FILTERS_AT_ONCE = 16  # a register of AVX-512, or two of AVX2
MAX_CHANNELS = 128  # measured up to here, see docs/kernels.md
MAX_WINDOW = 49
MIN_PRODUCTS = 100_000  # a call costs as much as some ten thousand

_CONVOLUTION, _FILTER_GRADIENT, _DEPTHWISE, _DEPTHWISE_GRADIENT = range(4)  # as in _convolution_loops.py

_CHANNELS_LAST = (0, 3, 1, 2)
_BATCH_LAST = (3, 0, 1, 2)

FUNCTION = Native(FAMILY, TARGET, "_convolution_loops", ("_convolution_products.py",), "XLA computes the convolutions instead.")


def _call(shape: tuple[int, ...], images: Array, other: Array, *, kind: int, stride: int, padding: Any, dilation: int) -> Array:
    numbers = {"dilation": dilation, "kind": kind, "left": padding[1][0], "stride": stride, "top": padding[0][0]}
    function = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(shape, images.dtype))
    return function(images, other, **{name: np.int64(number) for name, number in numbers.items()})


def convolution(images: Array, filters: Array, **params: Any) -> Array:
    """A convolution of images with channels last, with strides and padding. It combines all channels, or is depthwise."""
    spec = params["dimension_numbers"].rhs_spec
    shape, depthwise = result_shape(images, filters, params), params["feature_group_count"] > 1
    filters = lax.transpose(filters, (*spec[2:], *(spec[:2] if depthwise else (spec[1], spec[0]))))
    return _call(
        shape,
        images,
        filters,
        kind=_DEPTHWISE if depthwise else _CONVOLUTION,
        stride=params["window_strides"][0],
        padding=params["padding"],
        dilation=params["lhs_dilation"][0],
    )


def filter_gradient(images: Array, gradient: Array, **params: Any) -> Array:
    """The gradient of such a convolution with respect to its filters, as JAX writes it."""
    spec, depthwise = params["dimension_numbers"].out_spec, params["batch_group_count"] > 1
    order = (*spec[2:], *((spec[1], spec[0]) if depthwise else spec[:2]))
    shape = result_shape(images, gradient, params)
    result = _call(
        tuple(shape[axis] for axis in order),
        images,
        gradient,
        kind=_DEPTHWISE_GRADIENT if depthwise else _FILTER_GRADIENT,
        stride=params["rhs_dilation"][0],
        padding=params["padding"],
        dilation=1,
    )
    return lax.transpose(result, _inverse(order))


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(axis) for axis in range(len(order)))


def _choose(lhs: Any, rhs: Any, **params: Any) -> Any:
    if lhs.ndim != 4 or str(lhs.dtype) != "float32" or str(rhs.dtype) != "float32":
        return None
    if params["preferred_element_type"] not in (None, np.dtype("float32")):
        return None
    if any(edge < 0 for edges in params["padding"] for edge in edges):
        return None
    compute = _form(lhs, rhs, result_shape(lhs, rhs, params), params)
    return compute if compute and FUNCTION.is_ready() else None


def _form(lhs: Any, rhs: Any, shape: tuple[int, ...], params: Any) -> Any:
    """Which of the two functions computes a convolution faster than XLA, if one does. This was measured, see docs/kernels.md."""
    spec = params["dimension_numbers"]
    strides, apart = set(params["window_strides"]), set(params["rhs_dilation"])
    if spec.lhs_spec == spec.out_spec == _CHANNELS_LAST and apart == {1} and len(strides) == 1:
        compute, window, channels = convolution, [rhs.shape[axis] for axis in spec.rhs_spec[2:]], lhs.shape[3]
    elif spec.lhs_spec == spec.rhs_spec == _BATCH_LAST and strides == {1} and len(apart) == 1:
        compute, window, channels = filter_gradient, [shape[axis] for axis in spec.out_spec[2:]], lhs.shape[3]
    else:
        return None
    filters = shape[spec.out_spec[1]]
    if filters % FILTERS_AT_ONCE:
        return None
    of_images, of_gradients, dilation = params["feature_group_count"], params["batch_group_count"], set(params["lhs_dilation"])
    if of_images > 1 or of_gradients > 1:
        groups = (of_images, of_gradients) if compute is convolution else (of_gradients, of_images)
        is_spread_evenly = dilation == {1} or (compute is convolution and len(dilation) == 1)
        fits = groups == (channels, 1) and filters == channels and is_spread_evenly
        return compute if fits and _is_worth_it(window, shape, rhs, spec) else None
    if dilation != {1} or channels > MAX_CHANNELS or filters > MAX_CHANNELS:
        return None
    return compute if _is_worth_it(window, shape, rhs, spec) else None


def _is_worth_it(window: list[int], shape: tuple[int, ...], rhs: Any, spec: Any) -> bool:
    products = math.prod(shape) * rhs.size // rhs.shape[spec.rhs_spec[0]]
    return 1 < math.prod(window) <= MAX_WINDOW and products >= MIN_PRODUCTS


KERNEL = Kernel(FAMILY, lax.conv_general_dilated_p, _choose, is_local=True)
