"""Gives JAX another lowering of a primitive on CPUs. No other file uses ``jax.interpreters.mlir``.

JAX calls the rule when it lowers a program. The rule uses the kernel if it is on, accepts the operands, and neither they nor the
results are empty. Otherwise it uses `plain`, which lowers to the same operation as JAX's own rule. On other platforms, JAX keeps
its own rule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from .._switch import choose_here, chosen, is_on
from ._once import BARRIERS_HOLD, computed_once

PRODUCTS = "dot"  # the family of products of matrices, which other kernels compute with


@dataclass(frozen=True)
class Kernel:
    """Another lowering of a primitive.

    Args:
        family: The name that switches it, which is a key of ``_switch.FAMILIES``.
        primitive: The primitive.
        choose: ``choose(*avals, **params)`` returns the function of ``(*operands, **params)`` to lower with, or None to use
            `plain`.
        plain: A function of ``(*operands, **params)`` that does what JAX does, in terms of other primitives. Without it, the
            lowering that was there before is used: JAX's own, or that of another kernel.
        is_local: Whether XLA calls machine code of this process. Such a program cannot be exported, and XLA cannot divide the call
            among devices. So the kernel is only used where each device computes what is its own.
        is_fusible: Whether XLA may fuse its operations into each user of its result, and round differently in each. It computes the
            operation that the kernel takes the place of once, so the kernel is computed once, too (`_once.py`).
    """

    family: str
    primitive: Primitive
    choose: Callable[..., Callable[..., Any] | None]
    plain: Callable[..., Any] | None = None
    is_local: bool = False
    is_fusible: bool = False


def _is_of_this_device(ctx: Any) -> bool:
    """Whether a program runs in this process, and its operations are those of one device."""
    if getattr(ctx.module_context.lowering_parameters, "for_export", True):
        return False
    axes = ctx.module_context.axis_context
    if hasattr(axes, "manual_axes"):  # within shard_map
        return set(axes.manual_axes) == set(axes.mesh.axis_names)
    return getattr(axes, "num_devices", 0) == 1


def _needs_that(kernel: Kernel) -> bool:
    """Whether a kernel is only for the operations of one device in this process."""
    return kernel.is_local or (kernel.is_fusible and not BARRIERS_HOLD)


def _once(compute: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands, **params: computed_once(lambda *operands: compute(*operands, **params), *operands)


def _has_elements(ctx: Any) -> bool:
    """Whether neither an operand nor a result is empty, and all sizes are known, which they are not always in jax.export."""
    sizes = [size for aval in (*ctx.avals_in, *ctx.avals_out) for size in aval.shape]
    return all(isinstance(size, int) and size > 0 for size in sizes)


def present_rule(primitive: Primitive) -> Callable[..., Any] | None:
    """The lowering of a primitive on CPUs, or None if this version of JAX keeps it in another place."""
    entry = getattr(mlir, "_platform_specific_lowerings", {}).get("cpu", {}).get(primitive)
    return getattr(entry, "rule", None)


def register(kernel: Kernel) -> bool:
    """Make `kernel` the lowering of its primitive on CPUs until the process ends.

    Returns:
        False if nothing was registered, because there is nothing to use where the kernel does not apply.
    """
    before = present_rule(kernel.primitive)
    if kernel.plain is None and before is None:
        return False

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        compute = None
        if is_on(kernel.family) and _has_elements(ctx) and (_is_of_this_device(ctx) or not _needs_that(kernel)):
            compute = kernel.choose(*ctx.avals_in, **params)
            if compute and kernel.is_fusible:
                compute = _once(compute)
        compute = compute or kernel.plain
        if compute is None:
            assert before is not None  # this was asked above
            return before(ctx, *operands, **params)
        with choose_here(chosen() - {PRODUCTS}):  # what kernels compute was measured with products as they are written
            return mlir.lower_fun(compute, multiple_results=kernel.primitive.multiple_results)(ctx, *operands, **params)

    mlir.register_lowering(kernel.primitive, lower, platform="cpu")
    return True


def traced(operation: Callable[..., Any], dtype: Any) -> tuple[Any, Any]:
    """The jaxpr and the constants of an operation on two scalars, in the form that primitives with an inner computation take."""
    scalar = jax.ShapeDtypeStruct((), dtype)
    closed = jax.make_jaxpr(operation)(scalar, scalar)
    return closed.jaxpr, tuple(closed.consts)
