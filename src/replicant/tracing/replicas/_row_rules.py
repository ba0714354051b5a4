"""How the rows of a batch pass through each operation of a traced step: the rules of ``_batch_split.py``.

An array is either whole, which means the same on every replica, or it has rows: each replica has its part along one axis. A rule
says along which axis the results of an operation have rows, or that each replica computes a summand of them. What has no rule, or
mixes rows in another way than by a sum, is refused.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

Rows: TypeAlias = int | None  # the axis along which an array has rows; None if it is whole


class Mixed(Exception):
    """An operation mixes rows in a way for which there is no rule. This never reaches the user."""


@dataclasses.dataclass(frozen=True)
class Ruling:
    """What each replica does for one equation.

    Args:
        inputs: Along which axis each operand has rows; a whole one is cut there.
        outputs: The same for the results.
        sizes: The parameters of the operation that hold sizes, and the place of that of the rows in each, which a replica divides.
        summed: Whether the results are summands, which the replicas must add up.
        counts_once: Operands that count on one replica only, because the results are added up.
    """

    inputs: Sequence[Rows]
    outputs: Sequence[Rows]
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    summed: bool = False
    counts_once: Sequence[int] = ()


Rule: TypeAlias = Callable[[Any, list[Rows]], Ruling]


def rule_of(eqn: Any, rows: list[Rows]) -> Ruling:
    """Return what each replica does for an equation whose operands have `rows`, at least one of them not None.

    Raises:
        Mixed: If there is no rule for it.
    """
    rule = RULES.get(eqn.primitive.name)
    if rule is None:
        raise Mixed(eqn.primitive.name)
    return rule(eqn, rows)


def _need(condition: bool, eqn: Any) -> None:
    if not condition:
        raise Mixed(eqn.primitive.name)


def _shape(var: Any) -> tuple[int, ...]:
    return tuple(var.aval.shape)


def _one_axis(eqn: Any, rows: Sequence[Rows]) -> int:
    """Return the axis along which operands have rows, which must be the same for all that have any."""
    axes = {axis for axis in rows if axis is not None}
    _need(len(axes) == 1, eqn)
    return axes.pop()


def _elementwise(eqn: Any, rows: list[Rows]) -> Ruling:
    axis = _one_axis(eqn, rows)
    shapes, shape = [_shape(v) for v in eqn.invars], _shape(eqn.outvars[0])
    _need(all(each == () or len(each) == len(shape) for each in shapes), eqn)
    _need(all(each[axis] == shape[axis] for each, x in zip(shapes, rows, strict=True) if x is not None), eqn)
    return Ruling([axis if each and each[axis] == shape[axis] else None for each in shapes], [axis])


def _each(_: Any, rows: list[Rows]) -> Ruling:
    return Ruling(rows, rows)


def _bitcast(eqn: Any, rows: list[Rows]) -> Ruling:
    _need(_shape(eqn.invars[0]) == _shape(eqn.outvars[0]), eqn)
    return Ruling(rows, rows)


def _broadcast(eqn: Any, rows: list[Rows]) -> Ruling:
    axis = rows[0]
    assert axis is not None, "only the operand has rows"
    _need(all(x is None for x in rows[1:]), eqn)
    out = eqn.params["broadcast_dimensions"][axis]
    shape = eqn.params["shape"]
    _need(shape[out] == _shape(eqn.invars[0])[axis], eqn)
    return Ruling(rows, [out], {"shape": out})


def _reshape(eqn: Any, rows: list[Rows]) -> Ruling:
    axis, new = rows[0], tuple(eqn.params["new_sizes"])
    _need(axis is not None and eqn.params.get("dimensions") is None, eqn)
    before = math.prod(_shape(eqn.invars[0])[:axis])
    fits = [i for i, size in enumerate(new) if math.prod(new[:i]) == before and size > 1]
    _need(bool(fits), eqn)
    return Ruling(rows, [fits[0]], {"new_sizes": fits[0]})


def _transpose(eqn: Any, rows: list[Rows]) -> Ruling:
    return Ruling(rows, [tuple(eqn.params["permutation"]).index(rows[0])])


def _without(axis: int, removed: Sequence[int]) -> int:
    return axis - sum(each < axis for each in removed)


def _squeeze(eqn: Any, rows: list[Rows]) -> Ruling:
    axis = cast(Any, rows[0])
    _need(axis not in eqn.params["dimensions"], eqn)
    return Ruling(rows, [_without(axis, eqn.params["dimensions"])])


def _reduce(eqn: Any, rows: list[Rows]) -> Ruling:
    axis = _one_axis(eqn, rows)
    axes = eqn.params["axes"]
    if axis not in axes:
        return Ruling(rows, [_without(axis, axes)] * len(eqn.outvars))
    _need(eqn.primitive.name == "reduce_sum", eqn)
    return Ruling(rows, [None], summed=True)


def _along(name: str) -> Rule:
    """Return the rule of operations that mix values along one axis, which the parameter `name` tells, or along several."""

    def rule(eqn: Any, rows: list[Rows]) -> Ruling:
        axis, mixed = _one_axis(eqn, rows), eqn.params[name]
        _need(axis != mixed if isinstance(mixed, int) else axis not in mixed, eqn)
        return Ruling([axis] * len(rows), [axis] * len(eqn.outvars))

    return rule


def _top_k(eqn: Any, rows: list[Rows]) -> Ruling:
    axis = _one_axis(eqn, rows)
    _need(axis != eqn.params.get("axis", len(_shape(eqn.invars[0])) - 1) and axis != len(_shape(eqn.invars[0])) - 1, eqn)
    return Ruling(rows, [axis] * len(eqn.outvars))


def _stack(eqn: Any, rows: list[Rows]) -> Ruling:
    axis = _one_axis(eqn, rows)
    return Ruling([axis] * len(rows), [axis + (eqn.params["axis"] <= axis)])


def _unstack(eqn: Any, rows: list[Rows]) -> Ruling:
    axis, removed = _one_axis(eqn, rows), eqn.params["axis"]
    _need(axis != removed, eqn)
    return Ruling(rows, [_without(axis, [removed])] * len(eqn.outvars))


def _tile(eqn: Any, rows: list[Rows]) -> Ruling:
    axis = cast(Any, rows[0])
    _need(eqn.params["reps"][axis] == 1, eqn)
    return Ruling(rows, [axis])


def _pad(eqn: Any, rows: list[Rows]) -> Ruling:
    axis = cast(Any, rows[0])
    _need(axis is not None and tuple(eqn.params["padding_config"][axis]) == (0, 0, 0), eqn)
    return Ruling(rows, [axis])


def _slice(eqn: Any, rows: list[Rows]) -> Ruling:
    axis = cast(Any, rows[0])
    params, size = eqn.params, _shape(eqn.invars[0])[axis]
    strides = params["strides"]
    _need(params["start_indices"][axis] == 0 and params["limit_indices"][axis] == size, eqn)
    _need(strides is None or strides[axis] == 1, eqn)
    return Ruling(rows, [axis], {"limit_indices": axis})


def _dynamic_slice(eqn: Any, rows: list[Rows]) -> Ruling:
    _need(rows[0] is not None and all(x is None for x in rows[1:]), eqn)
    axis = cast(int, rows[0])
    sizes: Any = eqn.params["slice_sizes"]
    _need(sizes[axis] == _shape(eqn.invars[0])[axis], eqn)
    return Ruling(rows, [axis], {"slice_sizes": axis})


def _dynamic_update_slice(eqn: Any, rows: list[Rows]) -> Ruling:
    axis = _one_axis(eqn, rows[:2])
    _need(all(x is None for x in rows[2:]), eqn)
    _need(_shape(eqn.invars[0])[axis] == _shape(eqn.invars[1])[axis], eqn)
    return Ruling([axis, axis, *rows[2:]], [axis])


def _window(eqn: Any, rows: list[Rows]) -> Ruling:
    axis, params = _one_axis(eqn, rows), eqn.params
    dilations = [params.get(key) for key in ("base_dilation", "window_dilation")]
    untouched = params["window_dimensions"][axis] == 1 and params["window_strides"][axis] == 1
    untouched &= tuple(params["padding"][axis]) == (0, 0) and all(x is None or x[axis] == 1 for x in dilations)
    _need(untouched, eqn)
    return Ruling([axis if _shape(v) else None for v in eqn.invars], [axis] * len(eqn.outvars))


def _dot(eqn: Any, rows: list[Rows]) -> Ruling:
    contracting, batch = eqn.params["dimension_numbers"]
    left, right = cast(list[Any], rows)
    for pairs, summed in ((contracting, True), (batch, False)):
        for place, pair in enumerate(zip(*pairs, strict=True)):
            if rows[0] == pair[0] or rows[1] == pair[1]:
                _need(left in (None, pair[0]) and right in (None, pair[1]), eqn)
                return Ruling(pair, [None if summed else place], summed=summed)
    _need(left is None or right is None, eqn)  # each row with each row
    free = [
        [i for i in range(len(_shape(v))) if i not in contracting[side] and i not in batch[side]]
        for side, v in enumerate(eqn.invars)
    ]
    out = len(batch[0]) + (free[0].index(cast(int, left)) if right is None else len(free[0]) + free[1].index(cast(int, right)))
    return Ruling(rows, [out])


def _conv(eqn: Any, rows: list[Rows]) -> Ruling:
    params = eqn.params
    numbers, (left, right) = params["dimension_numbers"], rows
    if left == numbers.lhs_spec[0] and right is None and params["batch_group_count"] == 1:
        return Ruling(rows, [numbers.out_spec[0]])
    features = numbers.lhs_spec[1], numbers.rhs_spec[1]  # over which a convolution sums: for the gradient of its weights
    _need(params["feature_group_count"] == 1 and all(x in (None, y) for x, y in zip(rows, features, strict=True)), eqn)
    return Ruling(features, [None], summed=True)


def _gather(eqn: Any, rows: list[Rows]) -> Ruling:
    operand, indices = cast(list[Any], rows)
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    batches, rank = numbers.operand_batching_dims, len(_shape(eqn.outvars[0]))
    if operand is None or operand in batches:
        if operand is not None:
            wanted = numbers.start_indices_batching_dims[batches.index(operand)]
            _need(indices in (None, wanted), eqn)
            indices = wanted
        elif indices in numbers.start_indices_batching_dims:
            operand = batches[numbers.start_indices_batching_dims.index(indices)]
        _need(indices < len(_shape(eqn.invars[1])) - 1, eqn)
        places = [i for i in range(rank) if i not in numbers.offset_dims]
        return Ruling([operand, indices], [places[indices]])
    fixed = (*numbers.collapsed_slice_dims, *batches)
    whole = operand not in (*fixed, *numbers.start_index_map) and sizes[operand] == _shape(eqn.invars[0])[operand]
    _need(indices is None and whole, eqn)
    offsets = [i for i in range(len(sizes)) if i not in fixed]
    out = numbers.offset_dims[offsets.index(operand)]
    return Ruling(rows, [out], {"slice_sizes": operand})


def _scatter_add(eqn: Any, rows: list[Rows]) -> Ruling:
    operand, indices, updates = cast(list[Any], rows)
    numbers = eqn.params["dimension_numbers"]
    places = [i for i in range(len(_shape(eqn.invars[2]))) if i not in numbers.update_window_dims]
    batches, at = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
    if operand is not None and operand not in batches:  # a window that has all rows
        fixed = (*numbers.inserted_window_dims, *batches)
        _need(indices is None and operand not in (*fixed, *numbers.scatter_dims_to_operand_dims), eqn)
        windows = [i for i in range(len(_shape(eqn.invars[0]))) if i not in fixed]
        wanted = numbers.update_window_dims[windows.index(operand)]
        same_size = _shape(eqn.invars[2])[wanted] == _shape(eqn.invars[0])[operand]
        _need(updates in (None, wanted) and same_size, eqn)
        return Ruling([operand, None, wanted], [operand])
    if operand is not None:
        indices_axis = at[batches.index(operand)]
    elif indices is not None:
        indices_axis = indices
    else:
        _need(updates in places, eqn)
        indices_axis = places.index(updates)
    _need(indices in (None, indices_axis) and indices_axis < len(places), eqn)
    _need(updates in (None, places[indices_axis]), eqn)
    if indices_axis in at:
        operand = batches[at.index(indices_axis)]
        return Ruling([operand, indices_axis, places[indices_axis]], [operand])
    return Ruling([None, indices_axis, places[indices_axis]], [None], summed=True, counts_once=(0,))


_ELEMENTWISE = (
    "abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp clz convert_element_type copy cos cosh "
    "digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow is_finite le lgamma log log1p log2 "
    "logistic lt max min mul ne neg nextafter not one_minus_square or polygamma polynomial population_count pow real "
    "reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt "
    "square stop_gradient sub tan tanh xor "
)
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"), _reduce),
    **dict.fromkeys(("argmax", "argmin"), _reduce),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "split"), _along("axis")),
    **dict.fromkeys(("reduce_window_max", "reduce_window_min", "reduce_window_sum", "select_and_scatter_add"), _window),
    "bitcast_convert_type": _bitcast,
    "broadcast_in_dim": _broadcast,
    "concatenate": _along("dimension"),
    "conv_general_dilated": _conv,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "optimization_barrier": _each,
    "pad": _pad,
    "reshape": _reshape,
    "rev": _along("dimensions"),
    "scatter-add": _scatter_add,
    "slice": _slice,
    "sort": _along("dimension"),
    "squeeze": _squeeze,
    "stack": _stack,
    "tile": _tile,
    "top_k": _top_k,
    "transpose": _transpose,
    "unstack": _unstack,
}
