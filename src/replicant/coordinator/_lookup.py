"""Looks up rows of a large variable in the servers' memory, without copying the rest."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import ArgumentError
from ..replicas._copies import VariableAggregation
from ..replicas._placement import Placement
from ..runtime._jax_dtypes import in_jax_dtype
from ..variables import _recorder
from ..variables._known import is_variable, ref_of
from ..variables._recorder import current_recorder
from ..variables._ref import Ref
from .servers._refs import ServerRef, check_readable, check_rows, notes_of


class _ShardRef(Ref):
    """One shard of a variable, as an input of a program that reads some of its rows in place."""

    def __init__(self, owner: ServerRef, position: int):
        super().__init__()
        shard = owner.spec.shards[position]
        self.name, self.shape, self.dtype = f"{owner.name}[{shard.first}:{shard.end}]", shard.shape, owner.dtype
        self.on_read, self.aggregation, self.rows_only, self.trainable = False, VariableAggregation.NONE, False, False
        self._value = None
        self._owner, self._position = owner, position

    def get_raw(self) -> tuple[Any, bool]:
        return self._view().current, False

    def load(self, placement: Placement, *, donated: bool) -> Any:
        client = self._owner.site.client
        client.flush()
        client.note_read()
        return self._view().current

    def _view(self) -> Any:
        return self._owner.site.client.view(self._owner.spec, self._position)


def embedding_lookup(params: Any, ids: Any) -> jax.Array:
    """Look up rows of a variable.

    Args:
        params: a variable with at least one axis. If it lives on parameter servers, in one or several shards, only the requested
            rows are read, and its gradient holds these rows only.
        ids: ints of any shape, each in [0, number of rows). In a compiled function, an id out of range gives NaN (as
            ``jnp.take`` does) and an error when its gradient is applied.

    Returns:
        An array of shape ``ids.shape + params.shape[1:]``.

    Raises:
        ArgumentError: if `params` is not a variable.
        VariableError: outside compiled functions, if the variable lives on servers and an id is out of range.

    Semantics: tf.nn.embedding_lookup.

    >>> import replicant
    >>> table = replicant.Variable([[0.0, 1.0], [2.0, 3.0]])
    >>> embedding_lookup(table, [1, 0, 1]).tolist()
    [[2.0, 3.0], [0.0, 1.0], [2.0, 3.0]]
    """
    if not is_variable(params):
        raise ArgumentError(f"embedding_lookup takes a variable; got {params!r} of type {type(params).__name__}.")
    ref, ids = ref_of(params), jnp.asarray(in_jax_dtype(ids, lambda: "ids"))
    if not isinstance(ref, ServerRef):
        return jnp.take(_recorder.read(ref), ids, axis=0)
    recorder = current_recorder()
    if recorder is None:
        if _recorder.is_heard():  # a tape outside of traces takes the gradient of the whole table
            check_rows(ref, np.asarray(ids).reshape(-1))
            return jnp.take(_recorder.read(ref), ids, axis=0)
        return jnp.asarray(_rows_now(ref, np.asarray(ids)))
    check_readable(ref)
    if ref.tables is None:
        ref.tables = [_ShardRef(ref, i) for i in range(len(ref.spec.shards))]
    rows = _recorder.own_value(_take(ref, [recorder.read(table) for table in ref.tables], ids))
    notes_of(recorder).lookups.append((rows, ids))
    _recorder.tell_listeners(ref, rows, recorder)
    return rows


def _take(ref: ServerRef, tables: list[Any], ids: jax.Array) -> jax.Array:
    if len(tables) == 1:
        return jnp.take(tables[0], ids, axis=0)
    missing = jnp.nan if jnp.issubdtype(ref.dtype, jnp.inexact) else 0
    rows = jnp.full((*ids.shape, *ref.shape[1:]), missing, ref.dtype)
    for shard, table in zip(ref.spec.shards, tables, strict=True):
        inside = (ids >= shard.first) & (ids < shard.end)
        found = jnp.take(table, jnp.clip(ids - shard.first, 0, shard.end - shard.first - 1), axis=0)
        rows = jnp.where(inside.reshape(*ids.shape, *[1] * (found.ndim - ids.ndim)), found, rows)
    return rows


def _rows_now(ref: ServerRef, ids: np.ndarray) -> np.ndarray:
    client, flat = ref.site.client, check_rows(ref, ids.reshape(-1))
    client.flush()
    out = np.empty((flat.size, *ref.shape[1:]), ref.dtype)
    for i, shard in enumerate(ref.spec.shards):
        mine = np.flatnonzero((flat >= shard.first) & (flat < shard.end))
        out[mine] = client.view(ref.spec, i).current[flat[mine] - shard.first]
    return out.reshape(*ids.shape, *ref.shape[1:])
