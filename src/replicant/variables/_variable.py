"""``replicant.Variable``, state of which every replica has a copy."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ..errors import ArgumentError, ArgumentTypeError, ContextError, DivergenceError, LostStateError, VariableError
from ..replicas._collectives import ReduceOp
from ..replicas._context import active_replica_context, active_strategy, get_replica_context
from ..replicas._copies import VariableAggregation, VariableSynchronization, parse_rule, split_value
from ..replicas._own_device import on_own_device
from ..replicas._own_mesh import at_once, beside, in_a_trace, on_own_mesh, without_mesh
from ..replicas._values import DistributedValues, Mirrored, PerReplica, is_array, unstack
from ..runtime import _in_flight
from ..runtime._jax_dtypes import in_jax_dtype
from ..runtime._own_memory import own
from ..tracing.gradients import _eager
from . import _recorder
from ._libraries import connect_libraries
from ._recorder import current_recorder
from ._ref import Ref
from ._slices import in_pieces

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _beside_strategy(method: _Method) -> _Method:
    """Let a method compute where the variable's strategy does. A variable of the default strategy is where JAX puts it."""
    on_own = on_own_mesh(method)

    @functools.wraps(method)
    def wrapped(self: "Variable", *args: Any) -> Any:
        strategy = self._ref.strategy
        if strategy is None or current_recorder() is not None:
            return (method if strategy is None else on_own)(self, *args)
        with on_own_device(strategy.placement):
            return on_own(self, *args)

    return cast(_Method, wrapped)


class Variable:
    """State with one copy per replica.

    Semantics: tf.Variable under tf.distribute, except that assigning a value that differs by replica, without an aggregation, is an
    error.

    Args:
        initial_value: An array, a number, or a callable without arguments that returns one and is called once.
        trainable: Whether gradient tapes watch the variable. The default is True, except with synchronization ON_READ.
        name: The name in messages and checkpoints.
        dtype: The dtype of the value. The default is that of `initial_value`.
        synchronization: AUTO and ON_WRITE keep all copies equal. ON_READ gives each replica its own copy.
        aggregation: How the replicas' values become one: at each assignment (ON_WRITE), or when the variable is read in
            cross-replica context (ON_READ).

    Raises:
        ArgumentError: If `synchronization` or `aggregation` is not a valid name.
        ArgumentTypeError: If the initial value is a PerReplica or Mirrored value.
        ContextError: Inside ``strategy.run`` or a compiled function, or if the initial value was computed in a trace.
        VariableError: For synchronization NONE, and for aggregation MEAN of a dtype that is not a float.

    >>> v = Variable(1.0, name="v")
    >>> print(v.assign_add(2.0))
    3.0
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> "Variable":  # noqa: ARG004, PYI034 - the strategy decides the class
        """Make a variable of the class that the current strategy uses."""
        return object.__new__(getattr(active_strategy(), "variable_class", cls) if cls is Variable else cls)

    def __init__(
        self,
        initial_value: Any,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: Any = None,
        *,
        synchronization: VariableSynchronization | str = VariableSynchronization.AUTO,
        aggregation: VariableAggregation | str = VariableAggregation.NONE,
    ):
        sync = parse_rule(VariableSynchronization, synchronization)
        rule = parse_rule(VariableAggregation, aggregation)
        if current_recorder() is not None or active_replica_context() is not None:
            raise ContextError(
                f"A Variable{f' {name!r}' if name else ''} was created inside `strategy.run` or a compiled function, where every "
                "trace would create it again. Create it once, outside, for example under `strategy.scope()`."
            )
        if sync is VariableSynchronization.NONE:
            raise VariableError("synchronization=NONE is not supported: use ON_WRITE (equal copies) or ON_READ (one per replica).")
        connect_libraries()  # so that Keras, if it is in use, tracks this variable as a weight of its layers
        placement = active_strategy().placement
        with without_mesh(bool(placement.devices)), on_own_device(placement):
            array = _initial_array(initial_value, name, dtype)
        if rule is VariableAggregation.MEAN and not jnp.issubdtype(array.dtype, jnp.inexact):
            raise VariableError(
                f"aggregation=MEAN needs a float dtype, because a mean of {array.dtype} values is not {array.dtype}. Use SUM, or a "
                "float dtype."
            )
        self._ref = OwnRef(array, name or "Variable", sync, rule, trainable)
        self._ref.strategy = active_strategy() if placement.devices else None
        placement.note_variable(self._ref.name)
        num_replicas = active_strategy().num_replicas_in_sync
        if self._ref.copies(num_replicas):  # every copy starts with the initial value
            with _no_trace(), on_own_device(placement):
                self._ref.set_raw(jnp.broadcast_to(array, (num_replicas, *array.shape)), stacked=True)
        self._ref.keep_slices()

    @property
    def name(self) -> str:
        """The name given at creation; "Variable" by default."""
        return self._ref.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one copy."""
        return self._ref.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions of one copy."""
        return len(self._ref.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of one copy."""
        return self._ref.dtype

    @property
    def trainable(self) -> bool:
        """Whether gradient tapes watch it automatically."""
        return self._ref.trainable

    @property
    def synchronization(self) -> VariableSynchronization:
        """When the copies are combined. AUTO is reported as ON_WRITE."""
        return VariableSynchronization.ON_READ if self._ref.on_read else VariableSynchronization.ON_WRITE

    @property
    def aggregation(self) -> VariableAggregation:
        """How the replicas' values become one."""
        return self._ref.aggregation

    def value(self) -> jax.Array:
        """Return this replica's copy inside ``run``, and the (aggregated) value in cross-replica context.

        Raises:
            VariableError: In cross-replica context, if each replica has its own copy and the aggregation is NONE.
        """
        stand_in = self._ref.stand_in
        return _recorder.read(self._ref) if stand_in is None else stand_in.value

    read_value = value

    def numpy(self) -> Any:
        """Return the value as a NumPy array."""
        return jax.device_get(self.value())

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """The copies in replica order. There is only one inside ``run``, and where all replicas share one value."""
        raw, stacked = _recorder.read_copies(self._ref)
        return unstack(raw) if stacked else (self.value() if in_pieces(raw) else raw,)

    def assign(self, value: Any) -> jax.Array:
        """Set the value.

        In replica context, the values of the replicas are combined as the aggregation says.

        Args:
            value: An array or number of the variable's shape, which is converted to its dtype.

        Returns:
            The new value.

        Raises:
            ArgumentError: If the shape is wrong, or for a Python number in replica context with aggregation SUM.
            ContextError: Inside ``merge_call`` with synchronization ON_READ, or inside a function that JAX traces separately.
            DivergenceError: For a PerReplica value in cross-replica context. If the aggregation is NONE and the replicas' values
                can differ, ``run`` raises it.
            LostStateError: Inside a function under ``jax.jit`` or another JAX transformation, outside of `function` and ``run``.
        """
        return self._assign("assign", value, lambda _, new: new)

    def assign_add(self, delta: Any) -> jax.Array:
        """Add `delta`, which is combined over the replicas like the value of ``assign``.

        Args:
            delta: An array or number of the variable's shape, which is converted to its dtype.

        Returns:
            The new value.

        Raises:
            VariableError: In cross-replica context with synchronization ON_READ, if the aggregation is SUM or NONE.
        """
        return self._assign("assign_add", delta, lambda old, d: old + d)

    def assign_sub(self, delta: Any) -> jax.Array:
        """Subtract `delta`, which is combined over the replicas like the value of ``assign``.

        Args:
            delta: An array or number of the variable's shape, which is converted to its dtype.

        Returns:
            The new value.

        Raises:
            VariableError: In cross-replica context with synchronization ON_READ, if the aggregation is SUM or NONE.
        """
        return self._assign("assign_sub", delta, lambda old, d: old - d)

    @_beside_strategy
    def _assign(self, what: str, value: Any, update: Callable[[Any, Any], Any]) -> jax.Array:
        ref, recorder = self._ref, current_recorder()
        if ref.stand_in is not None and ref.stand_in.in_functional_code():
            return ref.stand_in.assign(update(self.value(), self._checked(what, value)).astype(ref.dtype))
        if get_replica_context() is None or recorder is None:
            return self._assign_cross_replica(what, value, update)
        operand = self._checked(what, value)
        if ref.aggregation is VariableAggregation.SUM and not ref.on_read and not is_array(value) and self._num_replicas() > 1:
            raise ArgumentError(
                f"{what} of variable {ref.name!r} with aggregation=SUM got the Python number {value!r}, which is the same on all "
                f"{self._num_replicas()} replicas, so you probably do not want its sum. Pass jnp.asarray({value!r}) to add one "
                "per replica, or use aggregation=ONLY_FIRST_REPLICA."
            )
        combined = recorder.combine(ref, operand)
        recorder.write_combined(ref, update(recorder.read(ref), combined).astype(ref.dtype))
        return _recorder.read(ref, assigned=True)  # for a tape, this is the variable and not what the new value was made of

    def _assign_cross_replica(self, what: str, value: Any, update: Callable[[Any, Any], Any]) -> jax.Array:
        ref, recorder = self._ref, current_recorder()
        if isinstance(value, PerReplica):
            raise DivergenceError(
                f"{what} of variable {ref.name!r} got a PerReplica value in cross-replica context, where there is one value for "
                "all copies. Reduce it first with strategy.reduce(...), or assign inside `strategy.run`."
            )
        if ref.on_read and isinstance(recorder, _recorder.ReplicaRecorder):
            raise ContextError(
                f"{what} of variable {self.name!r} with synchronization=ON_READ was called inside merge_call, which acts for all "
                "replicas, but each replica has its own copy. Do it in the replica function, or outside `run`."
            )
        operand = self._checked(what, value.value if isinstance(value, Mirrored) else value)
        raw, stacked = _recorder.read_copies(ref)
        if ref.on_read and what != "assign":
            if ref.aggregation is VariableAggregation.SUM or (stacked and ref.aggregation is VariableAggregation.NONE):
                raise VariableError(
                    f"Variable {ref.name!r} has synchronization=ON_READ and aggregation={ref.aggregation.name}, so {what} in "
                    "cross-replica context is ambiguous (once, or once per copy?). Do it inside `strategy.run`, or use assign with "
                    "the new value."
                )
            changed = update(raw, operand).astype(ref.dtype)
            if isinstance(recorder, _recorder.CrossRecorder):
                recorder.write_raw(ref, changed)
            else:
                _check_not_traced(what, ref, changed)
                ref.set_raw(changed, stacked=stacked)
            return _recorder.read(ref)
        new = update(None if what == "assign" else _recorder.read(ref), operand).astype(ref.dtype)
        if recorder is None:
            _check_not_traced(what, ref, new)
            with _in_flight.between_starts():
                ref.set_raw(split_value(new, ref.aggregation, raw.shape[0]) if stacked else new, stacked=stacked)
                ref.expose()
            ref.keep_slices()
            return new
        if isinstance(recorder, _recorder.CrossRecorder):
            recorder.write(ref, new)
        else:
            recorder.write_combined(ref, new)  # inside merge_call, there is one value for all replicas
        # The sum of the copies may differ from `new` in the last bit.
        return _recorder.own_value(new) if stacked else _recorder.read(ref, assigned=True)

    def _checked(self, what: str, value: Any) -> jax.Array:
        array = self._beside(in_jax_dtype(value, lambda: f"{what} of variable {self.name!r}: the value", to=self.dtype))
        array = jnp.asarray(own(array))
        if array.shape != self.shape:
            raise ArgumentError(
                f"{what} of variable {self.name!r} got a value of shape {array.shape}, but the variable has shape {self.shape}. "
                "They must be equal."
            )
        return array.astype(self.dtype)

    def _beside(self, value: Any) -> Any:
        """Return a value so that it may be computed with together with the stored array."""
        return value if self._ref.strategy is None or current_recorder() is not None else beside(value, self._ref.get_raw()[0])

    def _num_replicas(self) -> int:
        context = get_replica_context()
        return context.num_replicas_in_sync if context else 1

    # Updates of rows, as of an embedding: `indices` select rows along axis 0, and `updates` has one row per index.

    def scatter_add(self, indices: Any, updates: Any) -> jax.Array:
        """Add `updates` to the rows `indices`.

        In replica context, aggregation SUM adds the rows of all replicas, MEAN divides them by the number of replicas first, and
        ONLY_FIRST_REPLICA adds those of replica 0.

        Args:
            indices: An integer array of row numbers along axis 0.
            updates: An array with one row per index.

        Returns:
            The new value of the whole variable.
        """
        return self._scatter("scatter_add", indices, updates)

    def scatter_sub(self, indices: Any, updates: Any) -> jax.Array:
        """Subtract `updates` from the rows `indices`, with the arguments and rules of ``scatter_add``."""
        return self._scatter("scatter_sub", indices, updates)

    def scatter_mul(self, indices: Any, updates: Any) -> jax.Array:
        """Multiply the rows `indices` by `updates`, with the arguments and rules of ``scatter_add``."""
        return self._scatter("scatter_mul", indices, updates)

    def scatter_div(self, indices: Any, updates: Any) -> jax.Array:
        """Divide the rows `indices` by `updates`, with the arguments and rules of ``scatter_add``."""
        return self._scatter("scatter_div", indices, updates)

    def scatter_max(self, indices: Any, updates: Any) -> jax.Array:
        """Replace the rows `indices` by their maximum with `updates`. See ``scatter_add``.

        Raises:
            VariableError: In replica context, if the aggregation is SUM or MEAN.
        """
        return self._scatter("scatter_max", indices, updates)

    def scatter_min(self, indices: Any, updates: Any) -> jax.Array:
        """Replace the rows `indices` by their minimum with `updates`. See ``scatter_add``.

        Raises:
            VariableError: In replica context, if the aggregation is SUM or MEAN.
        """
        return self._scatter("scatter_min", indices, updates)

    def scatter_update(self, indices: Any, updates: Any) -> jax.Array:
        """Replace the rows `indices` by `updates`. See ``scatter_add``.

        Raises:
            VariableError: In replica context, if the aggregation is SUM or MEAN.
        """
        return self._scatter("scatter_update", indices, updates)

    @_beside_strategy
    def _scatter(self, what: str, indices: Any, updates: Any) -> jax.Array:
        ref, context, recorder = self._ref, get_replica_context(), current_recorder()
        name = f"{what} of variable {self.name!r}"
        indices = in_jax_dtype(indices, lambda: f"{name}: `indices`")
        updates = in_jax_dtype(updates, lambda: f"{name}: `updates`", to=ref.dtype)
        rows, values = jnp.asarray(own(self._beside(indices))), jnp.asarray(own(self._beside(updates))).astype(ref.dtype)
        if ref.stand_in is not None and ref.stand_in.in_functional_code():
            return ref.stand_in.assign(_SCATTER[what](self.value(), rows, values).astype(ref.dtype))
        if context is not None and recorder is not None and context.num_replicas_in_sync > 1 and not ref.on_read:
            rows, values = self._all_rows(what, rows, values)
        new = _SCATTER[what](_recorder.read(ref), rows, values).astype(ref.dtype)
        if recorder is None:
            ref.set_raw(new, stacked=False)
            return new
        recorder.write_combined(ref, new)
        return _recorder.read(ref, assigned=True)

    def _all_rows(self, what: str, rows: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the rows of the replicas that count, as the aggregation says."""
        rule, context = self._ref.aggregation, get_replica_context()
        assert context is not None
        if rule is VariableAggregation.NONE:
            return rows, values
        if rule is VariableAggregation.ONLY_FIRST_REPLICA:
            first = context.replica_id_in_sync_group == 0
            return tuple(context.all_reduce(ReduceOp.SUM, [jnp.where(first, x, jnp.zeros_like(x)) for x in (rows, values)]))
        if what in ("scatter_max", "scatter_min", "scatter_update"):
            raise VariableError(
                f"{what} of variable {self.name!r} with aggregation={rule.name} is not defined, because several replicas may name "
                "the same row. Create the variable with aggregation NONE or ONLY_FIRST_REPLICA."
            )
        if rule is VariableAggregation.MEAN:
            values = values / context.num_replicas_in_sync
        return context.all_gather(rows, 0), context.all_gather(values, 0)

    def __repr__(self) -> str:
        if self._ref.on_read and self._ref.aggregation is VariableAggregation.NONE and self._ref.get_raw()[1]:
            value = "(one for each replica)"
        elif current_recorder() is None and in_pieces(self._ref.get_raw()[0]):
            value = "(in slices on all workers)"  # whoever prints it need not be all workers
        else:
            value = self.numpy() if current_recorder() is None else "(traced)"
        return f"<Variable {self.name!r} shape={self.shape} dtype={self.dtype} value={value}>"

    def __jax_array__(self) -> jax.Array:
        return self.value()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        del copy
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __float__(self) -> float:
        return float(self.value())

    def __int__(self) -> int:
        return int(self.value())

    def __getitem__(self, key: Any) -> jax.Array:
        return self.value()[key]

    def __neg__(self) -> jax.Array:
        return -self.value()

    def __abs__(self) -> jax.Array:
        return abs(self.value())


def _no_trace() -> AbstractContextManager[Any]:
    """Leave the trace in which Keras calls ``build`` of a layer for its shapes: a variable made there is no part of it."""
    return at_once() if in_a_trace() else nullcontext()


def _initial_array(initial_value: Any, name: str | None, dtype: Any) -> jax.Array:
    with _no_trace():
        value = initial_value() if callable(initial_value) else initial_value
        if isinstance(value, DistributedValues):
            raise ArgumentTypeError(
                f"The initial value of a variable must be the same on all replicas; got a {type(value).__name__}. Start from one "
                "value with synchronization=ON_READ, and assign the replicas' values inside `strategy.run`."
            )
        value = in_jax_dtype(value, lambda: f"The initial value of Variable {name or 'Variable'!r}", to=dtype)
        array = jnp.array(own(beside(value) if active_strategy().placement.devices else value), dtype=dtype, copy=True)
    if isinstance(array, Tracer):
        raise ContextError(
            f"The initial value of Variable {name or 'Variable'!r} (shape {array.shape}) was computed inside a function that JAX "
            "traces, so it has no value yet. Pass a function that computes it, Variable(lambda: ...), or a NumPy array. In `build` "
            "of a Keras layer, you can also use self.add_weight(...)."
        )
    return array


def _check_not_traced(what: str, ref: Ref, new: Any) -> None:
    """Raise if `new` has no value yet and no program of ours will return it. A tape outside of programs may hold a tracer."""
    if isinstance(new, Tracer) and _eager.current() is None:
        raise LostStateError(
            f"{what} of variable {ref.name!r} was called inside a function under jax.jit or another JAX transformation, so the new "
            "value would be lost. Decorate the function with replicant.function instead, or return the new value and assign it "
            "outside."
        )


def _operator(name: str) -> Callable[[Variable, Any], Any]:
    def method(self: Variable, other: Any) -> Any:
        return getattr(self.value(), name)(other.value() if isinstance(other, Variable) else other)

    method.__name__ = name
    return method


def _comparison(name: str) -> Callable[[Variable, Any], Any]:
    compare = _operator(name)

    def method(self: Variable, other: Any) -> Any:
        return compare(self, other) if isinstance(other, bool | int | float | complex) or is_array(other) else NotImplemented

    method.__name__ = name
    return method


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
for _name in (*_ARITHMETIC, "lt", "le", "gt", "ge"):
    setattr(Variable, f"__{_name}__", _operator(f"__{_name}__"))
for _name in ("eq", "ne"):  # of two variables, each equals only itself, so that it can be a key
    setattr(Variable, f"__{_name}__", _comparison(f"__{_name}__"))
for _name in _ARITHMETIC:
    setattr(Variable, f"__r{_name}__", _operator(f"__r{_name}__"))

_SCATTER: dict[str, Callable[[Any, Any, Any], Any]] = {
    "scatter_add": lambda v, i, u: v.at[i].add(u),
    "scatter_sub": lambda v, i, u: v.at[i].add(-u),
    "scatter_mul": lambda v, i, u: v.at[i].multiply(u),
    "scatter_div": lambda v, i, u: v.at[i].divide(u),
    "scatter_max": lambda v, i, u: v.at[i].max(u),
    "scatter_min": lambda v, i, u: v.at[i].min(u),
    "scatter_update": lambda v, i, u: v.at[i].set(u),
}


class OwnRef(Ref):
    """The storage of a ``replicant.Variable``."""

    def __init__(
        self, array: jax.Array, name: str, sync: VariableSynchronization, aggregation: VariableAggregation, trainable: bool | None
    ):
        super().__init__()
        self.name, self.shape, self.dtype = name, array.shape, array.dtype
        self.on_read = sync is VariableSynchronization.ON_READ
        self.aggregation = aggregation
        self.rows_only = False
        self.trainable = (not self.on_read) if trainable is None else trainable
        self._value, self._stacked = array, False

    def get_raw(self) -> tuple[Any, bool]:
        return self._value, self._stacked

    def set_raw(self, raw: Any, *, stacked: bool) -> None:
        self._value, self._stacked = raw, stacked
