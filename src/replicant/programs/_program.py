"""The program of one signature of a compiled function. Its variables are inputs and outputs, and are written back."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

from ..replicas._own_mesh import has_explicit_axes
from ..replicas._placement import Placement
from ..runtime import _in_flight
from ..runtime._own_memory import own
from ..tracing.replicas._interpreter import run_alone
from ..variables._chief import adopt
from ..variables._libraries import tracing
from ..variables._recorder import CrossRecorder
from ..variables._ref import Ref, Refs
from ._trace import Call, Trace, given_values, traced_call
from .arguments._number_guards import Tape
from .arguments._signature import Signature
from .running._executable import Executable
from .running._segmented import trace_options
from .steps._pathless_gradients import trace_until_learned
from .validity._guards import Watch


class Program:
    """The program of one signature of a ``Compiled``."""

    def __init__(self, name: str, call: Call, trace: Trace, numbers: Tape | None = None):
        self.numbers = numbers or Tape([])  # tells for which Python numbers among the arguments the program is right
        self.watch = Watch()  # the program is valid while this holds
        self.older: Program | None = None  # a program of the same signature, for other values of what is watched
        self._call_function = call
        self._trace, self._options = trace, trace_options()
        self.written, self.kept = trace.written, trace.kept
        self.placement = trace.placement
        self._overwritten = Refs(self.written, self.placement)
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
        trace, inputs = self._trace, [*written, *kept, *arrays]
        if trace.closed is None or trace_options() is not self._options or jax.config.jax_disable_jit or jax.config.jax_debug_nans:
            values = self._traced_again(inputs)
        else:
            values = self._evaluate(trace.closed, inputs)
        placement, num_results = self.placement, len(trace.stacked)
        results = [placement.constrain(x, stacked=s) for x, s in zip(values[:num_results], trace.stacked, strict=True)]
        state = [
            placement.constrain(x, stacked=ref.copies(placement.num_replicas), slice_axis=ref.slice_axis(placement))
            for ref, x in zip(self.written, values[num_results:], strict=True)
        ]
        return results, state

    def _traced_again(self, inputs: list[Any]) -> list[Any]:
        """Trace the code with these inputs, where the first trace does not do: JAX has other options now."""
        count = len(self.written) + len(self.kept)

        def flat(inputs: list[Any]) -> list[Any]:
            known = dict(zip([*self.written, *self.kept], inputs[:count], strict=True))
            recorder = CrossRecorder(given_values(known), self.placement, self._trace.facts)
            recorder.run_facts = self._trace.run_facts
            with tracing():
                found, values = traced_call(self._call_function, recorder, inputs[count:], None, self.placement)
            state = dict(zip(found.written, values[len(found.stacked) :], strict=True))
            return [*values[: len(found.stacked)], *[state.get(ref, known[ref]) for ref in self.written]]

        if not self._trace.uses_tape:
            return flat(inputs)
        return self._evaluate(trace_until_learned(flat, (inputs,), self._trace.facts), inputs)

    def _evaluate(self, closed: Any, inputs: list[Any]) -> list[Any]:
        if not self._trace.uses_tape:
            return jex.jaxpr_as_fun(closed)(*inputs)
        return run_alone(closed, inputs, [False] * len(inputs), lambda exchange: exchange.values)

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
        return self._trace.shape.fill(outputs[0], on_host, computed)


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
