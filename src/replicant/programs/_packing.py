"""Lets a small program that runs often have its small variables in packs (``variables/_packed_refs.py``).

The packed program is made of what the other was traced to, and compiled in a thread, while that goes on running. Once it is ready,
both compute some steps. The packed one takes over if all bits of their results are the same. They need not be: LLVM computes
``a * b + c * d`` with a rounding less, at either of the two products, and may choose the other one in other code. With other
numbers, they may still differ later, and then a run that was interrupted would not end with the bits of one that was not. So this
is only done where somebody has asked for it.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.extend.core as jex
import numpy as np

from ..kernels._switch import is_on
from ..tracing._host_calls import host_call_in
from ..variables._packed_refs import PackedRefs
from ..variables._ref import Ref
from ._executable import Executable
from ._segmented import trace_options

FAMILY = "pack"  # the kernel for which this is done

OFTEN = 1000  # runs, after which it is worth while to compile a second program
_ALIKE = 16  # runs of both programs
_TIMED = 16  # runs of each
_LEAST = 4  # arrays that are saved
_MOST_BYTES = 4 << 20  # that the program overwrites, of which each run on trial takes a copy
_MOST_DEBT = 16.0  # so often was each variable read or set, and too few runs were between

Inputs: TypeAlias = tuple[Any, Any, Any]  # the variables that are overwritten, the others, and the arrays of the call

_config: Any = jax.config  # its options are attributes that type checkers do not know
_logger = logging.getLogger("replicant.programs")


class OtherOptions(Exception):
    """JAX traces a packed program again, with other options than those with which the user's function was traced."""


class Packed:
    """A program with packs, and the variables that it overwrites.

    Args:
        executable: The program without.
        refs: The variables that it overwrites.
        inputs: Its inputs.
    """

    def __init__(self, executable: Executable, refs: PackedRefs, inputs: Sequence[Any]):
        traced = executable.traced(*inputs)
        self.refs, self._closed, self._form = refs, traced.jaxpr, jax.tree.structure(traced.out_info)
        self._options = trace_options()
        has_token = not traced.out_info[1]
        self.executable = Executable(executable.name, self._compute, executable.placement, has_token=has_token)

    def _compute(self, state: Sequence[Any], *others: Any) -> tuple[Any, Any]:
        if trace_options() is not self._options:
            raise OtherOptions("options of JAX have changed, so the function must be traced again")
        values = self.refs.unpack(state)
        flat = jex.jaxpr_as_fun(self._closed)(*jax.tree.leaves((values, *others)))
        _, results, new = jax.tree.unflatten(self._form, flat)
        # Without the barrier, XLA would compute some variables once more for others that depend on them, and round otherwise.
        return results, self.refs.pack(jax.lax.optimization_barrier(new))


class Packing:
    """Decides about one program: whether it has packs, and from when on.

    Args:
        executable: The program.
        refs: The variables that it overwrites.
    """

    def __init__(self, executable: Executable, refs: Sequence[Ref]):
        self._executable, self._refs = executable, refs
        self._runs = self._alike = 0
        self._thread: threading.Thread | None = None
        self._error = "it was not compiled"  # as in a fork, which has no threads
        self._made: Packed | None = None
        self._used: Packed | None = None
        self.is_over = executable.placement.mirrored is None

    def program(self, inputs: Callable[[list[Any]], Inputs], arrays: list[Any]) -> Packed | None:
        """Return the packed program for the next run; None for the other one. The lock of programs must be held.

        Args:
            inputs: Returns the inputs of the program for the arrays of that run.
            arrays: These arrays.
        """
        if self._used is not None:
            if self._used.refs.debt > _MOST_DEBT or not is_on(FAMILY):
                self.end("its variables are read or set too often, or packs were switched off")
            elif _config.jax_debug_nans or _config.jax_debug_infs:  # which look for them in arrays of floats
                return None
            return self._used
        self._runs += 1
        if self._runs < OFTEN or not is_on(FAMILY):
            return None
        if self._thread is None:
            self._begin(inputs(arrays))
        elif not self._thread.is_alive():
            self._try(inputs(arrays))
        return self._used

    def _try(self, inputs: Inputs) -> None:
        """Run both programs. After some runs, the packed one is used if it is quicker."""
        made = self._made
        if made is None:
            self.end(self._error)
        elif not self._is_same(made, inputs):
            self.end("it would round otherwise")
        elif self._alike < _ALIKE:
            self._alike += 1
        elif (quick := _seconds(made.executable, made.refs.copies(), *inputs[1:])) < (
            plain := _seconds(self._executable, _copied(inputs[0]), *inputs[1:])
        ):
            made.refs.begin()
            self._used = made
        else:
            self.end(f"it would take {1e6 * quick:.0f} microseconds instead of {1e6 * plain:.0f}")

    def end(self, reason: Any) -> None:
        """Go on without packs."""
        _logger.debug("%s goes on without packs: %s", self._executable.name, reason)
        if self._used is not None:
            self._used.refs.end()
        self._made = self._used = None
        self.is_over = True

    def _begin(self, inputs: Inputs) -> None:
        refs = PackedRefs(self._refs, self._executable.placement)
        is_small = self._executable.is_small and sum(array.nbytes for array in inputs[0]) <= _MOST_BYTES
        if not is_small or refs.saved < _LEAST or _has_effects(self._executable.trace(*inputs)):
            self.end("it is large, calls the host, or has few small variables")
            return
        packed = Packed(self._executable, refs, inputs)
        lowered = packed.executable.traced(refs.copies(), *inputs[1:]).lower()  # here, because other threads may have other options
        self._thread = threading.Thread(target=self._make, args=(packed, lowered), name="replicant-packs")
        try:
            self._thread.start()
        except RuntimeError as error:  # there are too many threads
            self.end(repr(error))

    def _make(self, packed: Packed, lowered: Any) -> None:
        try:
            lowered.compile()
        except RuntimeError as error:  # XLA's
            self._error = repr(error)
        else:
            self._made = packed

    def _is_same(self, packed: Packed, inputs: Inputs) -> bool:
        """Whether both programs give the same bits, for inputs that are left as they are."""
        results, new = self._executable.try_out(_copied(inputs[0]), *inputs[1:])
        others, packs = packed.executable.try_out(packed.refs.copies(), *inputs[1:])
        pairs = zip(jax.tree.leaves((results, new)), jax.tree.leaves((others, packed.refs.unpack(packs))), strict=True)
        return all(_bits(one) == _bits(other) for one, other in pairs)


def _copied(arrays: Any) -> Any:
    return jax.tree.map(partial(jax.numpy.array, copy=True), arrays)


def _seconds(executable: Executable, state: Any, *others: Any) -> float:
    """Return the least time that one of several runs takes, each of which begins with what the last one has left."""
    least = math.inf
    for _ in range(_TIMED):
        began = time.perf_counter()
        _, state = jax.block_until_ready(executable.try_out(state, *others))
        least = min(least, time.perf_counter() - began)
    return least


def _has_effects(jaxpr: Any) -> bool:
    return bool(jaxpr.effects) or host_call_in(jaxpr.jaxpr) is not None  # which might read what lies in a pack


def _bits(array: Any) -> tuple[Any, ...]:
    host = np.array(array, copy=True)
    return host.shape, host.dtype, host.tobytes()
