"""How an ``nnx.Variable`` keeps its value once a compiled step has used it.

Flax keeps the value in one slot of the object, ``_raw_value``. `RawValue` takes the place of that slot. A Variable that no step has
used still has its value there. Afterwards, a `Cell` is there in its place, with one `NnxRef` for each array of the value.

A Variable that was made inside a trace, such as the copies that ``nnx.value_and_grad`` or ``nnx.jit`` make, is not state of a step.
"""

import functools
import threading
from typing import Any, Self

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from flax import nnx
from jax.core import Tracer

from ..errors import VariableError
from ..replicas._context import active_strategy
from ..replicas._own_mesh import at_once, in_a_trace
from ..replicas._values import Mirrored, is_array, is_distributed
from ..tracing.gradients import _eager
from ..variables import _recorder
from ..variables._recorder import current_recorder
from ..variables._ref import Ref
from ._rules import Rule, rule_of

OUTSIDE = jex.get_opaque_trace_state(convention="nnx")
_NUMBERS = (bool, int, float, complex)


class NnxRef(Ref):
    """One array of an ``nnx.Variable``. Random keys are kept as their numbers."""

    if_copies_differ = (
        "Combine what differs first. If it is the gradients: grads = replicant.get_replica_context().all_reduce('SUM', grads) "
        "before optimizer.update(model, grads), with a loss that is divided by the size of the global batch. A state that each "
        "replica adds to and that is read outside of `run` is an nnx.metrics.MetricState."
    )

    def __init__(self, value: Any, rule: Rule, name: str):
        super().__init__()
        typed = is_array(value) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        self.key_impl: Any = jax.random.key_impl(value) if typed else None
        array = self.encoded(value)
        self.name, self.shape, self.dtype = name, array.shape, array.dtype
        self.on_read, self.aggregation, self.rows_only = rule.on_read, rule.aggregation, rule.rows_only
        self.trainable, self.slot = rule.trainable, rule.slot
        self.left = False  # whether its Variable has got a value of another shape meanwhile
        self.named = False
        self._value, self._stacked = array, False

    def encoded(self, value: Any) -> Any:
        """Return a value of the Variable in the form that is stored."""
        if self.key_impl is not None:
            return jax.random.key_data(value)
        return jnp.asarray(value, jax.dtypes.canonicalize_dtype(jnp.result_type(value)))  # a number becomes no weakly typed array

    def decoded(self, array: Any) -> Any:
        """Return a stored array as the Variable's value."""
        return array if self.key_impl is None else jax.random.wrap_key_data(array, impl=self.key_impl)

    def get_raw(self) -> tuple[Any, bool]:
        return self._value, self._stacked

    def set_raw(self, raw: Any, *, stacked: bool) -> None:
        self._value, self._stacked = raw, stacked

    def fits(self, value: Any) -> bool:
        """Whether the variable can hold a value without a new Ref."""
        if not (is_array(value) or isinstance(value, _NUMBERS)):
            return False
        typed = is_array(value) and jnp.issubdtype(jnp.result_type(value), jax.dtypes.prng_key)
        if typed or self.key_impl is not None:
            return typed and self.key_impl == jax.random.key_impl(value) and jnp.shape(value) == tuple(self.shape[:-1])
        if jnp.shape(value) != tuple(self.shape):
            return False
        dtype = jax.dtypes.canonicalize_dtype(jnp.result_type(value))
        weak = isinstance(value, _NUMBERS) or bool(getattr(value, "weak_type", False))
        return dtype == self.dtype or (weak and jnp.can_cast(dtype, self.dtype, "same_kind"))


class Cell:
    """The value of a Variable: its structure, its leaves that are not arrays, and a Ref for each that is one."""

    __slots__ = ("leaves", "refs", "tree")

    def __init__(self, value: Any, kind: type, rule: Rule | None = None, strategy: Any = None):
        leaves, self.tree = jax.tree.flatten(value)
        self.leaves: list[Any] = [
            NnxRef(x, rule or rule_of(kind, jnp.result_type(x)), f"{kind.__name__}{list(jnp.shape(x))}") if _is_state(x) else x
            for x in leaves
        ]
        self.refs: list[NnxRef] = [x for x in self.leaves if isinstance(x, NnxRef)]
        if strategy is not None:
            for ref in self.refs:
                ref.strategy = strategy
                strategy.placement.note_variable(ref.name)
                ref.keep_slices()

    def get(self) -> Any:
        """Return the value, as the trace in progress or eager code sees it."""
        return jax.tree.unflatten(self.tree, [_read(x) if isinstance(x, NnxRef) else x for x in self.leaves])

    def fits(self, value: Any) -> bool:
        """Whether a value has the same structure, shapes and dtypes."""
        leaves, tree = jax.tree.flatten(value)
        return tree == self.tree and all(
            old.fits(new) if isinstance(old, NnxRef) else old is new or old == new
            for old, new in zip(self.leaves, leaves, strict=True)
        )

    def set(self, value: Any) -> None:
        """Store a value that fits: in the trace in progress or, in eager code, at once."""
        for ref, new in zip(self.leaves, jax.tree.leaves(value), strict=True):
            if isinstance(ref, NnxRef):
                _write(ref, ref.encoded(new).astype(ref.dtype))

    def follow(self, rule: Rule) -> None:
        """Let another rule hold for the copies, before a step has used them."""
        for ref in self.refs:
            ref.on_read, ref.aggregation, ref.rows_only = rule.on_read, rule.aggregation, rule.rows_only

    def leave(self) -> None:
        """Tell the programs that use the Refs that the Variable does not have them any more."""
        for ref in self.refs:
            ref.left = True


def _is_state(leaf: Any) -> bool:
    return is_array(leaf) or isinstance(leaf, _NUMBERS)


class _Asides(threading.local):
    def __init__(self) -> None:
        self.open: list[dict[NnxRef, Any]] = []


_asides = _Asides()


def _read(ref: NnxRef) -> Any:
    for aside in reversed(_asides.open):
        if ref in aside:
            return ref.decoded(aside[ref])
    return ref.decoded(_recorder.read(ref))


def _write(ref: NnxRef, array: Any) -> None:
    recorder = current_recorder()
    if _asides.open:
        _asides.open[-1][ref] = array
    elif recorder is not None:
        recorder.write(ref, array)
    else:
        ref.set_raw(array, stacked=False)
        ref.expose()
        ref.moved = None
        ref.keep_slices()


class Aside:
    """What Variables are assigned in a function that is traced by itself, set aside until it has ended."""

    def __init__(self) -> None:
        self._new: dict[NnxRef, Any] = {}

    def __enter__(self) -> Self:
        _asides.open.append(self._new)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _asides.open.pop()

    def assigned(self) -> list[Any]:
        """Return the values that were assigned."""
        return list(self._new.values())

    values = assigned

    def before(self) -> list[Any]:
        """Return the values that the same Variables have around this one."""
        return [ref.encoded(_read(ref)) for ref in self._new]

    def follow(self, other: "Aside", values: list[Any]) -> None:
        """Begin with values for the Variables that were assigned in `other`."""
        self._new.update(zip(other._new, values, strict=True))

    def put_back(self, values: list[Any]) -> None:
        """Assign the values, as results of the function."""
        for ref, value in zip(list(self._new), values, strict=True):
            _write(ref, value)


def is_outside(value: Any) -> bool:
    """Whether a module or Variable was made outside of every trace, so that it is state of the program."""
    state = value._trace_state if isinstance(value, nnx.Variable) else value._pytree__state.trace_state
    return state.jax_trace == OUTSIDE


def _in_a_step() -> bool:
    """Whether this is called in the trace of a step, or of a function in it that is traced by itself on its behalf."""
    recorder = current_recorder()
    if _asides.open or (recorder is None and _eager.current() is not None):
        return True
    return recorder is not None and recorder.trace == jex.get_opaque_trace_state(convention="nnx")


def may_change(variable: Any) -> bool:
    """Whether a Variable that was made outside may be assigned here, where a program is traced."""
    return _in_a_step() and is_outside(variable)


def may_be_used(module: Any) -> bool:
    """Whether a module that was made outside may be taken apart here, where a program is traced."""
    return _in_a_step() and is_outside(module)


class RawValue:
    """Takes the place of the slot ``_raw_value`` of ``nnx.Variable``.

    Args:
        slot: The slot, which still stores what each Variable has.
    """

    def __init__(self, slot: Any):
        self.slot = slot

    def __get__(self, variable: Any, owner: Any = None) -> Any:
        if variable is None:
            return self
        raw = self.slot.__get__(variable)
        if type(raw) is Cell:
            return raw.get()
        if current_recorder() is None and not _recorder.is_heard():
            return raw
        cell = self.cell(variable)
        return raw if cell is None else cell.get()

    def __set__(self, variable: Any, value: Any) -> None:
        if not isinstance(value, jax.Array):
            value = jax.tree.map(_bare, value, is_leaf=is_distributed)
        try:
            raw = self.slot.__get__(variable)
        except AttributeError:  # it is being made
            self.slot.__set__(variable, value)
            self._note_strategy(variable, value)
            return
        recorder = current_recorder()
        cell = raw if type(raw) is Cell else None if recorder is None else self.cell(variable)
        if cell is None:
            self.slot.__set__(variable, value)
        elif cell.fits(value) and (recorder is not None or not _holds_tracers(value)):
            cell.set(value)
        elif recorder is not None:
            raise VariableError(_does_not_fit(cell, value))
        else:
            cell.leave()
            self.slot.__set__(variable, value)

    def cell(self, variable: Any, rule: Rule | None = None) -> Cell | None:
        """Return the Cell of a Variable, which is made at its first use; None for Variables that are not state of programs."""
        raw = self.slot.__get__(variable)
        if type(raw) is Cell:
            if rule is not None:
                raw.follow(rule)
            return raw
        if not is_outside(variable):
            return None
        if is_ref(variable):
            raise VariableError(
                f"An nnx.{type(variable).__name__} with ref=True holds a jax.Ref, which steps cannot keep equal on all replicas. "
                "Make it with ref=False (the default), or call nnx.use_refs(False) first."
            )
        if not self._can_have_cell(variable, raw):
            return None
        with at_once():
            cell = Cell(raw, type(variable), rule)
        self.slot.__set__(variable, cell)
        return cell

    def _can_have_cell(self, variable: Any, raw: Any) -> bool:
        leaves = jax.tree.leaves(raw)
        return not is_of_keras(type(variable)) and not _holds_tracers(leaves) and any(map(_is_state, leaves))

    def _note_strategy(self, variable: Any, value: Any) -> None:
        """Let a new Variable belong to the strategy in whose scope it was made."""
        if current_recorder() is not None or in_a_trace():
            return
        placement = active_strategy().placement
        if placement.devices and placement.planning is None and self._can_have_cell(variable, value) and not is_ref(variable):
            self.slot.__set__(variable, Cell(value, type(variable), strategy=active_strategy()))


@functools.cache
def is_of_keras(kind: type) -> bool:
    """Whether Variables of a type are Keras's (``KERAS_NNX_ENABLED``), whose own provider takes care of them."""
    return any(base.__module__.partition(".")[0] == "keras" for base in kind.__mro__)


def is_ref(variable: Any) -> bool:
    """Whether a Variable holds a ``jax.Ref``."""
    return bool(variable._var_metadata.get("ref"))


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, Mirrored) else value


def _holds_tracers(value: Any) -> bool:
    return any(isinstance(x, Tracer) for x in jax.tree.leaves(value))


def _does_not_fit(cell: Cell, value: Any) -> str:
    def shown(leaves: list[Any]) -> str:
        return ", ".join(
            f"{jnp.dtype(x.dtype).name}{list(x.shape)}" if hasattr(x, "dtype") and not jnp.issubdtype(x.dtype, jax.dtypes.extended)
            else f"{getattr(x, 'dtype', type(x).__name__)}" for x in leaves
        )  # fmt: skip

    name = cell.refs[0].name if cell.refs else "a Variable"
    assigned = shown(jax.tree.leaves(value))
    return (
        f"Variable {name!r} holds {shown(cell.leaves)}, and a compiled step assigned {assigned}. Its structure, shapes and dtypes "
        "stay the same in a step. Convert the value (`x.astype(dtype)`), or assign the new kind of value outside."
    )
