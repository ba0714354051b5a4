"""A server variable as compiled programs see it: it is read from shared memory before a run, and its changes are pushed afterwards.

A program cannot add to a variable in another process. It returns what to add as an output, and a `ChangeRef` turns that output into
a push.
"""

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import ContextError, VariableError
from ...replicas._copies import VariableAggregation
from ...replicas._placement import Placement
from ...runtime._jax_dtypes import in_jax_dtype
from ...variables._recorder import Recorder, current_recorder
from ...variables._ref import Ref
from ..wire._memory import aligned
from ._client import Client
from ._push import combine_rows
from ._rows_gradient import RowsGradient
from ._site import Site
from ._store import VariableSpec

_REFERENCES = 3  # what `getrefcount` returns for a buffer that only its pool holds


class ServerRef(Ref):
    """A variable on the servers."""

    elsewhere = True

    def __init__(self, spec: VariableSpec, site: Site, trainable: Callable[[], bool] | None = None):
        super().__init__()
        self.spec, self.site = spec, site
        self.name, self.shape, self.dtype = spec.name, spec.shape, spec.dtype
        self.on_read, self.aggregation, self.rows_only = False, VariableAggregation.NONE, False
        self._trainable = trainable
        self._value = None
        self._copies = None
        self._read: tuple[Any, np.ndarray] | None = None
        self._pool: list[np.ndarray] = []
        self.changes: dict[Any, ChangeRef] = {}
        self.tables: list[Ref] | None = None  # its shards, for programs that look up rows

    @property
    def trainable(self) -> bool:  # type: ignore[override]  # Keras lets users freeze a variable at any time
        return self.spec.trainable if self._trainable is None else self._trainable()

    @property
    def made_under(self) -> Any:
        return self.site.strategy

    def get_raw(self) -> tuple[Any, bool]:
        return self.read_eagerly(), False

    def set_raw(self, raw: Any, *, stacked: bool) -> None:
        self.site.client.change(self.spec, "assign", np.asarray(raw))
        self.site.client.flush()

    def read_eagerly(self) -> jax.Array:
        self.site.client.flush()
        return jnp.asarray(self.site.client.read(self.spec))

    def load(self, placement: Placement, *, donated: bool) -> Any:
        client = self.site.client
        client.flush()
        if donated:
            return jnp.array(client.read(self.spec), copy=True)
        version = client.version(self.spec)
        if self._read is None or self._read[0] != version:
            self._read = None
            self._read = (version, client.read(self.spec, self._buffer))
        client.note_read()
        return self._read[1]

    def store(self, raw: jax.Array, placement: Placement) -> None:
        self.site.client.change(self.spec, "assign", np.asarray(raw))

    def take_back(self) -> None:
        self.site.client.drop()  # drops this run's changes only: `load` has pushed earlier ones

    def gradient(self, parts: Sequence[tuple[Any, Any]]) -> Any:
        recorder = current_recorder()
        lookups = [] if recorder is None else notes_of(recorder).lookups
        ids_of = {id(rows): ids for rows, ids in lookups}
        by_rows = [(ids_of[id(value)].reshape(-1), part) for value, part in parts if id(value) in ids_of]
        dense = [(value, part) for value, part in parts if id(value) not in ids_of]
        if not by_rows:
            return super().gradient(dense)
        found = RowsGradient(
            jnp.concatenate([ids for ids, _ in by_rows]),
            jnp.concatenate([part.reshape(-1, *self.shape[1:]) for _, part in by_rows]),
        )
        return super().gradient([*dense, (None, found.to_dense(self.shape[0]))]) if dense else found

    def _buffer(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A buffer that no program and no result uses any more."""
        for buffer in self._pool:
            if sys.getrefcount(buffer) <= _REFERENCES:
                return buffer
        self._pool = [*self._pool[-2:], aligned(shape, dtype)]
        return self._pool[-1]


class ChangeRef(Ref):
    """An output of a program that becomes a push. `take` is called with the array after each run of the program."""

    elsewhere = True
    starts_at_zero = True

    def __init__(self, name: str, shape: tuple[int, ...], dtype: Any, take: Callable[[np.ndarray], None], client: Client):
        super().__init__()
        self._client = client
        self.name, self.shape, self.dtype = name, tuple(shape), jnp.dtype(dtype)
        self.on_read, self.aggregation, self.rows_only, self.trainable = False, VariableAggregation.NONE, False, False
        self._value = None
        self._take = take
        self._spare: Any = None

    def get_raw(self) -> tuple[Any, bool]:
        return jnp.zeros(self.shape, self.dtype), False

    def load(self, placement: Placement, *, donated: bool) -> jax.Array:
        self._client.flush()  # so that no push still needs `spare`
        spare, self._spare = self._spare, None
        return jnp.zeros(self.shape, self.dtype) if spare is None or spare.is_deleted() else spare

    def store(self, raw: jax.Array, placement: Placement) -> None:
        self._take(np.asarray(raw))
        self._spare = raw  # the next run may overwrite it

    def take_back(self) -> None:
        self._client.drop()  # drops this run's changes only: `load` has pushed earlier ones


class Notes:
    """Notes about one trace.

    Attributes:
        pushed: variables whose next value only the servers know, and why.
        lookups: the rows that were looked up, with their ids.
    """

    def __init__(self) -> None:
        self.pushed: dict[Ref, str] = {}
        self.num_outputs = 0
        self.lookups: list[tuple[Any, Any]] = []


_notes: "weakref.WeakKeyDictionary[Recorder, Notes]" = weakref.WeakKeyDictionary()


def notes_of(recorder: Recorder) -> Notes:
    """The notes of the trace in progress."""
    return _notes.setdefault(recorder, Notes())


def check_readable(ref: Ref) -> None:
    """Raise VariableError if only the servers will know the value that a read should return here."""
    recorder = current_recorder()
    what = None if recorder is None else notes_of(recorder).pushed.get(ref)
    if what is not None:
        raise VariableError(
            f"Variable {ref.name!r} was read after {what} in the same compiled function. The servers compute its next value "
            "when the function has ended, so it is not known yet. Read it earlier, or in the next scheduled function."
        )


def check_not_in_control_flow(ref: Ref, what: str) -> None:
    """Refuse what is pushed whether or not a branch is taken, and once instead of in each iteration of a loop.

    Raises:
        ContextError: In a branch or loop.
    """
    recorder = current_recorder()
    if recorder is not None and recorder.depth:
        raise ContextError(
            f"Variable {ref.name!r} lies on parameter servers, and {what} of it is inside a branch, a loop, or another function "
            "that JAX traces by itself. What a worker sends to the servers there may only be added: assign_add and assign_sub. Or "
            "let the coordinator decide: schedule one function that does it, and another one that does not."
        )


def record_output(owner: ServerRef, key: Any, value: jax.Array, take: Callable[[np.ndarray], None]) -> None:
    """In a trace: make `value` an output of the program, passed to `take`. `key` identifies it among the variable's outputs."""
    recorder = current_recorder()
    assert recorder is not None
    value = jnp.asarray(value)
    key = (key, value.shape, value.dtype)
    if key not in owner.changes:
        owner.changes[key] = ChangeRef(f"{owner.name} {key[0]}", value.shape, value.dtype, take, owner.site.client)
    recorder.write(owner.changes[key], value)


def change(ref: ServerRef, kind: str, operand: Any, view: Callable[[Any], Any]) -> Any:
    """Change a whole variable, in a trace or eagerly.

    Args:
        ref: the variable.
        kind: the kind of change, as in Operation.
        operand: its operand.
        view: computes the new value from the old one.

    Returns:
        The new value.
    """
    recorder, client = current_recorder(), ref.site.client
    if recorder is None:
        client.change(ref.spec, kind, np.asarray(operand, ref.dtype))
        return ref.read_eagerly()
    check_readable(ref)
    new = view(recorder.read(ref)).astype(ref.dtype)
    if kind == "assign":
        check_not_in_control_flow(ref, "assign")
    if kind == "assign" or ref in recorder.written:
        recorder.write(ref, new)
        return new
    total = jnp.broadcast_to(jnp.asarray(operand, ref.dtype), ref.shape)
    output = next((c for (k, _, _), c in ref.changes.items() if k == kind), None)
    if output is not None and output in recorder.values:
        total = recorder.read(output) + total
    record_output(ref, kind, total, lambda value: client.change(ref.spec, kind, value))
    recorder.replace(ref, new)  # so that the rest of the function sees it
    return new


def change_rows(ref: ServerRef, kind: str, rows: Any, values: Any, *, negative: bool = False) -> None:
    """Change some rows of a variable. A repeated row changes repeatedly."""
    rows = jnp.asarray(in_jax_dtype(rows, lambda: f"The rows to change of variable {ref.name!r}"))
    values = jnp.asarray(values).astype(ref.dtype)
    values = jnp.broadcast_to(-values if negative else values, (*rows.shape, *ref.shape[1:]))
    recorder = current_recorder()
    if recorder is None:
        push_rows(ref, kind, np.asarray(rows), np.asarray(values))
        ref.site.client.flush()
        return
    notes = notes_of(recorder)
    check_not_in_control_flow(ref, "a change of its rows")
    number, notes.num_outputs = notes.num_outputs, notes.num_outputs + 1
    taken: dict[str, np.ndarray] = {}

    def take(part: str, array: np.ndarray) -> None:
        taken[part] = array
        if part == "values":
            push_rows(ref, kind, taken["rows"], array)

    key = kind, number, rows.shape, rows.dtype  # for both outputs, so that one `taken` gets those of one program
    record_output(ref, ("rows", *key), rows, functools.partial(take, "rows"))
    record_output(ref, ("values", *key), values, functools.partial(take, "values"))
    notes.pushed[ref] = f"its rows were changed ({kind})"


def push_rows(ref: ServerRef, kind: str, rows: np.ndarray, values: np.ndarray) -> None:
    """Note a change of rows, in as many parts as it takes to have each row only once in a part."""
    rows, values = check_rows(ref, rows.reshape(-1)), values.reshape(-1, *ref.shape[1:])
    client = ref.site.client
    if kind == "add":
        rows, values = combine_rows(rows, values)
        client.change(ref.spec, kind, values, rows)
        return
    while rows.size:
        _, first = np.unique(rows, return_index=True)
        client.change(ref.spec, kind, values[first], rows[first])
        rest = np.ones(rows.size, bool)
        rest[first] = False
        rows, values = rows[rest], values[rest]


def check_rows(ref: ServerRef, rows: np.ndarray) -> np.ndarray:
    """`rows` as int64. Raises VariableError if one is out of range."""
    rows = rows.astype(np.int64)
    bad = rows[(rows < 0) | (rows >= ref.shape[0])]
    if bad.size:
        raise VariableError(f"Variable {ref.name!r} has rows 0 to {ref.shape[0] - 1}, but row {int(bad[0])} was requested.")
    return rows
