"""Lets a small program have its small variables in packs (``variables/_packed_refs.py``).

The packed program is made of what the other one was traced to. Which programs have packs depends on nothing but their variables and
inputs, and those that have them do so from their first run on. XLA's compiler may round ``a * b + c * d`` at either of the two
products, and may choose otherwise in other code. So if a program got packs later, a run that was interrupted might not end with
the bits of one that was not.
"""

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.extend.core as jex

from ..kernels._pack import FAMILY, FUNCTION
from ..kernels._switch import is_on
from ..replicas._placement import Placement
from ..tracing._host_calls import host_call_in
from ..variables._packed_refs import PackedRefs, show_together
from ..variables._packs import Pack
from ..variables._ref import Ref
from ._costs import is_small
from ._executable import Executable
from ._segmented import trace_options

_LEAST = 8  # arrays that are saved, as other programs that read the variables take some twenty microseconds longer
_SHOWN_ONE_BY_ONE = 8  # times that values are shown before a program is compiled that shows them together

Inputs: TypeAlias = tuple[Any, Any, Any]  # the variables that are overwritten, the others, and the arrays of the call

_config: Any = jax.config  # its options are attributes that type checkers do not know
_logger = logging.getLogger("replicant.programs")
# Programs that overwrite the same variables, as for batches of other sizes, have the same packs.
_shared: weakref.WeakValueDictionary[Any, PackedRefs] = weakref.WeakValueDictionary()


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
            raise OtherOptions
        values = self.refs.unpack(state)
        flat = jex.jaxpr_as_fun(self._closed)(*jax.tree.leaves((values, *others)))
        _, results, new = jax.tree.unflatten(self._form, flat)
        return results, self.refs.pack(new)


class Packing:
    """Decides about one program: whether it has packs.

    Args:
        executable: The program.
        refs: The variables that it overwrites.
    """

    def __init__(self, executable: Executable, refs: Sequence[Ref]):
        self._executable, self._refs = executable, refs
        self._used: Packed | None = None
        self._made: dict[Any, Packed] = {}  # by the options with which it was traced
        self.is_over = executable.placement.mirrored is None

    def program(self, inputs: Callable[[list[Any]], Inputs], arrays: list[Any]) -> Packed | None:
        """Return the packed program; None if there is none, or it cannot run now. The lock of programs must be held.

        Args:
            inputs: Returns the inputs of the program for the arrays of the next run.
            arrays: These arrays.
        """
        if not is_on(FAMILY) or _config.jax_disable_jit or _config.jax_debug_nans or _config.jax_debug_infs:
            return None  # JAX would look for them in arrays of floats
        if self._used is None:
            self._used = self._made.get(trace_options()) or self._make(inputs(arrays))
        return self._used

    def _make(self, inputs: Inputs) -> Packed | None:
        placement = self._executable.placement
        key = tuple(map(id, (placement, *self._refs)))  # which the value keeps alive
        refs = _shared.get(key)
        if refs is None:
            refs = PackedRefs(self._refs, placement)
        if reason := self._objection(refs, inputs):
            _logger.debug("%s has no packs: %s", self._executable.name, reason)
            self.is_over = True
            return None
        _shared[key] = refs
        made = self._made[trace_options()] = Packed(self._executable, refs, inputs)
        return made

    def _objection(self, refs: PackedRefs, inputs: Inputs) -> str | None:
        if refs.saved < _LEAST:
            return "it overwrites few small variables"
        jaxpr = self._executable.trace(*inputs)
        if not is_small(jaxpr.jaxpr):  # else it takes much longer than JAX does for its arrays
            return "it is large"
        if jaxpr.effects or host_call_in(jaxpr.jaxpr) is not None:
            return "it calls the host"  # which might read what lies in a pack
        return None if FUNCTION.is_ready() else "there is no function that cuts packs"  # it warns

    def try_again(self) -> None:
        """Have another packed program, after this one could not be traced because of `OtherOptions`."""
        self._used = None


class Shown:
    """Gives the variables that a program only reads arrays of their own, if they lie in packs of other programs.

    Args:
        refs: The variables.
        placement: The one device on which they are.
    """

    def __init__(self, refs: Sequence[Ref], placement: Placement):
        self._refs, self._placement = refs, placement
        self._programs: weakref.WeakKeyDictionary[Pack, dict[tuple[int, ...], Any]] = weakref.WeakKeyDictionary()

    def __call__(self) -> None:
        """Do so for the next run. The lock of programs must be held."""
        show_together(self._refs, self._cut)

    def _cut(self, pack: Pack, numbers: tuple[int, ...]) -> Sequence[jax.Array]:
        programs = self._programs.setdefault(pack, {})
        known = programs.get(numbers, 0)
        if isinstance(known, int):
            programs[numbers] = known = known + 1 if known < _SHOWN_ONE_BY_ONE else self._cutting(pack.cut, numbers)
        return list(map(pack.show, numbers)) if isinstance(known, int) else known.try_out((), pack.array)[0]

    def _cutting(self, cut: Callable[[jax.Array], list[jax.Array]], numbers: tuple[int, ...]) -> Executable:
        def compute(state: Any, array: jax.Array) -> tuple[Any, Any]:
            values = cut(array)
            return [values[i] for i in numbers], state

        return Executable("values of a pack", compute, self._placement, has_token=False)
