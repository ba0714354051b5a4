"""Records which variables a function reads and writes while it is traced.

While a function is traced, a ``Recorder`` stands between the variables and the code that uses them: a variable that is read becomes
an input of the trace, and writes are noted and become outputs. A ``Ref`` is one variable, of whichever library, as a step sees it.
"""

import itertools
import threading
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.core import ShapedArray

from ..errors import ContextError, GradientError, MixedStrategyError
from ..replicas._collectives import Group, MeshAxis, in_use
from ..replicas._copies import VariableAggregation, aggregate_copies, split_value
from ..replicas._model_axis import ModelCut
from ..replicas._own_mesh import in_a_trace
from ..replicas._placement import Placement
from ..tracing.gradients import _eager
from ..tracing.gradients._gathered_variable import gathered_over_model
from ..tracing.jaxprs._marks import own_p, sync_p
from ._ref import Ref


class PlacementFound(BaseException):
    """A trace met the devices on which it computes after it had read variables that have copies there. It begins again with them.

    This never reaches the user. Not an Exception: the traced code may catch these.
    """

    def __init__(self, placement: Placement):
        super().__init__(placement)
        self.placement = placement


class VariablesMade(BaseException):
    """The traced code has made variables. It will not make them again, so it is traced anew, and the rest of this trace is spared.

    This never reaches the user. Not an Exception: the traced code may catch these.

    Args:
        refs: The variables that it has used.
    """

    def __init__(self, refs: Iterable[Ref]):
        self.names = [ref.name for ref in refs]
        super().__init__(self.names)


class NotTraceable(ContextError):
    """Code that must run as ordinary Python, such as reading a dataset, was called in a trace.

    A ``replicant.function`` that meets this error runs as ordinary Python from then on. Each ``run`` and ``reduce`` in it is still
    compiled.
    """


class Facts:
    """What one trace of a function has found out for the next trace.

    Attributes:
        unconnected: For each gradient call, the indices of the sources without a path to the target.
        answers: The shapes in the exchanges of a ragged step.
        objects: The Python objects that all replicas together bring to these exchanges.
        several: Whether there are several traces, of replicas of different sizes.
        names_axis: Whether a collective of JAX names the axis of the replicas, in a step of one replica.
        runs: The same for each call of ``run`` in the function.
    """

    def __init__(self) -> None:
        self.unconnected: dict[int, frozenset[int]] = {}
        self.answers: dict[int, Any] = {}
        self.objects: dict[int, list[Any]] = {}
        self.several = False
        self.names_axis = False
        self.runs: list[Facts] = []


class Outer(NamedTuple):
    """What a Recorder has around a layer."""

    values: "MutableMapping[Ref, Any]"
    written: "dict[Ref, None]"
    trace: Any
    live_trace: Any
    contexts: ExitStack


class Layer(NamedTuple):
    """What a function has done that JAX traces by itself.

    Attributes:
        given: The values that it was given.
        values: Those, and what it has assigned.
        written: What it has assigned and what is an output of the program. The others are `Recorder.replace`d.
        read: The variables whose values it has used.
    """

    given: "dict[Ref, Any]"
    values: "dict[Ref, Any]"
    written: "dict[Ref, None]"
    read: "dict[Ref, None]"

    @property
    def changed(self) -> "list[Ref]":
        """The variables that have other values at its end than at its beginning."""
        return [ref for ref, value in self.values.items() if ref not in self.given or value is not self.given[ref]]


class Recorder:
    """Records the reads and writes of one level of tracing.

    Its values are what that level sees: a stack of copies in cross-replica context, one copy inside a replica.
    """

    def __init__(self, facts: Facts):
        self.known: dict[Ref, Any] = {}  # the values at the beginning, of those that were read
        self._first: dict[Ref, Any] = {}  # the values in the trace itself, outside of all layers
        self.values: MutableMapping[Ref, Any] = self._first
        self.written: dict[Ref, None] = {}
        self.made_variables = False  # whether the traced code has made some
        self.facts = facts
        self.counts: Counter[str] = Counter()  # see `next_number`
        self.calls: dict[int, Any] = {}  # for each call of control flow, the last attempt that was given up
        self.trace: Any = None  # the state of the trace that this recorder belongs to
        self.live_trace: Any = None  # that trace
        self._outer: list[Outer] = []  # what is around the layer in progress, outermost first
        self._layers: list[Layer] = []
        self._shifts: dict[tuple[int, Ref], Any] = {}  # by the layer that they belong to
        self._kept_by_jax: set[Ref] = set()  # read where JAX keeps the trace for the next call, as in a function under jax.jit
        self.contexts = ExitStack()  # of JAX, until the layer in progress ends
        self._row: Any = None  # what the loop iterates over that is traced, if it is the body of one
        self._depth_of_loop = 0  # where that loop is

    def next_number(self, kind: str) -> int:
        """Return the number of the next thing of a kind in the trace. A second attempt at a part of it counts as the first."""
        self.counts[kind] += 1
        return self.counts[kind] - 1

    def check_made(self, refs: Iterable[Ref]) -> None:
        """End the trace if the code has made variables. `refs` are those that it has used.

        Raises:
            VariablesMade: If it has.
        """
        if self.made_variables:
            raise VariablesMade(refs)

    def read(self, ref: Ref) -> Any:
        """Return the current value, as user code sees it."""
        raise NotImplementedError

    def write(self, ref: Ref, value: Any) -> None:
        """Note a new value, as user code assigns it."""
        raise NotImplementedError

    @property
    def depth(self) -> int:
        """How many functions that JAX traces by themselves are around what is traced now, such as the branches of a ``cond``."""
        return len(self._outer)

    @contextmanager
    def layer(self, given: "dict[Ref, Any]") -> "Iterator[Layer]":
        """Record what is read and written in the ``with`` block, a function that JAX traces by itself.

        What is not in `given` has the value that it has outside. What is assigned is seen in the block only.
        """
        layer = Layer(dict(given), dict(given), {}, {})
        self._outer.append(Outer(self.values, self.written, self.trace, self.live_trace, self.contexts))
        self._layers.append(layer)
        self.values, self.written = ChainMap(layer.values, *self._maps), layer.written
        self.trace = jex.get_opaque_trace_state(convention="flax")
        with jex.take_current_trace() as self.live_trace:
            pass
        self.contexts = ExitStack()
        try:
            if given:
                self._forget_traces()
            yield layer
        finally:
            self.contexts.close()
            outer = self._outer.pop()
            self._layers.pop()
            self.values, self.written, self.trace, self.live_trace, self.contexts = outer
            self._shifts = {key: shift for key, shift in self._shifts.items() if key[0] <= self.depth}

    def store(self, ref: Ref, value: Any, *, written: bool) -> None:
        """Note the value that a variable has after a function that was traced by itself, in the form of `values`."""
        self._check_trace(ref)
        self._set(ref, own_value(value))
        if written:
            self.written[ref] = None

    def _set(self, ref: Ref, value: Any) -> None:
        """Note a new value. From now on, functions under jax.jit that read the old one are traced again."""
        self.values[ref] = value
        if ref in self._kept_by_jax:
            self._forget_traces()

    def _forget_traces(self) -> None:
        self.contexts.enter_context(_trace_id(next(_trace_ids)))

    def has_written(self, ref: Ref) -> bool:
        """Whether a variable was written before, here or outside of the layers in progress."""
        return ref in self.written or any(ref in outer.written for outer in self._outer)

    def is_inner(self, ref: Ref, depth: int) -> bool:
        """Whether a variable has a value of its own in a layer that is deeper than `depth`."""
        return any(ref in values for values in self._maps[: self.depth - depth])

    @property
    def _maps(self) -> "list[MutableMapping[Ref, Any]]":
        """The values of all layers, innermost first."""
        return self.values.maps if isinstance(self.values, ChainMap) else [self.values]

    def shifted(self, ref: Ref, value: Any, depths: Iterable[int]) -> Any:
        """Return the value that is read from a variable, with a shift by zero for each tape that does not see where it comes from.

        `depths` are those of the tapes.
        """
        for depth in depths:
            if self.is_inner(ref, depth) and jnp.issubdtype(ref.dtype, jnp.inexact):
                value = value + self.shift(ref, depth)
        return value

    def shift(self, ref: Ref, depth: int) -> Any:
        """Return what a tape at `depth` differentiates by, for what is read from a variable that has a newer value in a layer.

        It is a zero that is added at each read. So its gradient is the sum over all reads, as in TensorFlow.
        """
        if (depth, ref) not in self._shifts:
            with jex.set_current_trace(self._outer[depth].live_trace):
                self._shifts[depth, ref] = own_value(jnp.full(ref.shape, -0.0, ref.dtype))  # x + -0.0 is x, even if that is -0.0
        return self._shifts[depth, ref]

    def _live_of(self, ref: Ref) -> Any:
        """Return the trace that the value of a variable belongs to."""
        if not self._outer:
            return self.live_trace
        lives = [self.live_trace, *[outer.live_trace for outer in reversed(self._outer)]]
        layer = next(i for i, values in enumerate(self._maps) if ref in values)
        return lives[layer if self._row is None else min(layer, self.depth - self._depth_of_loop)]

    @contextmanager
    def reading_in_loop(self, row: Any) -> Iterator[None]:
        """Gather what is read in the ``with`` block, the body of a loop, in each iteration and not before the loop.

        `row` is an array that the loop iterates over.
        """
        outside = self.live_trace, self._row, self._depth_of_loop
        with jex.take_current_trace() as self.live_trace:
            pass
        self._row, self._depth_of_loop = row, self.depth
        try:
            yield
        finally:
            self.live_trace, self._row, self._depth_of_loop = outside

    def replace(self, ref: Ref, new: Any) -> None:
        """Let the code that follows read `new`. It is not an output of the program, because the servers make the change."""
        self.values[ref] = new

    def slices_behind(self, arrays: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
        """Return the slices from which some of the arrays were gathered, and for each its position, its axis and its ModelCut."""
        del arrays
        return [], ()

    def without_output(self, ref: Ref) -> None:
        """Forget that a variable was written, so that its value is not an output of the program."""
        del self.written[ref]

    def combine(self, ref: Ref, value: Any) -> Any:
        """Combine `value` over the replicas, as the variable's aggregation says."""
        del ref
        return value

    def write_combined(self, ref: Ref, value: Any) -> None:
        """Note a new value that is already combined over the replicas."""
        self.write(ref, value)

    def _check_trace(self, ref: Ref) -> None:
        """Raise ContextError if the value assigned exists only inside a loop, branch or transformed function."""
        if jex.get_opaque_trace_state(convention="flax") != self.trace:
            raise ContextError(
                f"Variable {ref.name!r} was assigned inside a function that JAX traces separately, where it cannot be followed: "
                "one under jax.jvp, jax.vjp, jax.linearize, jax.eval_shape or jax.custom_jvp, or one to which jax.jit, checkpoint, "
                "vmap or grad was applied before `import replicant`. Import replicant first. Take gradients with "
                "replicant.GradientTape or jax.value_and_grad. Or return the new value from that function, and assign it outside."
            )

    def _take(self, ref: Ref) -> Any:
        """Return the value that a variable has at the beginning of the trace."""
        raise NotImplementedError

    def before(self, ref: Ref) -> Any:
        """Return the value of a variable at the beginning of the trace, as this level sees it."""
        if ref not in self.known:
            self.known[ref] = self._take(ref)
        return self.known[ref]

    def _value(self, ref: Ref) -> Any:
        if ref not in self.values:
            self._first[ref] = self._zeros(ref) if ref.starts_at_zero else self.before(ref)
        if self._outer or jex.get_opaque_trace_state(convention="flax") != self.trace:
            self._kept_by_jax.add(ref)
            for layer in self._layers:
                layer.read[ref] = None
        return self.values[ref]

    def _zeros(self, ref: Ref) -> Any:
        with jex.set_current_trace(self._outer[0].live_trace if self._outer else self.live_trace):
            return jnp.zeros(ref.shape, ref.dtype)

    def value(self, ref: Ref) -> Any:
        """Return the current value in the form of `values`."""
        return self._value(ref)


class CrossRecorder(Recorder):
    """The recorder of the outer level: ordinary code that is compiled as a whole.

    Args:
        take: Returns the value that a variable has at the beginning, given what the program holds: the variable, or its copies.
        placement: The devices, as far as they are known.
        facts: What an earlier trace has found out.
    """

    def __init__(self, take: Callable[[Ref, ShapedArray], Any], placement: Placement | None, facts: Facts):
        super().__init__(facts)
        self._take_whole = take
        self.placement = placement
        self.uses_tape = False
        self.undo_effects: Callable[[], None] = lambda: None  # of the replica function on Python objects, before its next trace

    def use(self, placement: Placement) -> None:
        """Note the devices on which the program computes. From now on, variables have a copy for each of their replicas.

        Raises:
            MixedStrategyError: If it already computes on others.
            PlacementFound: If variables were read that have copies there.
        """
        if self.placement is not None and self.placement.devices and self.placement != placement:
            raise MixedStrategyError(
                f"One compiled function uses two strategies, on {self.placement.listing} and on {placement.listing}. "
                "Split it into one function per strategy."
            )
        before, self.placement = self.num_replicas, placement
        differ = [ref for ref in self.values if ref.copies(self.num_replicas) != ref.copies(before)]
        if any(self.depth or ref in self.known for ref in differ):
            raise PlacementFound(placement)
        for ref, value in self.values.items():  # those that were assigned before the first `run`
            if ref.copies(self.num_replicas) and not ref.copies(before):
                self.values[ref] = split_value(value, ref.aggregation, self.num_replicas)

    def facts_of_next_run(self) -> Facts:
        """Return what earlier traces have learned about the next call of ``run`` in the program."""
        index = self.next_number("run")
        if len(self.facts.runs) == index:
            self.facts.runs.append(Facts())
        return self.facts.runs[index]

    def use_where_cut(self, ref: Ref) -> None:
        """Note the devices of a variable that several workers have in slices, even if the program does not call ``run``."""
        home = None if ref.strategy is None else ref.strategy.placement
        if home is not None and home.world is not None and ref.slice_axis(home) is not None:
            self.use(home)

    @property
    def num_replicas(self) -> int:
        return self.placement.num_replicas if self.placement else 1

    def read_raw(self, ref: Ref) -> Any:
        """Return the value as the program holds it: a stack if the variable keeps one copy per replica."""
        return self._value(ref)

    def _take(self, ref: Ref) -> Any:
        return self._take_whole(ref, ref.aval(self.num_replicas))

    def write_raw(self, ref: Ref, raw: Any) -> None:
        """Note a new value in the form in which the program holds it."""
        self._check_trace(ref)
        self._set(ref, own_value(raw))
        self.written[ref] = None

    def read(self, ref: Ref) -> Any:
        raw = self.read_raw(ref)
        if ref.copies(self.num_replicas):
            return aggregate_copies(raw, ref.aggregation, ref.name)
        placement = self.placement
        if placement is None or not placement.has_model_axis or self.num_replicas > 1:
            return raw
        with jex.set_current_trace(self._live_of(ref)):  # see ReplicaRecorder.read
            return placement.as_used(raw, ref.model_cut(placement))

    def write(self, ref: Ref, value: Any) -> None:
        self.write_raw(ref, split_value(value, ref.aggregation, self.num_replicas) if ref.copies(self.num_replicas) else value)


class ReplicaRecorder(Recorder):
    """The recorder of the inner level: one replica inside ``run``.

    Args:
        take: Returns the value that a variable has for this replica at the beginning.
        group: The replicas to which this one belongs. What they agree on when they write to variables becomes marks in the trace,
            which are answered once it is known whether the value varies.
        facts: What an earlier trace has found out.
        has_rows: Whether this replica got data in this step.
        slice_axis: Returns the axis along which this replica holds a slice of a variable; None if it has the whole. Code reads and
            assigns the whole variable, except in an optimizer's update, which works on slices (``working_on_slices``).
        model_cut: Returns how a variable is cut over the devices of this replica, if it has several.
    """

    def __init__(
        self,
        take: Callable[[Ref], Any],
        group: Group,
        facts: Facts,
        *,
        has_rows: bool,
        slice_axis: Callable[[Ref], int | None],
        model_cut: Callable[[Ref], ModelCut | None],
    ):
        super().__init__(facts)
        self._take = take  # type: ignore[method-assign]  # a function is one, too
        self._group = group
        self._has_rows = has_rows
        self.num_replicas = group.num_replicas
        self.slice_axis = slice_axis
        self._model_cut = model_cut
        self._works = False  # on slices
        self._working: dict[Ref, int] = {}  # those that are cut only meanwhile
        self.cut_values: list[tuple[Ref, Any]] = []  # what was assigned to them, which all replicas must agree on
        # id of a whole value -> the value, its slice, the axis, and how it is cut over the devices of this replica
        self._gathered: dict[int, tuple[Any, Any, int, ModelCut | None]] = {}

    def read(self, ref: Ref) -> Any:
        value, axis = self._value(ref), self.slice_axis(ref)
        if axis is not None and not self._works:
            part, cut = value, self._model_cut(ref)
            with jex.set_current_trace(self._live_of(ref)):  # not in that of a loop or jax.checkpoint, where no tape would see it
                if self._row is not None:  # otherwise, XLA would gather before the loop what every iteration needs
                    part, _ = jax.lax.optimization_barrier((part, self._row))
                if cut is None:
                    whole = self._group.all_gather(part, axis)
                else:
                    whole = gathered_over_model(part, axis, cut, tuple(ref.shape))
            self._gathered[id(whole)] = (whole, part, axis, cut)
            return whole
        cut = None if axis is not None else self._model_cut(ref)
        if cut is not None and cut.use is not None:
            with jex.set_current_trace(self._live_of(ref)):
                return in_use(value, cut)
        return value

    def slices_behind(self, arrays: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
        found = [(i, *self._gathered[id(array)][1:]) for i, array in enumerate(arrays) if id(array) in self._gathered]
        return [part for _, part, _, _ in found], tuple((i, axis, cut) for i, _, axis, cut in found)

    def sums_of_slices(self, values: Sequence[jax.Array], axes: Sequence[int]) -> list[jax.Array]:
        """Sum each value over the replicas, and return this replica's slice of each sum along its axis."""
        assert isinstance(self._group, MeshAxis), "only equal replicas on several devices hold slices"
        return self._group.sums_of_slices(values, axes)

    def writes_slice(self, ref: Ref) -> bool:
        """Whether an assignment to a variable now takes this replica's slice of it."""
        return self._works and (ref in self._working or self.slice_axis(ref) is not None)

    def slice_of(self, value: jax.Array, axis: int) -> jax.Array:
        """Return this replica's slice of a value that all replicas have."""
        size = value.shape[axis] // self.num_replicas
        return jax.lax.dynamic_slice_in_dim(value, self._group.replica_id() * size, size, axis)

    @contextmanager
    def working_on_slices(self, refs: "dict[Ref, int]") -> Iterator[None]:
        """Read and assign `refs` and all sliced variables as slices in the ``with`` block; after it, `refs` are whole again."""
        refs = {ref: axis for ref, axis in refs.items() if self.slice_axis(ref) is None}
        whole = {ref: self.read(ref) for ref in refs}
        slices = {ref: self.slice_of(whole[ref], axis) for ref, axis in refs.items()}
        self.values.update(slices)
        self._works, self._working = True, refs
        try:
            yield
        finally:
            self._works, self._working = False, {}
        for ref, axis in refs.items():
            changed = self.values[ref] is not slices[ref]
            self.values[ref] = self._group.all_gather(self.values[ref], axis) if changed else whole[ref]

    def combine(self, ref: Ref, value: Any) -> Any:
        """Combine `value` over the replicas, as the variable's aggregation says; without one, return it as it is."""
        if ref.on_read or ref.aggregation is VariableAggregation.NONE:
            return value
        index = self.next_number("mark")
        value = own_value(value) if self.depth else jnp.asarray(value)  # without a gradient, if JAX takes some here
        return sync_p.bind(value, aggregation=ref.aggregation, rows_only=ref.rows_only, index=index)[0]

    def write(self, ref: Ref, value: Any) -> None:
        self.write_combined(ref, self.combine(ref, value))

    def write_combined(self, ref: Ref, value: Any) -> None:
        """Note a value that is already the same on all replicas, or that may differ."""
        self._check_trace(ref)
        if ref.on_read and ref.rows_only and not self._has_rows:
            return  # a replica without data leaves a metric as it is, whatever it has computed from no rows
        axis = self.slice_axis(ref)
        if axis is not None and not self._works:
            self.cut_values.append((ref, jnp.asarray(value)))
            value = self.slice_of(jnp.asarray(value), axis)
        self._set(ref, own_value(value))
        self.written[ref] = None


def own_value(value: Any) -> Any:
    """Mark `value` as the variable's own, so that a tape can tell it from what it was made of, and no gradient passes."""
    return own_p.bind(jnp.asarray(value))


# Called at every read, with the variable, the value, the recorder of the trace in which it happened, and whether the value is what
# an assignment returned.
Listener = Callable[[Ref, Any, Recorder | None, bool], None]


def require_eager(what: str) -> None:
    """Refuse to run inside a function that JAX traces, because variables must not keep values that exist only in its trace.

    Raises:
        ContextError: Inside such a function. `what` names in the message what was called.
        GradientError: In the block of a tape that records outside of programs.
    """
    if _eager.current() is not None:
        raise GradientError(
            f"{what!r} was called in the block of a GradientTape outside `strategy.run` and `replicant.function`, and no gradient "
            "passes through its compiled program. Use the tape inside the function that `run` computes, or decorate the function "
            "that contains the tape with replicant.function."
        )
    if in_a_trace():
        raise ContextError(
            f"{what!r} was called inside a function under jax.jit or another JAX transformation, from which its variables could "
            "not be updated. Decorate the outer function with replicant.function instead."
        )


class _Hearing(NamedTuple):
    """A listener, and where it was added: the recorder and its depth."""

    listener: Listener
    recorder: Recorder | None
    depth: int


class _Active(threading.local):
    def __init__(self) -> None:
        self.recorders: list[Recorder] = []
        self.listeners: list[_Hearing] = []
        self.is_beside = False  # whether the code that runs is not part of the trace in progress


_active = _Active()


def note_made() -> None:
    """Note that the code which is traced, if any is, has made a variable."""
    for recorder in () if _active.is_beside else _active.recorders:
        recorder.made_variables = True


@contextmanager
def beside_the_trace() -> Iterator[None]:
    """Make variables in the ``with`` block as if they had been made before the trace in progress, which then need not begin again.

    The code that is traced must be the same whether they are there already, and their values must not depend on the trace.
    """
    before, _active.is_beside = _active.is_beside, True
    try:
        yield
    finally:
        _active.is_beside = before


def current_recorder() -> Recorder | None:
    """Return the recorder of the innermost trace in progress; None in eager code."""
    return _active.recorders[-1] if _active.recorders else None


def cross_recorder() -> CrossRecorder:
    """Return the recorder of the program that is traced in cross-replica context.

    Raises:
        ContextError: If there is none.
    """
    recorder = current_recorder()
    if not isinstance(recorder, CrossRecorder):
        raise ContextError("This needs a program that is being traced in cross-replica context, but there is none.")
    return recorder


# JAX keeps the traces of inner jitted functions. One that reads variables must be traced again in every outer trace.
_trace_id = jax.make_user_context(default_value=None)
_trace_ids = itertools.count()


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Make `recorder` the current one for one trace."""
    recorder.trace = jex.get_opaque_trace_state(convention="flax")  # `convention` is required, but no longer has a meaning
    with jex.take_current_trace() as recorder.live_trace:
        pass
    _active.recorders.append(recorder)
    try:
        with _trace_id(next(_trace_ids)), recorder.contexts:
            yield recorder
    finally:
        _active.recorders.pop()


# Restores of checkpoints that continue when more variables have been created. They are called before variables are read or written,
# with whether a step is about to use them. The list is nearly always empty.
before_use: list[Callable[[bool], None]] = []


def settle(*, in_step: bool = False) -> None:
    """Call everything in ``before_use``."""
    for go_on in tuple(before_use):
        go_on(in_step)


def read(ref: Ref, *, assigned: bool = False) -> Any:
    """Return the variable's current value, in a trace or eagerly. `assigned` says that an assignment returns it."""
    if before_use:
        settle()
    recorder = current_recorder()
    value = ref.read_eagerly() if recorder is None else recorder.read(ref)
    tell_listeners(ref, value, recorder, assigned=assigned)
    if recorder is not None and recorder.depth and _active.listeners:
        return recorder.shifted(ref, value, {each.depth for each in _active.listeners if each.recorder is recorder})
    return value


def tell_listeners(ref: Ref, value: Any, recorder: Recorder | None, *, assigned: bool = False) -> None:
    """Tell the listeners (tapes) that `value` was read from a variable."""
    for listener, mine, depth in _active.listeners:
        inner = recorder if mine is recorder and recorder is not None and recorder.is_inner(ref, depth) else None
        listener(ref, value if inner is None else inner.shift(ref, depth), recorder, assigned)


def read_copies(ref: Ref) -> tuple[Any, bool]:
    """Return what a variable holds now, a stack of the replicas' copies or one value, and whether it is a stack."""
    if before_use:
        settle()
    recorder = current_recorder()
    if recorder is None:
        raw, stacked = ref.held()
        ref.expose()  # somebody keeps the copies
        return raw, stacked
    if isinstance(recorder, CrossRecorder):
        return recorder.read_raw(ref), ref.copies(recorder.num_replicas)
    return recorder.read(ref), False


def is_heard() -> bool:
    """Whether a tape listens to reads on this thread."""
    return bool(_active.listeners)


def add_listener(listener: Listener) -> None:
    """Call `listener` at every read on this thread from now on."""
    recorder = current_recorder()
    _active.listeners.append(_Hearing(listener, recorder, 0 if recorder is None else recorder.depth))


def remove_listener(listener: Listener) -> None:
    """Stop calling `listener`."""
    places = [i for i, each in enumerate(_active.listeners) if each.listener == listener]
    del _active.listeners[places[-1]]
