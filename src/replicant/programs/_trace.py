"""The trace of cross-replica code: what becomes the program of one signature of a function.

The variables that the code uses become inputs of the trace as it meets them, so nothing has to be known about it before.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jax.core import ShapedArray

from ..errors import ReplicantError
from ..replicas._placement import Placement
from ..replicas._values import PerReplica
from ..tracing._inputs import Inputs, make_jaxpr
from ..tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from ..variables._libraries import tracing
from ..variables._recorder import CrossRecorder, Facts, PlacementFound
from ..variables._ref import Ref
from .arguments._number_guards import Tape
from .arguments._result_template import ResultTemplate, array_homes, kind_in_program
from .steps._pathless_gradients import learn
from .steps._run import AxisNamed

# Calls the function in the trace of a recorder, with arrays and with what gives it its numbers.
Call = Callable[[CrossRecorder, Sequence[Any], Inputs | None], Any]


@dataclasses.dataclass
class Trace:
    """A finished trace.

    Attributes:
        written: The variables that it writes. Local ones come first, so that they are stored even if a server refuses a change.
        kept: Those that it only reads.
        placement: The devices on which it computes.
        uses_tape: Whether it takes gradients outside of `run`.
        template: Its results without their arrays.
        stacked: Which of the results are stacks, with a row for each replica.
        facts: What this trace, and earlier ones, have found out.
        closed: The jaxpr. Its inputs are the variables in this order, the arrays, and the numbers.
    """

    written: list[Ref]
    kept: list[Ref]
    placement: Placement
    uses_tape: bool
    template: ResultTemplate
    stacked: list[bool]
    facts: Facts
    closed: ClosedJaxpr | None = None

    @property
    def refs(self) -> list[Ref]:
        """The variables that the trace has used, in the order of its inputs."""
        return [*self.written, *self.kept]


def trace(call: Call, avals: Sequence[Any], numbers: Tape, placement: Placement) -> Trace:
    """Trace a function until a trace teaches nothing new. That is one trace, unless gradients turn out to be None.

    Args:
        call: Calls the function.
        avals: The shapes of the arrays.
        numbers: What is known about the Python numbers among the arguments.
        placement: The devices of the current strategy, on which a function computes that calls no `run`.

    Raises:
        VariablesMade: If the code has made variables.
    """
    facts = Facts()
    start: Placement | None = None
    while True:
        try:
            found = _once(call, avals, numbers, placement, facts, start=start)
        except PlacementFound as other:
            start = other.placement
            continue
        except AxisNamed:
            continue
        assert found.closed is not None
        if not (found.uses_tape and learn(facts, [found.closed.jaxpr])):
            return found


def _once(call: Call, avals: Sequence[Any], numbers: Tape, placement: Placement, facts: Facts, *, start: Placement | None) -> Trace:
    made: list[Trace] = []

    def flat(inputs: Inputs, arrays: list[Any]) -> list[Any]:
        recorder = CrossRecorder(inputs.take, start, facts)
        with tracing():
            traced, values = traced_call(call, recorder, arrays, inputs, placement)
        recorder.check_made(recorder.values)
        made.append(traced)
        return values

    closed, inputs = make_jaxpr(flat, list(avals))
    found = made[-1]
    refs = [(ref, ref.aval(found.placement.num_replicas)) for ref in found.refs]
    given = [(slot, ShapedArray(x.shape, x.dtype, weak_type=True)) for slot, x in zip(numbers.inputs, numbers.avals, strict=True)]
    found.closed = inputs.arranged(closed, refs, given)
    return found


def traced_call(
    call: Call, recorder: CrossRecorder, arrays: Sequence[Any], inputs: Inputs | None, placement: Placement
) -> tuple[Trace, list[Any]]:
    """Call a function in a trace. Return what was found, and the values of its results and then of the variables it wrote."""
    result = call(recorder, arrays, inputs)
    for ref in list(recorder.values):
        recorder.use_where_cut(ref)
    written = sorted(recorder.written, key=lambda ref: ref.elsewhere)
    kept = [ref for ref in recorder.known if ref not in recorder.written]
    homes = array_homes(result)
    stacked = [isinstance(leaf, PerReplica) and leaf.stacked is not None for leaf in homes]
    template, results = ResultTemplate.of(result, kind_in_program)
    placement = recorder.placement or placement
    found = Trace(written, kept, placement, recorder.uses_tape, template, stacked, recorder.facts)
    return found, [*results, *[recorder.values[ref] for ref in written]]


def given_values(known: dict[Ref, Any]) -> Callable[[Ref, ShapedArray], Any]:
    """Return what gives a CrossRecorder the values of variables in a trace that JAX makes again.

    Raises:
        ReplicantError: When the code uses another variable than in its first trace.
    """

    def take(ref: Ref, aval: ShapedArray) -> Any:
        del aval
        if ref not in known:
            raise ReplicantError(
                f"The code used variable {ref.name!r} when JAX traced it again, and had not used it before. Let what it uses "
                "depend on its arguments and variables only."
            )
        return known[ref]

    return take
