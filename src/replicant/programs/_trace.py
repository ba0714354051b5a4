"""The trace of cross-replica code: what becomes the program of one signature of a function.

The variables that the code uses become inputs of the trace as it meets them, so nothing has to be known about it before.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
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
from .arguments._result_template import Shape, array_homes
from .steps._pathless_gradients import learn

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
        shape: The form of its results.
        stacked: Which of the results are stacks, with a row for each replica.
        facts: What this trace, and earlier ones, have found out.
        run_facts: The same for each call of `run`.
        closed: The jaxpr. Its inputs are the variables in this order, the arrays, and the numbers.
    """

    written: list[Ref]
    kept: list[Ref]
    placement: Placement
    uses_tape: bool
    shape: Shape
    stacked: list[bool]
    facts: Facts
    run_facts: list[Facts]
    closed: ClosedJaxpr | None = None

    @property
    def refs(self) -> list[Ref]:
        """The variables that the trace has used, in the order of its inputs."""
        return [*self.written, *self.kept]

    def shape_of(self, ref: Ref) -> tuple[int, ...]:
        """Return the shape of what the program holds of a variable."""
        n = self.placement.num_replicas
        return (n, *ref.shape) if ref.copies(n) else tuple(ref.shape)


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
    facts, run_facts = Facts(), list[Facts]()
    start: Placement | None = None
    while True:
        try:
            found = _once(call, avals, numbers, (start or placement, start is not None), (facts, run_facts))
        except PlacementFound as other:
            start = other.placement
            continue
        assert found.closed is not None
        if not (found.uses_tape and learn(facts, [found.closed.jaxpr])):
            return found


def _once(
    call: Call, avals: Sequence[Any], numbers: Tape, where: tuple[Placement, bool], known: tuple[Facts, list[Facts]]
) -> Trace:
    (placement, is_found), (facts, run_facts) = where, known
    made: list[Trace] = []

    def flat(inputs: Inputs, arrays: list[Any]) -> list[Any]:
        recorder = CrossRecorder(
            lambda ref, shape: inputs.take(ref, _aval(shape, ref.dtype)), placement if is_found else None, facts
        )
        recorder.run_facts = run_facts
        with tracing():
            traced, values = traced_call(call, recorder, arrays, inputs, placement)
        recorder.check_made(recorder.values)
        made.append(traced)
        return values

    closed, inputs = make_jaxpr(flat, list(avals))
    found = made[-1]
    refs = [(ref, _aval(found.shape_of(ref), ref.dtype)) for ref in found.refs]
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
    shape, results = Shape.of(result)
    found = Trace(
        written,
        kept,
        recorder.placement or placement,
        recorder.uses_tape,
        shape,
        stacked,
        recorder.facts,
        recorder.run_facts,
    )
    return found, [*results, *[recorder.values[ref] for ref in written]]


def given_values(known: dict[Ref, Any]) -> Callable[[Ref, tuple[int, ...]], Any]:
    """Return what gives a CrossRecorder the values of variables in a trace that JAX makes again.

    Raises:
        ReplicantError: When the code uses another variable than in its first trace.
    """

    def take(ref: Ref, shape: tuple[int, ...]) -> Any:
        del shape
        if ref not in known:
            raise ReplicantError(
                f"The code used variable {ref.name!r} when JAX traced it again, and had not used it before. Let what it uses "
                "depend on its arguments and variables only."
            )
        return known[ref]

    return take


def _aval(shape: tuple[int, ...], dtype: Any) -> ShapedArray:
    return ShapedArray(shape, jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True))
