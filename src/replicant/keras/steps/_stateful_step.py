"""Steps of a model that are written the TensorFlow way: ``train_step(self, data)``, and likewise ``test_step``, ``predict_step``.

Keras on JAX wants ``train_step(self, state, data)``, which gets all variables as arrays and returns them. A step in TensorFlow's
form reads and assigns the variables themselves. Here it is traced like a ``replicant.function``, in the global view: it is one
replica that has the whole batch. What it reads and assigns besides the variables of Keras's state, such as further optimizers,
travels with that state, so everything that acts on a step's state acts on all of it.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.core import ShapedArray

from ...errors import ArgumentError, ContextError, ReplicantError
from ...programs.running._segmented import trace_options
from ...programs.steps._pathless_gradients import MAX_TRACES, learn, log_traces
from ...programs.validity._dependencies import Reach
from ...programs.validity._guards import Watch, watch_layers, watch_trainable
from ...programs.validity._leaked_tracers import Outside
from ...replicas._collectives import SingleReplica
from ...replicas._context import ReplicaContext, default_strategy, entered
from ...replicas._placement import Placement
from ...tracing._inputs import Inputs, make_jaxpr
from ...tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from ...tracing.replicas._interpreter import run_alone
from ...variables._known import is_variable, ref_of
from ...variables._libraries import tracing
from ...variables._recorder import CrossRecorder, Facts, ReplicaRecorder, current_recorder, read, recording
from ...variables._ref import Ref
from .. import _internals
from ..state._global_generator import following, global_generator
from ..state._refs import ref_of_keras

# The parts of the state of each of Keras's steps.
PARTS = {
    "train_step": ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables"),
    "test_step": ("trainable_variables", "non_trainable_variables", "metrics_variables"),
    "predict_step": ("trainable_variables", "non_trainable_variables"),
}
_OTHERS = PARTS["train_step"].index("non_trainable_variables")  # the part with which other variables travel
_SLOTS = PARTS["train_step"].index("optimizer_variables")  # and, in training, with which other optimizers do
_KNOWN = "_replicant_stateful_steps"


def is_stateful(step: Callable[..., Any]) -> bool:
    """Whether a model's step takes only the data, as in TensorFlow, and not ``(state, data)``."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(step).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
        return False  # such a step hands on what it gets
    return sum(each.kind in positional and each.default is inspect.Parameter.empty for each in parameters) == 1


def step_of(model: Any, name: str) -> Callable[..., Any]:
    """Return a model's step as a function ``(state, data) -> (outputs, state)``, whichever form it is written in."""
    step = getattr(model, name)
    if not is_stateful(step):
        return step
    known = model.__dict__.setdefault(_KNOWN, {})
    if name not in known or known[name].code != code_of(step):
        known[name] = StatefulStep(model, step, name)
    return known[name]


def code_of(step: Any) -> Any:
    """Return what tells one version of a method from another that replaces it."""
    return getattr(step, "__func__", step)


def forget(model: Any) -> None:
    """Forget what is known of a model's steps, because it is compiled again."""
    model.__dict__.pop(_KNOWN, None)


def other_optimizers(model: Any) -> dict[str, Any]:
    """Return the optimizers among a model's attributes besides ``model.optimizer``, by name."""
    found: dict[str, Any] = {}
    for name, value in vars(model).items():
        items = keras.tree.flatten(value) if isinstance(value, list | tuple | dict) else [value]
        for i, item in enumerate(items):
            if isinstance(item, _internals.BaseOptimizer) and all(item is not each for each in (model.optimizer, *found.values())):
                found[name if item is value else f"{name}.{i}"] = item
    return found


def unsaved(model: Any) -> list[str]:
    """Return the names of the variables that a model's training step uses and that do not belong to anything it has."""
    step = model.__dict__.get(_KNOWN, {}).get("train_step")
    if step is None:
        return []
    saved = {ref_of_keras(variable) for optimizer in other_optimizers(model).values() for variable in optimizer.variables}
    generator = global_generator()
    saved |= set() if generator is None else {ref_of_keras(generator.state)}  # a backup has its state with those of NumPy's
    return sorted(ref.name for ref in step.others if ref not in saved)


def inside(step: Any) -> "StatefulStep | None":
    """Return the StatefulStep that `step` is, or that it wraps; None if there is none."""
    while step is not None and not isinstance(step, StatefulStep):
        step = getattr(step, "__wrapped__", None)
    return step


class _WholeBatch(CrossRecorder):
    """The recorder of a step that is one replica with the whole batch."""

    def __init__(self, inputs: Inputs, facts: Facts, what: str):
        super().__init__(lambda ref, _: inputs.take(ref, _aval(ref)), None, facts)
        self._what = what

    def use(self, placement: Placement) -> None:
        """Refuse `run` of a strategy."""
        raise ContextError(
            f"strategy.run was called inside {self._what}, which Keras's loop already computes on all devices of the strategy: it "
            "sees the whole batch. Call the function without `run`, or write the loop yourself and call `run` there."
        )


@dataclasses.dataclass(frozen=True)
class _Traced:
    """The trace of a step. The inputs of its jaxpr are the variables of the state, part by part, and the leaves of the data."""

    closed: ClosedJaxpr
    tree: Any  # of its results: the outputs, and the parts of the new state
    options: object  # with which JAX has traced it


class StatefulStep:
    """A step that reads and assigns variables, as a function ``(state, data) -> (outputs, state)`` that only uses its arguments.

    Args:
        model: The model.
        step: Its method, which takes the data.
        name: The name of the method.
    """

    def __init__(self, model: Any, step: Callable[[Any], Any], name: str):
        self._model, self._step, self._name = model, step, name
        self.code = code_of(step)
        self._others: dict[Ref, None] = {}  # the variables that are not in Keras's state
        self._at_home: dict[Ref, Any] = {}  # their values that lie where the step needs them
        self._along: list[list[Ref]] = []  # those of the step that is being computed, as `complete` has added them
        self._follow: Callable[[], Any] = tuple  # before each step
        self._num_traces = 0
        self._known: set[Any] = set()  # the batches for which all variables are known
        self._traces: dict[Any, _Traced] = {}  # by the signature of the batch
        self._watch = Watch()  # the traces are valid while this holds
        self._version = 0
        self.__name__, self.__qualname__ = name, f"{type(model).__name__}.{name}"

    @property
    def others(self) -> list[Ref]:
        """The variables that the step uses and that are not in Keras's state."""
        own = {ref for part in self._own() for ref in part}
        return [ref for ref in self._others if ref not in own]

    def _own(self) -> list[list[Ref]]:
        return _refs(self._model, self._name)

    def _added(self) -> list[list[Ref]]:
        """Return the other variables, by the part of the state with which they travel."""
        added: list[list[Ref]] = [[] for _ in PARTS[self._name]]
        trains = self._name == "train_step"
        for ref in self.others:
            added[_SLOTS if trains and ref.slot else _OTHERS].append(ref)
        return added

    def _refs(self) -> list[list[Ref]]:
        return [[*own, *others] for own, others in zip(self._own(), self._added(), strict=True)]

    def complete(self, state: Sequence[Any]) -> tuple[Any, ...]:
        """Return Keras's state together with the values of the other variables."""
        self._follow()
        self._along = self._added() if self._others else []
        if not any(self._along):
            return tuple(state)
        return tuple(self._with(part, refs) if refs else part for part, refs in zip(state, self._along, strict=True))

    def _with(self, part: Any, refs: list[Ref]) -> Any:
        values = [_value(ref) for ref in refs]
        at_home = all(self._at_home.get(ref) is value for ref, value in zip(refs, values, strict=True))
        whole = [*part, *values]
        return type(part)(whole) if at_home else whole

    def keras_part(self, state: Sequence[Any]) -> tuple[Any, ...]:
        """Give the other variables their values in `state`, and return the rest: Keras's state."""
        if not any(self._along):
            return tuple(state)
        return tuple(self._without(part, refs) if refs else part for part, refs in zip(state, self._along, strict=True))

    def _without(self, part: Any, refs: list[Ref]) -> Any:
        items = list(part)
        for ref, value in zip(refs, items[-len(refs) :], strict=True):
            ref.set_raw(value, stacked=False)
            ref.owned, ref.owned_on, ref.moved = value, None, None
            self._at_home[ref] = value
        return type(part)(items[: -len(refs)])

    def version(self) -> int:
        """Return a number that is another one once variables or layers have been frozen or thawed. The old traces are forgotten.

        Programs get the state by its place, so a program for other trainable variables would train the wrong ones.
        """
        if not self._watch.holds():
            self._watch = Watch()
            self._known.clear()
            self._traces.clear()
            self._version += 1
        return self._version

    def trace(self, data: Any, around: Callable[[], AbstractContextManager[Any]] | None = None) -> None:
        """Trace the step for batches like `data`, if that is new, until all its variables exist.

        Args:
            data: The batch, or anything of its structure, shapes and dtypes.
            around: Makes what surrounds the step in the program. None if there will be another trace for the program.
        """
        data = _shapes(data)
        leaves, tree = jax.tree.flatten(data)
        key = tree, tuple(leaves), around is None
        if key in self._known:
            return
        reach = Reach(self._step, (data,), {})
        outside = Outside(reach)
        before, made = self._num_traces, False
        for _ in range(MAX_TRACES):
            with tracing(), reach.watching(), nullcontext() if around is None else around():
                recorder, traced = self._trace(data)
            outside.check(self._what)
            if recorder.made_variables:  # the code will not make them again
                made = True
                continue
            log_traces(self._what, self._num_traces - before, made=made)
            self._known.add(key)
            self._follow = following(self._others) or self._follow
            if around is not None:
                self._traces[self._signature(data)] = traced
            self._watch = Watch()
            watch_trainable(self._watch, [ref for part in self._refs() for ref in part])
            watch_layers(self._watch, reach.settle())
            return
        raise ReplicantError(
            f"{self._what} made variables in each of its {MAX_TRACES} traces. Create variables, layers and optimizers once, in "
            "__init__, build or compile."
        )

    def _signature(self, data: Any) -> Any:
        leaves, tree = jax.tree.flatten(data)
        sizes = map(len, self._refs())
        dtypes = [jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True) for x in leaves]
        return tree, tuple(tuple(x.shape) for x in leaves), tuple(dtypes), tuple(sizes)

    @property
    def _what(self) -> str:
        return f"the {self._name} of {self._model.name!r}"

    def __call__(self, state: Any, data: Any) -> tuple[Any, Any]:
        """Compute the step: `state` is Keras's together with the values of the other variables."""
        if self._model.run_eagerly:
            return self._at_once(state, data)
        traced = self._traces.get(self._signature(data))
        if traced is None or traced.options is not trace_options() or jax.config.jax_debug_nans:
            with tracing():
                _, traced = self._trace(_shapes(data))
        inputs = jax.tree.leaves((tuple(map(list, state)), data))
        values = run_alone(traced.closed, inputs, [False] * len(inputs), lambda exchange: exchange.values)
        return jax.tree.unflatten(traced.tree, values)

    def _at_once(self, state: Any, data: Any) -> tuple[Any, Any]:
        """Run the Python code of the step, without a trace."""
        for part, row in zip(self._own(), state, strict=True):
            for ref, value in zip(part, row, strict=False):  # a guard's verdict may follow the metrics
                ref.set_raw(value, stacked=False)
        others = [ref_of_keras(variable) for each in other_optimizers(self._model).values() for variable in each.variables]
        before = [(ref, ref.get_raw()) for ref in others]
        try:
            with one_replica():
                outputs = self._checked(self._step(jax.tree.map(jnp.asarray, data)))
        except BaseException:  # Keras's state is given back by the loop
            for ref, (raw, stacked) in before:
                ref.set_raw(raw, stacked=stacked)
            raise
        return outputs, tuple([ref.get_raw()[0] for ref in part] for part in self._own())

    def _trace(self, data: Any) -> "tuple[_WholeBatch, _Traced]":
        """Trace the step until a trace teaches nothing new: that is once, unless gradients turn out to be None."""
        facts = Facts()
        made: list[tuple[_WholeBatch, list[list[Ref]], Any]] = []

        def flat(inputs: Inputs, data: Any) -> list[Any]:
            self._num_traces += 1
            recorder = _WholeBatch(inputs, facts, self._what)
            with one_replica(), recording(recorder):
                outputs = self._checked(self._step(data))
            self._others.update(dict.fromkeys([*recorder.known, *recorder.written]))
            parts = self._refs()
            values, tree = jax.tree.flatten((outputs, tuple([recorder.read_raw(ref) for ref in part] for part in parts)))
            made.append((recorder, parts, tree))
            return values

        while True:
            closed, inputs = make_jaxpr(flat, data)
            recorder, parts, tree = made[-1]
            if recorder.made_variables or not learn(facts, [closed.jaxpr]):
                refs = [(ref, _aval(ref)) for part in parts for ref in part]
                return recorder, _Traced(inputs.arranged(closed, refs), tree, trace_options())

    def _checked(self, outputs: Any) -> Any:
        """Return the outputs as arrays."""
        if self._name != "predict_step" and not isinstance(outputs, Mapping):
            raise ArgumentError(
                f"{self._what} must return a dict of logs, such as {{m.name: m.result() for m in self.metrics}}; it returned "
                f"{type(outputs).__name__}."
            )
        return jax.tree_util.tree_map_with_path(self._array, outputs, is_leaf=is_variable)

    def _array(self, path: Any, leaf: Any) -> Any:
        try:
            return jnp.asarray(read(ref_of(leaf)) if is_variable(leaf) else leaf)
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"{self._what} returned {leaf!r} at {jax.tree_util.keystr(path) or 'its result'}, which is neither a number nor an "
                "array. Of a metric, return metric.result()."
            ) from error


def without_none(batch: Any) -> Any:
    """Return what ``train_on_batch`` makes, (x, y, None) or (x, None, None), in the form in which ``fit`` gives it."""
    if isinstance(batch, tuple) and len(batch) == 3 and batch[-1] is None:
        return keras.utils.pack_x_y_sample_weight(*batch)
    return batch


def _refs(model: Any, name: str) -> list[list[Ref]]:
    """Return the variables in the parts of the state of one of Keras's steps."""
    found = {
        "trainable_variables": model.trainable_variables,
        "non_trainable_variables": model.non_trainable_variables,
        "optimizer_variables": [] if model.optimizer is None else model.optimizer.variables,
        "metrics_variables": model.metrics_variables,
    }
    return [[ref_of_keras(variable) for variable in found[part]] for part in PARTS[name]]


def _shapes(data: Any) -> Any:
    return jax.tree.map(_shape, data, is_leaf=lambda x: isinstance(x, keras.KerasTensor))


def _aval(ref: Ref) -> ShapedArray:
    return ShapedArray(tuple(ref.shape), jax.dtypes.canonicalize_dtype(ref.dtype, allow_extended_dtype=True))


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
    dtype = keras.backend.standardize_dtype(leaf.dtype) if isinstance(leaf, keras.KerasTensor) else leaf.dtype
    return jax.ShapeDtypeStruct(tuple(leaf.shape), jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True))


def _value(ref: Ref) -> Any:
    """Return a variable's value for a program that overwrites it: a copy, unless nobody else has the array."""
    raw, stacked = ref.get_raw()
    if raw is ref.owned and not stacked:
        return raw
    return jnp.array(ref.read_eagerly(), copy=True)


@contextmanager
def one_replica() -> Iterator[None]:
    """Let the code be that of the only replica, without a strategy: what it computes of the whole batch needs no exchange."""
    strategy = default_strategy()
    with entered(strategy, ReplicaContext(strategy, SingleReplica())):
        yield


def take(original: Callable[..., Any], model: Any, *args: Any, name: str, **kwargs: Any) -> Any:
    """Take one of Keras's own steps: as Keras does or, for ``super().train_step(data)`` in a stateful step, with the data alone."""
    recorder = current_recorder()
    if len(args) + len(kwargs) != 1 or isinstance(recorder, ReplicaRecorder):
        return original(model, *args, **kwargs)
    (data,) = [*args, *kwargs.values()]
    parts = _refs(model, name)
    with entered(default_strategy(), None):  # Keras's step passes the optimizer's state in and out itself
        outputs, new = original(model, tuple([read(ref) for ref in part] for part in parts), data)
    if name == "predict_step":
        parts, new = parts[_OTHERS:], (new,)
    for part, values in zip(parts, new, strict=True):
        for ref, value in zip(part, values, strict=True):
            if recorder is None:
                ref.set_raw(value, stacked=False)
            else:
                recorder.write(ref, value)
    return outputs
