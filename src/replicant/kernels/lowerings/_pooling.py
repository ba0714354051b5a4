"""Computes pooling without scatters, with elementwise operations on one strided slice for each position of the window.

XLA:CPU walks through windows element by element. With a slice for each position of the window, the loops run over contiguous
channels, and XLA vectorizes them and spreads them over the cores. The gradient of max pooling is 4 to 20 times as fast.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from ._lowering import Kernel, traced

Sizes = Sequence[int]
Padding = Sequence[tuple[int, int]]

MAX_POSITIONS = 64  # each of them adds a slice to the program
_WIDE = ("float32", "float64")
_FLOATS = (*_WIDE, "bfloat16", "float16")
_NOWHERE = -(1 << 20)  # makes the codes of positions beyond the window smaller than all others


def positions(window: Sizes) -> Iterator[tuple[int, ...]]:
    """Yield the positions in a window, row by row."""
    return itertools.product(*map(range, window))


def at(operand: Array, position: Sizes, out: Sizes, strides: Sizes) -> Array:
    """The element at `position` of every window: an array of shape `out`."""
    limits = [p + (n - 1) * s + 1 for p, n, s in zip(position, out, strides, strict=True)]
    return lax.slice(operand, position, limits, strides)


def padded(operand: Array, value: float, padding: Padding) -> Array:
    """Pad `operand` with `value`."""
    return lax.pad(operand, jnp.asarray(value, operand.dtype), [(low, high, 0) for low, high in padding])


def reduce_windows(
    combine: Callable[[Array, Array], Array], identity: float, operand: Array, *, window: Sizes, strides: Sizes, padding: Padding
) -> Array:
    """Reduce every window with `combine`."""
    out = lax.reduce_window_shape_tuple(operand.shape, window, strides, padding)
    operand = padded(operand, identity, padding)
    slices = [at(operand, position, out, strides) for position in positions(window)]
    result = slices[0]
    for other in slices[1:]:
        result = combine(result, other)
    return result


def scatter_to_selected(
    source: Array, operand: Array, *, select_prim: Any, window_dimensions: Sizes, window_strides: Sizes, padding: Padding
) -> Array:
    """Add each element of `source` where its window of `operand` has the maximum (or minimum). The result is zero elsewhere.

    It selects as XLA does: going through the window row by row, an element stays selected while ``select_prim(selected, next)``
    holds. So the first of equal elements is selected, and a NaN is replaced by whatever follows it.

    With strides s, the result is divided into cells of s elements per dim. A cell gets values only from windows that begin in it or
    up to ceil(window / s) - 1 cells before it. It gets the value of such a window at the element that is the selected position of
    the window, counted from its beginning. This is a comparison of whole arrays.
    """
    window, strides, out = window_dimensions, window_strides, source.shape
    least = -math.inf if select_prim is lax.ge_p else math.inf
    selected = _selected(select_prim, padded(operand, least, padding), window, strides, out)
    reach = [-(-w // s) for w, s in zip(window, strides, strict=True)]
    cells = [n + r - 1 for n, r in zip(out, reach, strict=True)]
    around = [(r - 1, r - 1) for r in reach]
    source, selected = padded(source, 0, around), padded(selected, -1, around)
    result = None
    for cells_before in positions(reach):
        start = [r - 1 - b for r, b in zip(reach, cells_before, strict=True)]
        code, dims = _codes(cells, cells_before, window, strides)

        def spread(array: Array, start: Sizes = start, shape: Sizes = code.shape, dims: Sizes = dims) -> Array:
            stop = [b + n for b, n in zip(start, cells, strict=True)]
            return lax.broadcast_in_dim(lax.slice(array, start, stop), shape, dims)

        here = spread(source)
        part = lax.select(lax.eq(spread(selected), code), here, lax.full_like(here, 0))
        result = part if result is None else lax.add(result, part)
    assert result is not None  # a window has at least one position
    result = lax.reshape(result, [n * s for n, s in zip(cells, strides, strict=True)])
    fit = [
        (-low, size - (have - low), 0) for (low, _), size, have in zip(padding, operand.shape, result.shape, strict=True)
    ]  # a negative number cuts off
    return lax.pad(result, jnp.zeros((), result.dtype), fit)


def _selected(select_prim: Any, operand: Array, window: Sizes, strides: Sizes, out: Sizes) -> Array:
    """The number of the selected position of each window, as int32. The positions are numbered row by row."""
    value = number = None
    for i, position in enumerate(positions(window)):
        candidate = at(operand, position, out, strides)
        if value is None or number is None:
            value, number = candidate, lax.full(out, 0, jnp.int32)
        else:
            stays = select_prim.bind(value, candidate)
            value, number = lax.select(stays, value, candidate), lax.select(stays, number, lax.full(out, i, jnp.int32))
    assert number is not None  # a window has at least one position
    return number


def _codes(cells: Sizes, cells_before: Sizes, window: Sizes, strides: Sizes) -> tuple[Array, list[int]]:
    """The number that the selected position must have for every element of every cell, and the dims that count the cells.

    This is for windows that begin `cells_before` cells earlier. After each dim whose stride is not 1, the result has a further dim
    for the elements within a cell. Elements beyond the end of the window have a negative number.
    """
    shape: list[int] = []
    dims: list[int] = []
    for n, s in zip(cells, strides, strict=True):
        dims.append(len(shape))
        shape += [n] if s == 1 else [n, s]
    code = lax.full(shape, 0, jnp.int32)
    for dim, before, w, s in zip(dims, cells_before, window, strides, strict=True):
        place = lax.full(shape, before, jnp.int32) if s == 1 else lax.broadcasted_iota(jnp.int32, shape, dim + 1) + before * s
        code = code * w + lax.select(place < w, place, lax.full(shape, _NOWHERE, jnp.int32))
    return code, dims


def _few_positions(window: Sizes) -> bool:
    return 1 < math.prod(window) <= MAX_POSITIONS


def _small_and_dense(window: Sizes, strides: Sizes) -> bool:
    """Whether XLA itself is faster, as for the gradient of 2x2 average pooling with channels last."""
    return math.prod(window) <= 4 and window[-1] == 1 and all(s == 1 for s in strides)


def _choose_scatter(_: Any, operand: Any, *, select_prim: Any, **params: Any) -> Any:
    window, strides = params["window_dimensions"], params["window_strides"]
    # Windows that share elements add up several values, which with 16 bits are not rounded as in XLA.
    alone = all(w <= s for w, s in zip(window, strides, strict=True))
    dtypes = _FLOATS if alone else _WIDE
    selects = select_prim in (lax.ge_p, lax.le_p)
    return scatter_to_selected if selects and operand.dtype.name in dtypes and _few_positions(window) else None


def _windows(
    family: str,
    primitive: Any,
    combine: Callable[[Array, Array], Array],
    identity: float,
    dtypes: Any,
    *,
    leave: Callable[[Sizes, Sizes], bool] | None = None,
) -> Kernel:
    def compute(operand: Array, *, window_dimensions: Sizes, window_strides: Sizes, padding: Padding, **_: Any) -> Array:
        return reduce_windows(combine, identity, operand, window=window_dimensions, strides=window_strides, padding=padding)

    def choose(operand: Any, *, window_dimensions: Sizes, **params: Any) -> Any:
        dilated = any(d != 1 for d in (*params["base_dilation"], *params["window_dilation"]))
        fits = operand.dtype.name in dtypes and not dilated and _few_positions(window_dimensions)
        left = leave is not None and leave(window_dimensions, params["window_strides"])
        return compute if fits and not left else None

    def plain(operand: Array, *, window_dimensions: Sizes, window_strides: Sizes, padding: Padding, **rest: Any) -> Array:
        first = identity_of(identity, operand)
        # A new function, not `combine` itself, which JAX would turn into the primitive that is being lowered.
        return lax.reduce_window(operand, first, lambda a, b: combine(a, b), window_dimensions, window_strides, padding, **rest)  # noqa: PLW0108

    return Kernel(family, primitive, choose, plain, is_fusible=True)


def identity_of(value: float, like: Array) -> Array:
    """A scalar with the type of `like`: `value`, or the smallest or largest value of the type.

    It varies over a mesh as `like` does.
    """
    fill: Any = value
    if like.dtype == jnp.bool_:
        fill = value > 0
    elif value != 0 and not jnp.issubdtype(like.dtype, jnp.floating):
        limits = jnp.iinfo(like.dtype)
        fill = limits.min if value < 0 else limits.max
    return lax.full_like(like, fill, shape=())


def _plain_scatter(
    source: Array, operand: Array, *, select_prim: Any, window_dimensions: Sizes, window_strides: Sizes, padding: Padding
) -> Array:
    """Use XLA's own operation. The padding is explicit because XLA:CPU needs that."""
    dtype = operand.dtype
    least = identity_of(-math.inf if select_prim is lax.ge_p else math.inf, operand)
    around = [(low, high, 0) for low, high in padding]
    wide = lax.pad(operand, least, around)
    select, select_consts = traced(select_prim.bind, dtype)
    scatter, scatter_consts = traced(lax.bitwise_or if dtype == jnp.bool_ else lax.add, dtype)
    result = lax.select_and_scatter_p.bind(
        wide,
        source,
        lax.full_like(operand, 0, shape=()),
        select_jaxpr=select,
        select_consts=select_consts,
        scatter_jaxpr=scatter,
        scatter_consts=scatter_consts,
        window_dimensions=window_dimensions,
        window_strides=window_strides,
        padding=tuple((0, 0) for _ in padding),
    )
    return lax.slice(result, [low for low, _ in padding], [low + n for (low, _), n in zip(padding, operand.shape, strict=True)])


KERNELS = (
    Kernel("max_pool", lax.select_and_scatter_add_p, _choose_scatter, _plain_scatter, is_fusible=True),
    _windows("max_pool", lax.reduce_window_max_p, lax.max, -math.inf, _FLOATS),
    # With 16 bits, every addition would be rounded.
    _windows("avg_pool", lax.reduce_window_sum_p, lax.add, 0.0, _WIDE, leave=_small_and_dense),
)
