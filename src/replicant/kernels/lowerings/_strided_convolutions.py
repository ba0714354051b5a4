"""Computes transposed convolutions as several small ones, and convolutions with one position as products of matrices.

A transposed convolution runs over images with zeros between their elements, and so does the input gradient of a convolution with
strides. XLA:CPU multiplies by these zeros, too: three products of four with strides of two. Elements of the result whose positions
leave the same remainder by the strides (a phase) meet the same part of the filter, and none of the zeros. So each phase is a
convolution of the images as they are, and the phases are interleaved in the result.

The filter gradient of a convolution with a window of one element has one position. XLA:CPU computes it as a convolution whose
window is as large as the image.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from ._lowering import Kernel
from ._once import computed_once
from ._result_shape import result_shape

MAX_PHASES = 16
MIN_FILTERS = 12  # with fewer, a phase has too little to do for each element of the images
MIN_POSITIONS = 100  # in each image of the result
LARGE = 1 << 16  # elements of the images of a depthwise convolution


def interleaved_phases(lhs: Array, rhs: Array, **params: Any) -> Array:
    """A convolution of images with zeros between their elements (`lhs_dilation`), as one convolution for each phase."""
    shape = result_shape(lhs, rhs, params)
    counts = _counts(shape, params)
    parts = [_phase(lhs, rhs, phase, counts, params) for phase in itertools.product(*map(range, params["lhs_dilation"]))]
    return _interleaved(jnp.stack(parts), shape, params)


def _counts(shape: Sequence[int], params: Any) -> list[int]:
    """How many elements of the result each phase has, along each axis of space."""
    return [-(-shape[axis] // s) for axis, s in zip(params["dimension_numbers"].out_spec[2:], params["lhs_dilation"], strict=True)]


def _spans(size: int, s: int, low: int) -> list[tuple[int, int, int]]:
    """For each phase along one axis: the first element of the filter, the shift, and the number of elements.

    Position o of the result meets element i of the image at element t of the filter if ``o - low + t == s * i``. With
    ``o == s * a + phase`` and ``t == first + s * u``, this is ``i == a + shift + u``.
    """
    firsts = [(low - phase) % s for phase in range(s)]
    return [(first, (phase - low + first) // s, len(range(first, size, s))) for phase, first in enumerate(firsts)]


def _interleaved(stacked: Array, shape: Sequence[int], params: Any) -> Array:
    """The result, from its phases, which the first axis of `stacked` counts."""
    space, dilation = params["dimension_numbers"].out_spec[2:], params["lhs_dilation"]
    apart = stacked.reshape(*dilation, *stacked.shape[1:])
    order: list[int] = []
    sizes = list(stacked.shape[1:])
    for axis in range(len(shape)):
        order.append(len(dilation) + axis)
        if axis in space:
            order.append(space.index(axis))
            sizes[axis] *= dilation[space.index(axis)]
    return lax.slice(lax.transpose(apart, order).reshape(sizes), [0] * len(shape), shape)


def _phase(lhs: Array, rhs: Array, phase: Sequence[int], counts: Sequence[int], params: Any) -> Array:
    """The elements of the result at the positions ``s * a + phase``, for each a below `counts`."""
    spec = params["dimension_numbers"]
    filters, images, padding = rhs, lhs, []
    for k, s in enumerate(params["lhs_dilation"]):
        low, high = params["padding"][k]
        if s > 1:
            window, image = spec.rhs_spec[2 + k], spec.lhs_spec[2 + k]
            first, shift, size = _spans(rhs.shape[window], s, low)[phase[k]]
            filters = _every(filters, first, s, window)
            low, high = -shift, counts[k] - 1 + shift + size - lhs.shape[image]
        images, edges = _cropped(images, spec.lhs_spec[2 + k], low, high)
        padding.append(edges)
    return _convolved(images, filters, {**params, "padding": tuple(padding), "lhs_dilation": (1,) * len(padding)}, counts)


def _convolved(images: Array, filters: Array, params: Any, counts: Sequence[int]) -> Array:
    if 0 not in filters.shape and 0 not in images.shape:
        return lax.conv_general_dilated_p.bind(images, filters, **params)
    spec = params["dimension_numbers"]
    sizes = {spec.out_spec[0]: images.shape[spec.lhs_spec[0]], spec.out_spec[1]: filters.shape[spec.rhs_spec[0]]}
    sizes |= dict(zip(spec.out_spec[2:], counts, strict=True))
    return jnp.zeros([sizes[axis] for axis in range(images.ndim)], params["preferred_element_type"] or images.dtype)


def _every(filters: Array, first: int, s: int, axis: int) -> Array:
    return lax.slice_in_dim(filters, min(first, filters.shape[axis]), None, s, axis)


def _cropped(images: Array, axis: int, low: int, high: int) -> tuple[Array, tuple[int, int]]:
    """Take what negative padding removes from the images, and return the padding that is left."""
    size = images.shape[axis]
    start, stop = min(max(-low, 0), size), max(size - max(-high, 0), 0)
    return lax.slice_in_dim(images, start, max(stop, start), 1, axis), (max(low, 0), max(high, 0))


def product(lhs: Array, rhs: Array, **params: Any) -> Array:
    """A convolution whose result has one position: a product of two matrices."""
    spec = params["dimension_numbers"]
    for k, (apart, (low, _)) in enumerate(zip(params["rhs_dilation"], params["padding"], strict=True)):
        image, window = spec.lhs_spec[2 + k], spec.rhs_spec[2 + k]
        first = max(-(-low // apart), 0)  # element t of the window meets element t * apart - low of the image
        last = min((lhs.shape[image] - 1 + low) // apart, rhs.shape[window] - 1)
        stop = max(last + 1, first)
        rhs = lax.slice_in_dim(rhs, first, stop, 1, window)
        begin = min(max(first * apart - low, 0), lhs.shape[image])
        lhs = lax.slice_in_dim(lhs, begin, begin + max((stop - first - 1) * apart + 1, 0) if stop > first else begin, apart, image)
    result = lax.dot_general(
        lhs,
        rhs,
        ((spec.lhs_spec[1:], spec.rhs_spec[1:]), ((), ())),
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )
    if spec.out_spec[0] > spec.out_spec[1]:
        result = result.T
    return lax.expand_dims(result, spec.out_spec[2:])


def _choose(lhs: Any, rhs: Any, **params: Any) -> Any:
    if not jnp.issubdtype(lhs.dtype, jnp.floating) or lhs.dtype != rhs.dtype:
        return None
    shape = result_shape(lhs, rhs, params)
    if params["batch_group_count"] > 1:
        return None
    dilated = [k for k, s in enumerate(params["lhs_dilation"]) if s > 1]
    if not dilated:
        space = params["dimension_numbers"].out_spec[2:]
        alone = bool(space) and all(shape[axis] == 1 for axis in space) and params["feature_group_count"] == 1
        return product if alone else None
    if math.prod(params["lhs_dilation"]) > MAX_PHASES:
        return None
    apart = any(params["rhs_dilation"][k] > 1 or params["window_strides"][k] > 1 for k in dilated)
    return None if apart or not _pays(rhs, shape, params) else interleaved_phases


def _pays(rhs: Any, shape: Sequence[int], params: Any) -> bool:
    """Whether phases are faster than XLA's own convolution with zeros. This was measured, see docs/kernels.md."""
    spec = params["dimension_numbers"]
    window = [rhs.shape[axis] for axis in spec.rhs_spec[2:]]
    space = [shape[axis] for axis in spec.out_spec[2:]]
    if math.prod(window) > math.prod(space):  # the filter gradient of a transposed convolution
        return min(shape[axis] for axis in spec.out_spec[:2]) > 1
    if params["feature_group_count"] > 1:
        return True
    overlapping = any(w != s for w, s in zip(window, params["lhs_dilation"], strict=True))
    return overlapping and shape[spec.out_spec[1]] >= MIN_FILTERS and math.prod(space) >= MIN_POSITIONS


def _phases_of_what_is_made_first(lhs: Array, rhs: Array, **params: Any) -> Array:
    """Do what `interleaved_phases` does for a depthwise convolution, each of whose phases reads nearly all of the images."""
    return interleaved_phases(computed_once(lambda x: x, lhs), rhs, **params)


def _choose_depthwise(lhs: Any, rhs: Any, **params: Any) -> Any:
    chosen = _choose(lhs, rhs, **params)
    depthwise = chosen is interleaved_phases and params["feature_group_count"] > 1
    return _phases_of_what_is_made_first if depthwise and lhs.size >= LARGE else None


KERNELS = (
    Kernel("strided_conv", lax.conv_general_dilated_p, _choose),
    # Only on one device: XLA might have to ask the others for the element on which the condition depends.
    Kernel("strided_conv", lax.conv_general_dilated_p, _choose_depthwise, is_local=True),
)
