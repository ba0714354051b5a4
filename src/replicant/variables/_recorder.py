"""Which variables a function reads and writes, while it is being traced.

A ``Ref`` is one variable as the steps see it, whichever library it belongs to. While a function is traced, a ``Recorder`` stands
between the variables and their users: reads get tracers, writes are noted and handed out as outputs of the program. Variables of
other libraries come in through providers, which are loaded only when their library is.
"""

import importlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.sharding import Sharding

from ..errors import ContextError, MixedStrategyError
from ..replicas._copies import VariableAggregation, aggregate_copies, split_value
from ..replicas._placement import Placement, on_all
from ..tracing._marks import own_p


class Ref:
    """One variable as a step sees it. Storage is its library's; the rules are ours.

    name: for messages. shape, dtype: of one copy. on_read: whether each replica keeps its own copy. aggregation: how copies are
    combined. rows_only: replicas without data have no say in its value (batch statistics, metrics). trainable: tapes watch it.
    slot: optimizer state, which a placement may cut into one slice per replica. strategy: that under which it was made, if any.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    on_read: bool
    aggregation: VariableAggregation
    rows_only: bool
    trainable: bool
    slot: bool = False
    strategy: Any = None  # under which it was made, if that has devices of its own
    elsewhere: bool = False  # it lies on a server: storing notes a change, which is pushed later

    def __init__(self, holder: Any = None) -> None:
        self.holder: Any = self if holder is None else holder  # whose attribute `_value` is the stored array
        self._owned: Any = None  # the array that a program made and nobody else has seen: it may be donated
        self._home: Placement | None = None  # where `_owned` lies
        self.stand_in: Any = None  # another library's variable that shares the storage, where that library tracks its own only
        self._placed: tuple[Any, Placement, jax.Array] | None = None  # the last array that had to be moved, and its new place

    def switch(self) -> tuple[Any, str]:
        """An object and the name of its attribute that says whether the variable is trainable."""
        return self, "trainable"

    def get_raw(self) -> tuple[Any, bool]:
        """The stored array, and whether it is the stack of the replicas' copies."""
        raise NotImplementedError

    def set_raw(self, raw: Any, *, stacked: bool) -> None:
        """Store an array, or a stack of copies."""
        raise NotImplementedError

    def expose(self) -> None:
        """Note that the stored array was given to somebody: the next step must not donate it."""
        self._owned = None

    def copies(self, num_replicas: int) -> bool:
        """Whether the variable enters a program of `num_replicas` as a stack of copies."""
        return self.on_read and num_replicas > 1

    def slice_axis(self, placement: Placement) -> int | None:
        """The axis along which each replica has its slice of the variable; None: each has all of it."""
        return placement.slice_axis(self.shape) if self.slot and not self.on_read else None

    def load(self, placement: Placement, *, donated: bool) -> jax.Array:
        """The stored array as the input of a program, which may overwrite it if `donated`."""
        raw, _ = self.get_raw()
        if raw is self._owned and self._home is placement:
            return raw
        if not donated and self._placed is not None and self._placed[0] is raw and self._placed[1] is placement:
            return self._placed[2]
        placed = placement.own(*self.fitting(placement))
        if not donated:
            self._placed = (raw, placement, placed)
        return placed

    def fitting(self, placement: Placement) -> tuple[Any, Any]:
        """The stored array as programs on `placement` want it, wherever it is, and how it is to lie there."""
        raw, stacked = self.get_raw()
        copies = self.copies(placement.num_replicas)
        value = raw
        if stacked != copies or (stacked and raw.shape[0] != placement.num_replicas):
            value = on_all(aggregate_copies, raw, self.aggregation, self.name) if stacked else raw
            value = split_value(value, self.aggregation, placement.num_replicas) if copies else value
        return value, self.home(placement)

    def home(self, placement: Placement) -> Sharding | None:
        """How the variable lies in the programs of a placement."""
        if self.copies(placement.num_replicas):
            return placement.stacked
        axis = self.slice_axis(placement)
        return placement.mirrored if axis is None else placement.sliced(axis)

    def store(self, raw: jax.Array, placement: Placement) -> None:
        """Keep what a program wrote."""
        self.set_raw(raw, stacked=self.copies(placement.num_replicas))
        self._owned, self._home, self._placed = raw, placement, None

    def take_back(self) -> None:
        """Forget what `store` has noted, to be done elsewhere later. What is stored here is simply stored again."""

    def gradient(self, parts: Sequence[tuple[Any, Any]]) -> Any:
        """The variable's gradient from (what was read, the gradient with respect to that) of every read."""
        total = parts[0][1]
        for _, part in parts[1:]:
            total = total + part
        return total

    def read_eagerly(self) -> jax.Array:
        """The value in cross-replica context outside of any program."""
        raw, stacked = self.get_raw()
        if stacked:
            return on_all(aggregate_copies, raw, self.aggregation, self.name)
        self.expose()
        return raw


class Refs:
    """The variables that a program overwrites. Every step loads and stores all of them, so the usual case is written out here."""

    def __init__(self, refs: Sequence[Ref], placement: Placement):
        self._slots = [(ref, ref.holder) for ref in refs]
        self._placement = placement

    def load(self) -> list[jax.Array]:
        """What ``Ref.load`` gives for each, to be donated."""
        placement = self._placement
        return [
            ref._owned if holder._value is ref._owned is not None and ref._home is placement else ref.load(placement, donated=True)
            for ref, holder in self._slots
        ]

    def store(self, raws: Sequence[jax.Array]) -> None:
        """``Ref.store`` for each. If that is interrupted, no change that servers are to make is left noted."""
        placement = self._placement
        try:
            for (ref, holder), raw in zip(self._slots, raws, strict=True):
                if ref._home is placement and not ref.on_read:
                    holder._value = ref._owned = raw
                    ref._placed = None
                else:
                    ref.store(raw, placement)
        except BaseException:
            self.take_back()
            raise

    def take_back(self) -> None:
        """``Ref.take_back`` for each."""
        for ref, _ in self._slots:
            ref.take_back()


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


# Libraries whose variables we know, and the module that connects them. Imported once the library itself is in use.
_PROVIDERS = {"keras": "replicant.keras._provider"}


def connect_libraries() -> list[Any]:
    """The providers of the libraries in use; each has ``tracing() -> context manager``, entered around every trace."""
    return [importlib.import_module(module) for library, module in _PROVIDERS.items() if library in sys.modules]


@contextmanager
def tracing() -> Iterator[None]:
    """Route every library's variables to the current recorder, around the outermost trace of a program."""
    with ExitStack() as stack:
        for provider in connect_libraries():
            context: AbstractContextManager[Any] = provider.tracing()
            stack.enter_context(context)
        yield
