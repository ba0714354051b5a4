"""The gradients of JAX (``jax.grad``, ``nnx.grad``) through the exchanges of a ragged step.

A reduction and a concatenation are linear, so the tangents are exchanged in the same way. The cotangents go the opposite way: each
replica gets its part of those of all replicas. These are exchanges of their own, which all replicas make in the same order.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from ...errors import RaggedStepError
from ..jaxprs._marks import exchange_p

Shapes = tuple[tuple[jax.ShapeDtypeStruct, ...], ...]  # of what each replica brings


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    answers = exchange_p.bind(*primals, **params)
    if all(isinstance(tangent, ad.Zero) for tangent in tangents):
        return answers, list(map(_zero, answers))
    if params["in_shapes"] is None:
        raise RaggedStepError(
            f"The replicas have different numbers of rows in this step, and a gradient of JAX goes through {params['label']}. In "
            "such a step, only a replicant.GradientTape differentiates it: record the loss with a tape, or move it out of the "
            "function that you differentiate."
        )
    chosen = [i for i, x in enumerate(primals) if jnp.issubdtype(x.dtype, jnp.inexact)]  # the others have no tangents
    moved = [ad.instantiate_zeros(tangents[i]) for i in chosen]
    in_shapes = tuple(tuple(shapes[i] for i in chosen) for shapes in params["in_shapes"])
    out_shapes = tuple(params["out_shapes"][i] for i in chosen)
    found = exchange_p.bind(*moved, **params | {"in_shapes": in_shapes, "out_shapes": out_shapes})
    results = list(map(_zero, answers))
    for i, tangent in zip(chosen, found, strict=True):
        results[i] = tangent
    return answers, results


def _zero(x: Any) -> Any:
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def _transpose(cotangents: Sequence[Any], *operands: Any, **params: Any) -> Sequence[Any]:
    joint, in_shapes, label = params["joint"], params["in_shapes"], params["label"]
    back = {
        "joint": _transposed(joint, in_shapes),
        "label": label if label.startswith(_BACK) else _BACK + label,
        "agrees": bool(params["rule"]),  # a sum is the same on all replicas, and each gets its own part of what was gathered
        "in_shapes": tuple(map(tuple, jax.eval_shape(joint, list(map(list, in_shapes))))),
        "out_shapes": tuple(jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in operands),
    }
    found = exchange_p.bind(*map(ad.instantiate_zeros, cotangents), **params | back)
    return [x if ad.is_undefined_primal(operand) else None for x, operand in zip(found, operands, strict=True)]


_BACK = "the gradient of "


def _transposed(joint: Callable[..., Any], in_shapes: Shapes) -> Callable[..., Any]:
    return lambda rows: jax.linear_transpose(joint, list(map(list, in_shapes)))(rows)[0]


exchange = exchange_p.bind  # with the rules below
ad.primitive_jvps[exchange_p] = _jvp
ad.primitive_transposes[exchange_p] = _transpose
