"""Sums over two CPU workers of one device: each sends the other its array, and both add them up.

Gloo's all-reduce sends each half of the array twice: first to the worker that adds it up, and then the sum back. It waits for the
other worker before each, so on a link with a delay it takes twice as long as one exchange. For two workers, the whole array is no
more than its halves twice. Both add the same two numbers, so their sums are the same bits, and those of the all-reduce.

On one host, each worker reads a large array from the other's memory (`_peer_swap.py`), if it is the only large one of a program.
With two of them, the workers might come to them in different orders, because XLA knows none between them.

This is another lowering of ``lax.psum`` on CPUs. So nothing that reads a traced program has to know of it.
"""

import functools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax import lax
from jax.interpreters import mlir

from . import _peer_swap

LARGE = 1 << 21  # bytes from which reading an array from memory is faster (measured: 0.9 of the time at 1 MB, 0.75 at 2, 0.5 at 10)

_SWAP = ((0, 1), (1, 0))


class _Program(threading.local):
    """What is lowered in this thread."""

    channel: Callable[[], int | None] | None = None


_program = _Program()


@contextmanager
def program_with(channel: Callable[[], int | None]) -> Iterator[None]:
    """Say what is lowered within the block.

    Args:
        channel: Returns the number of the one large sum of the program, which is the same on both workers; None if there are more.
    """
    before, _program.channel = _program.channel, channel
    try:
        yield
    finally:
        _program.channel = before


@functools.cache
def install() -> None:
    """Lower sums over two CPU workers so from now on, until the process ends. All other sums stay as they are."""
    before = _present_rule()
    if before is None:  # JAX keeps its rules in another place: all sums stay all-reduces
        return

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        axes = params.get("axes", ())
        others = {name: value for name, value in params.items() if name != "axes" and value is not None}
        if others or len(axes) != 1 or not _is_of_two_workers(ctx, axes[0]):
            return before(ctx, *operands, **params)

        def swapped(*arrays: Any) -> Any:
            sums = [x + _theirs(x, axes[0]) for x in arrays]
            return sums if lax.psum_p.multiple_results else sums[0]

        return mlir.lower_fun(swapped, multiple_results=lax.psum_p.multiple_results)(ctx, *operands)

    mlir.register_lowering(lax.psum_p, lower, platform="cpu")


def is_large(aval: Any) -> bool:
    """Whether an array is read from memory, if there is only one such sum in a program."""
    return math.prod(aval.shape) * aval.dtype.itemsize >= LARGE


def _theirs(x: Any, axis: Any) -> Any:
    """Return the other worker's array."""
    if _program.channel is not None and _peer_swap.is_open() and is_large(x):
        channel = _program.channel()
        if channel is not None:
            return _peer_swap.swap(x, channel)
    return lax.ppermute(x, axis, _SWAP)


def _present_rule() -> Any:
    """Return JAX's own lowering of sums on CPUs, or None."""
    of_cpus = getattr(mlir, "_platform_specific_lowerings", {}).get("cpu", {}).get(lax.psum_p)
    return getattr(of_cpus or getattr(mlir, "_lowerings", {}).get(lax.psum_p), "rule", None)


def _is_of_two_workers(ctx: Any, axis: Any) -> bool:
    """Whether an operation is one of two workers of one device each, along their axis."""
    where = ctx.module_context.axis_context
    mesh, manual = getattr(where, "mesh", None), getattr(where, "manual_axes", ())
    if not isinstance(mesh, jax.sharding.Mesh) or mesh.size != 2 or set(manual) != set(mesh.axis_names):
        return False  # an AbstractMesh, of a `shard_map` within another, has no devices
    return mesh.shape.get(axis) == 2 and len({device.process_index for device in mesh.devices.flat}) == 2
