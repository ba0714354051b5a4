"""The gradients of JAX (``jax.grad``, ``nnx.grad``) through the exchanges of a ragged step.

A reduction is linear, so the tangents are reduced in the same way, and so are the cotangents: each replica contributes to the
results of all. These are exchanges of their own, which all replicas make in the same order.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from ...errors import RaggedStepError
from ..jaxprs._marks import exchange_p


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, label: str, out_shapes: Any, **params: Any) -> tuple[Any, Any]:
    answers = exchange_p.bind(*primals, label=label, out_shapes=out_shapes, **params)
    if all(isinstance(tangent, ad.Zero) for tangent in tangents):
        return answers, list(map(_zero, answers))
    if label != "all_reduce":
        raise RaggedStepError(
            f"The replicas have different numbers of rows in this step, and a gradient of JAX goes through {label}, where "
            "exchanges need equal numbers. Move it out of the function that you differentiate, or use a global batch size that is "
            "a multiple of the number of replicas (with drop_remainder=True for the last batch)."
        )
    chosen = [i for i, x in enumerate(primals) if jnp.issubdtype(x.dtype, jnp.inexact)]  # the others have no tangents
    moved = [ad.instantiate_zeros(tangents[i]) for i in chosen]
    found = exchange_p.bind(*moved, label=label, out_shapes=tuple(out_shapes[i] for i in chosen), **params)
    results = list(map(_zero, answers))
    for i, tangent in zip(chosen, found, strict=True):
        results[i] = tangent
    return answers, results


def _zero(x: Any) -> Any:
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def _transpose(cotangents: Sequence[Any], *_: Any, **params: Any) -> Sequence[Any]:
    return exchange_p.bind(*map(ad.instantiate_zeros, cotangents), **params)


exchange = exchange_p.bind  # with the rules below
ad.primitive_jvps[exchange_p] = _jvp
ad.primitive_transposes[exchange_p] = _transpose
