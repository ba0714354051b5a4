"""The program of one signature of a compiled function. Its variables are inputs and outputs, and are written back."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..replicas._own_mesh import has_explicit_axes
from ..replicas._placement import Placement
from ..replicas._values import PerReplica
from ..runtime import _in_flight
from ..runtime._own_memory import own
from ..tracing._interpreter import run_alone
from ..variables._chief import adopt
from ..variables._libraries import tracing
from ..variables._recorder import CrossRecorder, Facts, Recorder, UnknownState
from ..variables._ref import Ref, Refs
from ._executable import Executable
from ._learning import trace_until_learned
from ._number_guards import Tape
from ._results import Shape, array_homes
from ._signature import Signature
from ._watch import Watch


@dataclasses.dataclass
class Needs:
    """The result of a rehearsal: which variables a program reads and writes, where it computes, and whether it uses a tape."""

    refs: dict[Ref, None]
    written: dict[Ref, None]
    placement: Placement
    uses_tape: bool


class Program:
    """The program of one signature of a ``Compiled``."""

    def __init__(
        self,
        name: str,
        call: Callable[[Recorder, Sequence[Any]], Any],
        needs: Needs,
        numbers: Tape | None = None,
        facts: Facts | None = None,
    ):
        self.numbers = numbers or Tape([])  # tells for which Python numbers among the arguments the program is right
        self.watch = Watch()  # the program is valid while this holds
        self.older: Program | None = None  # a program of the same signature, for other values of what is watched
        self._call_function = call
        self._uses_tape = needs.uses_tape
        self.facts = facts or Facts()
        self._run_facts: list[Facts] = []
        written = [ref for ref in needs.refs if ref in needs.written]
        # Local variables are stored first, so that they are complete even if a server refuses a change.
        self.written: list[Ref] = sorted(written, key=lambda ref: ref.elsewhere)
        self.kept: list[Ref] = [ref for ref in needs.refs if ref not in needs.written]
        self.idle: list[Ref] = []  # those in `written` that the last trace did not write
        self.placement = needs.placement
        self._overwritten = Refs(self.written, self.placement)
        self._shape: Shape | None = None
        self._stacked: list[bool] = []
        self.executable = Executable(name, self._traced, self.placement)

    def suits(self, signature: Signature) -> bool:
        """Return whether the program is right for a call of its signature. The call is told what it computes from its numbers."""
        if signature.numbers:
            computed = self.numbers.evaluate(signature.numbers)
            if computed is None:
                return False
            signature.computed = computed
        return self.watch.holds()

    def and_older(self) -> "Iterator[Program]":
        """Yield all programs of the same signature, the last used first."""
        program: Program | None = self
        while program is not None:
            yield program
            program = program.older

    def _traced(self, written: list[Any], kept: list[Any], arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        known = dict(zip(self.written, written, strict=True)) | dict(zip(self.kept, kept, strict=True))
        if self._uses_tape:
            results, state = self._with_tape(known, arrays)
        else:
            self._shape, results, state = self._call(known, arrays)
        placement = self.placement
        results = [placement.constrain(x, stacked=s) for x, s in zip(results, self._stacked, strict=True)]
        state = [
            placement.constrain(x, stacked=ref.copies(placement.num_replicas), slice_axis=ref.slice_axis(placement))
            for ref, x in zip(self.written, state, strict=True)
        ]
        return results, state

    def _call(self, known: dict[Ref, Any], arrays: list[Any]) -> tuple[Shape, list[Any], list[Any]]:
        recorder = CrossRecorder(known, self.placement, rehearsing=False, facts=self.facts)
        recorder.run_facts = self._run_facts
        with tracing():  # needed here too, because JAX may trace again on its own
            result = self._call_function(recorder, arrays)
        expected = {*self.written}
        unknown_writes = [ref for ref in recorder.written if ref not in expected]
        if recorder.missing or unknown_writes:
            raise UnknownState([*recorder.missing, *unknown_writes])
        self.idle = [ref for ref in self.written if ref not in recorder.written]
        homes = array_homes(result)
        self._stacked = [isinstance(leaf, PerReplica) and leaf.stacked is not None for leaf in homes]
        shape, results = Shape.of(result)
        return shape, results, [recorder.values[ref] for ref in self.written]

    def _with_tape(self, known: dict[Ref, Any], arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        refs = list(known)

        def flat(state: list[Any], inputs: list[Any]) -> list[Any]:
            self._shape, results, new = self._call(dict(zip(refs, state, strict=True)), inputs)
            return [*results, *new]

        closed = trace_until_learned(flat, (list(known.values()), arrays), self.facts)
        inputs = [*known.values(), *arrays]
        values = run_alone(closed, inputs, [False] * len(inputs), lambda exchange: exchange.values)
        cut = len(values) - len(self.written)
        return values[:cut], values[cut:]

    def trace(self, arrays: list[Any]) -> None:
        """Trace now, so that errors in the user's code come before anything is computed. JAX caches the trace."""
        planned = self.placement.planning is not None  # then no array needs to be on its device
        with _in_flight.lock:
            jaxpr = self.executable.trace(*(self._shapes(arrays) if planned else self._inputs(arrays)))
        self.executable.check_workers(jaxpr)

    def lower(self, arrays: list[Any]) -> Any:
        """Return what JAX lowers the program to. The trace is the one that `trace` has made."""
        with _in_flight.lock:
            return self.executable.lower(*self._inputs(arrays))

    def _shapes(self, arrays: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return what `_inputs` returns, but with only the shapes and places of the variables."""
        placement, n = self.placement, self.placement.num_replicas

        def abstract(ref: Ref) -> jax.ShapeDtypeStruct:
            shape = (n, *ref.shape) if ref.copies(n) else tuple(ref.shape)
            return jax.ShapeDtypeStruct(shape, ref.dtype, sharding=ref.home(placement))

        return [abstract(ref) for ref in self.written], [abstract(ref) for ref in self.kept], _placed(arrays, placement)

    def _inputs(self, arrays: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        placement = self.placement
        if placement.world is not None:
            adopt([*self.written, *self.kept], placement)
        kept = [ref.load(placement, donated=False) for ref in self.kept]
        return self._overwritten.load(), kept, _placed(arrays, placement)

    def run(self, arrays: list[Any], on_host: list[Any], computed: Sequence[Any] = ()) -> Any:
        """Run on `arrays`. Variables are read before and written after. Arrays on the host are only passed through.

        Args:
            arrays: The arrays among the arguments.
            on_host: The arrays of strings and the like.
            computed: What the tape computes from the numbers among the arguments.
        """
        if computed:
            arrays = [*arrays, *self.numbers.input_values(computed)]
        with self.executable.alone():
            with _in_flight.lock:
                inputs = self._inputs(arrays)
                outputs = self.executable.start(*inputs, keeper=self._overwritten)
            self.executable.settle(inputs[0], outputs, self._overwritten)
        assert self._shape is not None
        return self._shape.fill(outputs[0], on_host, computed)


def rehearse(call: Callable[[Recorder, Sequence[Any]], Any], avals: list[Any], placement: Placement) -> Needs:
    """Trace abstractly to see what the code needs."""
    recorder = CrossRecorder({}, placement, rehearsing=True, facts=Facts())
    jax.eval_shape(lambda inputs: Shape.of(call(recorder, inputs))[1], avals)
    for ref in recorder.missing:
        recorder.use_where_cut(ref)
    return Needs(dict(recorder.missing), dict(recorder.written), recorder.placement or placement, recorder.uses_tape)


def _placed(arrays: list[Any], placement: Placement) -> list[Any]:
    """Return `arrays`, with copies of what callers may write to, and those that are committed to other devices moved."""
    arrays = [own(x) if isinstance(x, np.ndarray) else x for x in arrays]
    home = placement.mirrored
    if home is None:
        return arrays
    return [
        placement.put(x, home)
        if isinstance(x, jax.Array)
        and x.sharding is not home  # usually it is, and comparing takes longer
        and ((x.committed and x.sharding.device_set != home.device_set) or has_explicit_axes(x))
        else x
        for x in arrays
    ]
