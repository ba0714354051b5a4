"""A variable that lies in slices, as the path of a gradient reads it: whole, and gathered again for the backward pass."""

from typing import Any

import jax
import jax.extend.core as jex
from jax import lax
from jax.core import ShapedArray
from jax.interpreters import ad, mlir

from ..replicas._collectives import AXIS

# gathered_p maps a slice, and a shift of the shape of the whole, which is zero, to the whole. Its gradient goes to the shift,
# because each replica has its own gradient of the whole.
gathered_p = jex.Primitive("replicant_gathered")


@gathered_p.def_abstract_eval
def _shape(part: Any, shift: Any, *, axis: int) -> Any:
    del axis
    return ShapedArray(shift.shape, part.dtype)


def _gather(part: Any, shift: Any, *, axis: int) -> jax.Array:
    del shift
    return lax.all_gather(part, AXIS, axis=axis, tiled=True)


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    return gathered_p.bind(*primals, **params), tangents[1]


gathered_p.def_impl(_gather)
mlir.register_lowering(gathered_p, mlir.lower_fun(_gather, multiple_results=False))
ad.primitive_jvps[gathered_p] = _jvp


def gathered_again(fn: Any) -> Any:
    """Return `fn`, whose backward pass gathers again: it keeps all of its forward pass but what was gathered."""
    return jax.checkpoint(fn, policy=_policy)


def _policy(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive is not gathered_p
