"""The seam to JAX: another lowering of a primitive on CPUs. No other file names ``jax.interpreters.mlir``.

A rule is asked when a program is lowered. It computes with the kernel where the kernel is on and accepts the operands, and
otherwise with `plain`, which lowers to the same operation as JAX's own rule. Other platforms keep JAX's rule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from ._switch import is_on


@dataclass(frozen=True)
class Kernel:
    """One primitive's other lowering.

    Args:
        family: the name that switches it (a key of ``_switch.FAMILIES``).
        primitive: whose lowering it is.
        choose: ``choose(*avals, **params)`` gives the function of ``(*operands, **params)`` to lower with, or None for `plain`.
        plain: function of ``(*operands, **params)``: what JAX does, in terms of other primitives.
        rule: JAX's own lowering (``own_rule``), where no other primitives say the same.
    """

    family: str
    primitive: Primitive
    choose: Callable[..., Callable[..., Any] | None]
    plain: Callable[..., Any] | None = None
    rule: Callable[..., Any] | None = None


def own_rule(primitive: Primitive) -> Callable[..., Any] | None:
    """JAX's own lowering of a primitive on CPUs; None in a JAX that keeps it elsewhere than those this was written for."""
    entry = getattr(mlir, "_platform_specific_lowerings", {}).get("cpu", {}).get(primitive)
    return getattr(entry, "rule", None)


def register(kernel: Kernel) -> None:
    """Make `kernel` the lowering of its primitive on CPUs, for as long as the process lives."""

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        compute = None
        static = all(isinstance(size, int) for aval in ctx.avals_in for size in aval.shape)  # jax.export has symbols too
        if is_on(kernel.family) and static:
            compute = kernel.choose(*ctx.avals_in, **params)
        compute = compute or kernel.plain
        if compute is None:
            assert kernel.rule is not None, "a kernel has one of both"
            return kernel.rule(ctx, *operands, **params)
        return mlir.lower_fun(compute, multiple_results=False)(ctx, *operands, **params)

    mlir.register_lowering(kernel.primitive, lower, platform="cpu")


def traced(operation: Callable[..., Any], dtype: Any) -> tuple[Any, Any]:
    """The jaxpr and constants of an operation on two scalars, as primitives with a computation inside take them."""
    scalar = jax.ShapeDtypeStruct((), dtype)
    closed = jax.make_jaxpr(operation)(scalar, scalar)
    return closed.jaxpr, tuple(closed.consts)
