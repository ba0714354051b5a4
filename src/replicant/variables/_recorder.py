"""Which variables a function reads and writes, while it is being traced.

A ``Ref`` is one variable as the steps see it, whichever library it belongs to. While a function is traced, a ``Recorder`` stands
between the variables and their users: reads get tracers, writes are noted and handed out as outputs of the program. Variables of
other libraries come in through providers, which are loaded only when their library is.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from ..errors import ContextError, MixedStrategyError
from ..replicas._copies import VariableAggregation, aggregate_copies, split_value
from ..replicas._placement import Placement
from ..tracing._marks import own_p
from ._ref import Ref


class UnknownState(Exception):
    """A trace met variables that it was not given; the program is traced again with them. Never reaches the user."""

    def __init__(self, refs: Sequence[Ref]):
        super().__init__([ref.name for ref in refs])
        self.refs = refs


class NotTraceable(ContextError):
    """Raised by code that must run as written, such as reading a dataset, when it finds itself in a trace.

    A ``replicant.function`` that meets it runs as Python from then on, with its ``run``s and ``reduce``s compiled.
    """


class Facts:
    """What tracing a function once has taught about it, for the next trace.

    unconnected: for the gradient calls, the numbers of the sources to which no path leads. answers: the shapes in the exchanges of
    a ragged step. objects: the Python objects that all replicas together bring to these. several: whether this is about several
    traces, of replicas of different sizes.
    """

    def __init__(self) -> None:
        self.unconnected: dict[int, frozenset[int]] = {}
        self.answers: dict[int, Any] = {}
        self.objects: dict[int, list[Any]] = {}
        self.several = False


class Recorder:
    """Reads and writes of one level of tracing.

    Values are what that level sees: a stack of copies in cross-replica context, one copy inside a replica.
    """

    def __init__(self, known: "dict[Ref, Any]", *, rehearsing: bool, facts: Facts):
        self.known = known  # the values at the beginning
        self.values = dict(known)
        self.written: dict[Ref, None] = {}
        self.missing: dict[Ref, None] = {}
        self.rehearsing = rehearsing
        self.facts = facts
        self.num_gradients = 0
        self.trace: Any = None  # the trace that this recorder belongs to

    def read(self, ref: Ref) -> Any:
        """The current value, as user code sees it."""
        raise NotImplementedError

    def write(self, ref: Ref, value: Any) -> None:
        """Note a new value, as user code gives it."""
        raise NotImplementedError

    def replace(self, ref: Ref, new: Any) -> None:
        """Let the code that follows read `new`, which is no output of the program: the servers make the change itself."""
        self.values[ref] = new

    def without_output(self, ref: Ref) -> None:
        """Forget that a variable was written: its value is no output of the program."""
        del self.written[ref]

    def combine(self, ref: Ref, value: Any) -> Any:
        """`value` combined over the replicas as the variable's aggregation says."""
        del ref
        return value

    def write_combined(self, ref: Ref, value: Any) -> None:
        """Note a new value that needs no combining any more."""
        self.write(ref, value)

    def _check_trace(self, ref: Ref) -> None:
        """Raise if a variable is about to get a value that exists only inside a loop, branch or transformed function."""
        if jex.get_opaque_trace_state(convention="flax") != self.trace:
            raise ContextError(
                f"Variable {ref.name!r} was assigned inside a function that JAX traces by itself (the body of lax.scan, cond or "
                "while_loop, or a function under jax.jit, grad or vmap). Return the new value from that function, and assign it "
                "outside."
            )

    def _stand_in(self, ref: Ref, shape: tuple[int, ...]) -> Any:
        self.missing[ref] = None
        # Not remembered: this may be an inner trace (a scan, a cond), whose tracers must not leave it.
        return jnp.zeros(shape, ref.dtype)


class CrossRecorder(Recorder):
    """The outer level: ordinary code that is compiled as a whole."""

    def __init__(self, known: "dict[Ref, Any]", placement: Placement | None, *, rehearsing: bool, facts: Facts):
        super().__init__(known, rehearsing=rehearsing, facts=facts)
        self.placement = placement
        self.run_facts: list[Facts] = []
        self.num_runs = 0
        self.uses_tape = False

    def use(self, placement: Placement) -> None:
        """Note on which devices the program computes: there can be only one such set."""
        if self.placement is not None and self.placement.devices and self.placement != placement:
            raise MixedStrategyError(
                f"One compiled function uses two strategies, on {self.placement.listing} and on {placement.listing}. "
                "Split it into one function per strategy."
            )
        self.placement = placement

    @property
    def num_replicas(self) -> int:
        return self.placement.num_replicas if self.placement else 1

    def read_raw(self, ref: Ref) -> Any:
        """The value as the program holds it: stacked if the variable keeps copies."""
        if ref in self.values:
            return self.values[ref]
        copies = ref.copies(self.num_replicas)
        return self._stand_in(ref, (self.num_replicas, *ref.shape) if copies else ref.shape)

    def write_raw(self, ref: Ref, raw: Any) -> None:
        """Note a new raw value."""
        self._check_trace(ref)
        if ref not in self.values:
            self.missing[ref] = None
        self.values[ref] = own_value(raw)
        self.written[ref] = None

    def read(self, ref: Ref) -> Any:
        raw = self.read_raw(ref)
        return aggregate_copies(raw, ref.aggregation, ref.name) if ref.copies(self.num_replicas) else raw

    def write(self, ref: Ref, value: Any) -> None:
        self.write_raw(ref, split_value(value, ref.aggregation, self.num_replicas) if ref.copies(self.num_replicas) else value)


class Combiner(Protocol):
    """What a replica's recorder needs of the other replicas."""

    num_replicas: int

    def sync(self, aggregation: VariableAggregation, value: jax.Array, rows_only: bool) -> jax.Array: ...
    def replica_id(self) -> jax.Array: ...
    def all_gather(self, leaf: jax.Array, axis: int) -> jax.Array: ...


class ReplicaRecorder(Recorder):
    """The inner level: one replica inside ``run``. `has_rows` is False for a replica that got no data in this step.

    `slices` names the variables of which this replica holds a slice along an axis. Who reads one gets the whole, and what it
    assigns is the whole, but for an optimizer's update, which works on slices (``working_on_slices``).
    """

    def __init__(
        self,
        known: "dict[Ref, Any]",
        group: Combiner,
        *,
        rehearsing: bool,
        facts: Facts,
        has_rows: bool = True,
        slices: "dict[Ref, int] | None" = None,
    ):
        super().__init__(known, rehearsing=rehearsing, facts=facts)
        self._group = group
        self._has_rows = has_rows
        self.num_replicas = group.num_replicas
        self.slices = slices or {}
        self._working: dict[Ref, int] = {}

    def read(self, ref: Ref) -> Any:
        if ref not in self.values:
            return self._stand_in(ref, ref.shape)
        if ref in self.slices and not self._working:
            return self._group.all_gather(self.values[ref], self.slices[ref])
        return self.values[ref]

    def writes_slice(self, ref: Ref) -> bool:
        """Whether what is assigned to a variable now is this replica's slice of it."""
        return ref in self._working

    def slice_of(self, value: jax.Array, axis: int) -> jax.Array:
        """This replica's slice of a value that all replicas have."""
        size = value.shape[axis] // self.num_replicas
        return jax.lax.dynamic_slice_in_dim(value, self._group.replica_id() * size, size, axis)

    @contextmanager
    def working_on_slices(self, refs: "dict[Ref, int]") -> Iterator[None]:
        """In it, `refs` and all sliced variables are read and assigned as slices; after it, `refs` are whole again."""
        whole = {ref: self.read(ref) for ref in refs}
        slices = {ref: self.slice_of(whole[ref], axis) for ref, axis in refs.items()}
        self.values |= slices
        self._working = self.slices | refs
        try:
            yield
        finally:
            self._working = {}
        for ref, axis in refs.items():
            changed = self.values[ref] is not slices[ref]
            self.values[ref] = self._group.all_gather(self.values[ref], axis) if changed else whole[ref]

    def combine(self, ref: Ref, value: Any) -> Any:
        """`value` combined over the replicas as the variable's aggregation says; as it is where that says nothing."""
        if ref.on_read or ref.aggregation is VariableAggregation.NONE:
            return value
        return self._group.sync(ref.aggregation, value, ref.rows_only)

    def write(self, ref: Ref, value: Any) -> None:
        self.write_combined(ref, self.combine(ref, value))

    def write_combined(self, ref: Ref, value: Any) -> None:
        """Note a value that is already the same on all replicas, or is meant to differ."""
        self._check_trace(ref)
        if ref not in self.values:
            self.missing[ref] = None
        if ref.on_read and ref.rows_only and not self._has_rows:
            return  # no data, no contribution: the metric stays as it is, whatever its mean of nothing says
        if ref in self.slices and not self._working:
            value = self.slice_of(jnp.asarray(value), self.slices[ref])
        self.values[ref] = own_value(value)
        self.written[ref] = None


def own_value(value: Any) -> Any:
    """`value` as the variable's own: a tape can tell it from what it was made of, and no gradient passes."""
    return own_p.bind(jnp.asarray(value))


# Told of every read: the variable, the value, the recorder of the trace in which it happened, and whether it is what an assignment
# returned.
Listener = Callable[[Ref, Any, Recorder | None, bool], None]


_EAGER = jex.get_opaque_trace_state(convention="flax")


def in_a_trace() -> bool:
    """Whether JAX is tracing something here and now."""
    return jex.get_opaque_trace_state(convention="flax") != _EAGER


def require_eager(what: str) -> None:
    """Raise inside a function that JAX traces by itself: variables must not take values that exist only in its trace."""
    if in_a_trace():
        raise ContextError(
            f"{what!r} was called inside a function under jax.jit or another JAX transformation, from which its variables could "
            "not be updated. Decorate the outer function with replicant.function instead."
        )


class _Active(threading.local):
    def __init__(self) -> None:
        self.recorders: list[Recorder] = []
        self.listeners: list[Listener] = []


_active = _Active()


def current_recorder() -> Recorder | None:
    """The recorder of the innermost trace in progress, None in eager code."""
    return _active.recorders[-1] if _active.recorders else None


def cross_recorder() -> CrossRecorder:
    """The recorder of the program being traced, called where there must be one."""
    recorder = current_recorder()
    if not isinstance(recorder, CrossRecorder):
        raise ContextError("This needs a program being traced in cross-replica context, and none is.")
    return recorder


# JAX keeps the traces of inner jitted functions. One that reads variables must be traced anew with every trace around it.
_trace_id = jax.make_user_context(default_value=None)
_trace_ids = itertools.count()


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Make `recorder` the current one, for one trace."""
    recorder.trace = jex.get_opaque_trace_state(convention="flax")  # `convention` has no meaning any more, but a place
    _active.recorders.append(recorder)
    try:
        with _trace_id(next(_trace_ids)):
            yield recorder
    finally:
        _active.recorders.pop()


# Called before variables are read or written, with whether a step is about to use them: restores that go on when more variables
# come into being. Nearly always empty.
before_use: list[Callable[[bool], None]] = []


def settle(*, in_step: bool = False) -> None:
    """Do what must be done before variables are read or written."""
    for go_on in tuple(before_use):
        go_on(in_step)


def read(ref: Ref, *, assigned: bool = False) -> Any:
    """The variable's value here and now: in a trace, or eagerly. `assigned`: only to return what has just been assigned."""
    if before_use:
        settle()
    recorder = current_recorder()
    value = ref.read_eagerly() if recorder is None else recorder.read(ref)
    tell_listeners(ref, value, recorder, assigned=assigned)
    return value


def tell_listeners(ref: Ref, value: Any, recorder: Recorder | None, *, assigned: bool = False) -> None:
    """Tell tapes that `value` was read from a variable."""
    for listener in _active.listeners:
        listener(ref, value, recorder, assigned)


def read_copies(ref: Ref) -> tuple[Any, bool]:
    """What is held here and now: the stack of the replicas' copies, or one value; and whether it is a stack."""
    if before_use:
        settle()
    recorder = current_recorder()
    if recorder is None:
        ref.expose()
        return ref.get_raw()
    if isinstance(recorder, CrossRecorder):
        return recorder.read_raw(ref), ref.copies(recorder.num_replicas)
    return recorder.read(ref), False


def add_listener(listener: Listener) -> None:
    """Begin to tell `listener` about every read on this thread."""
    _active.listeners.append(listener)


def remove_listener(listener: Listener) -> None:
    """Stop telling `listener`."""
    _active.listeners.remove(listener)
