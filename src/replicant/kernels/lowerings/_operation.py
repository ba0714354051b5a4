"""Primitives that compute what a function of arrays computes, unless a kernel lowers them to something faster.

Derivatives and batches are those of the function.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Rows = int | None  # the axis along which an array has rows, or None


def operation(
    name: str,
    compute: Callable[..., Sequence[Any]],
    rows: tuple[Sequence[Rows], Sequence[int]] | None,
    batch: Primitive | None = None,
) -> Primitive:
    """Make a primitive.

    Args:
        name: Its name.
        compute: A function of arrays that returns several. Where no kernel takes its place, it is what is lowered.
        rows: Along which axis each operand and each result has rows, which do not depend on each other. The last operands may be
            missing. A batch of such arrays is computed as one that has the rows of all. None if there is `batch`.
        batch: The primitive that computes a batch of such arrays, along their first axes.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True
    jitted = jax.jit(primitive.bind)

    def compute_now(*operands: Any) -> Sequence[Any]:
        return compute(*operands) if jax.config.jax_disable_jit else jitted(*operands)

    def results(*operands: Any) -> list[Any]:
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in operands]
        return [ShapedArray(out.shape, out.dtype) for out in jax.eval_shape(compute, *shapes)]

    def derivative(operands: Any, tangents: Any) -> tuple[Any, Any]:
        moves = [type(tangent) is not ad.Zero for tangent in tangents]

        def of_moving(*moving: Any) -> list[Any]:
            left = iter(moving)
            return list(compute(*(next(left) if moves else x for x, moves in zip(operands, moves, strict=True))))

        points, directions = (tuple(x for x, moves in zip(some, moves, strict=True) if moves) for some in (operands, tangents))
        return jax.jvp(of_moving, points, directions)

    def batched(operands: Any, axes: Any) -> tuple[Any, Any]:
        if rows is None:
            return _in_batches(batch, operands, axes)
        given = list(zip(operands, axes, rows[0], strict=False))
        if any(row is None and axis is not None for _, axis, row in given):
            out = list(jax.vmap(compute, in_axes=axes)(*operands))
            return out, [0] * len(out)
        size = next(x.shape[axis] for x, axis, _ in given if axis is not None)
        out = primitive.bind(*(x if row is None else _merged(x, axis, row, size) for x, axis, row in given))
        return [_parted(x, row, size) for x, row in zip(out, rows[1], strict=True)], list(rows[1])

    primitive.def_impl(compute_now)
    primitive.def_abstract_eval(results)
    ad.primitive_jvps[primitive] = derivative
    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, mlir.lower_fun(compute, multiple_results=True))
    return primitive


def _in_batches(primitive: Any, operands: Any, axes: Any) -> tuple[Any, Any]:
    """Compute a batch with a primitive whose operands all have it along their first axes."""
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    along = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(operands, axes, strict=True)
    ]
    out = primitive.bind(*along)
    return out, [0] * len(out)


def _merged(x: Any, batched: Rows, row: int, size: int) -> Any:
    """Join the rows of all of a batch."""
    x = jnp.moveaxis(x, batched, row) if batched is not None else jnp.stack([x] * size, row)
    return x.reshape(*x.shape[:row], size * x.shape[row + 1], *x.shape[row + 2 :])


def _parted(x: Any, row: int, size: int) -> Any:
    """Undo `_merged`."""
    return x.reshape(*x.shape[:row], size, x.shape[row] // size, *x.shape[row + 1 :])


def transposes_to(linear: Primitive, num_linear: int, transposed: Callable[..., Sequence[Any]]) -> None:
    """Make a function, such as the `bind` of another primitive, the transposition of a primitive.

    ``linear.bind(*operands)`` must be linear in the first `num_linear` operands. ``transposed(*of_results, *others)`` computes
    their gradients of those of the results and of the other operands.
    """

    def transpose(of_results: Sequence[Any], *operands: Any) -> list[Any]:
        others, linear_operands = operands[num_linear:], operands[:num_linear]
        present = [ad.instantiate_zeros(g) for g in of_results]
        gradients = transposed(*present, *others)
        wanted = map(ad.is_undefined_primal, linear_operands)
        return [g if is_wanted else None for g, is_wanted in zip(gradients, wanted, strict=True)] + [None] * len(others)

    ad.primitive_transposes[linear] = transpose
