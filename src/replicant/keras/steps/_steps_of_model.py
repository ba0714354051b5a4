"""A model's ``train_step``, ``test_step`` and ``predict_step``, in the two forms in which they may be written and called."""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from ...replicas._context import default_strategy, entered
from ...variables._recorder import ReplicaRecorder, current_recorder, read
from ..state._global_generator import global_generator
from ..state._refs import ref_of_keras
from ._stateful_step import OTHERS, StatefulStep, code_of, other_optimizers, refs_of

_KNOWN = "_replicant_stateful_steps"


def is_stateful(step: Callable[..., Any]) -> bool:
    """Whether a model's step takes only the data, as in TensorFlow, and not ``(state, data)``."""
    function = step.__func__ if isinstance(step, types.MethodType) else None
    return _method_takes_one(function) if isinstance(function, types.FunctionType) else _takes_one(step, 0)


@functools.lru_cache(maxsize=64)
def _method_takes_one(function: Callable[..., Any]) -> bool:
    return _takes_one(function, 1)


def _takes_one(step: Callable[..., Any], given: int) -> bool:
    """Whether a function needs one argument besides the first `given` ones."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(step).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
        return False  # such a step hands on what it gets
    return sum(each.kind in positional and each.default is inspect.Parameter.empty for each in parameters) == given + 1


def step_of(model: Any, name: str) -> Callable[..., Any]:
    """Return a model's step as a function ``(state, data) -> (outputs, state)``, whichever form it is written in."""
    step = getattr(model, name)
    if not is_stateful(step):
        return step
    known = model.__dict__.setdefault(_KNOWN, {})
    if name not in known or known[name].code != code_of(step):
        known[name] = StatefulStep(model, step, name)
    return known[name]


def forget(model: Any) -> None:
    """Forget what is known of a model's steps, because it is compiled again."""
    model.__dict__.pop(_KNOWN, None)


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


def take(original: Callable[..., Any], model: Any, *args: Any, name: str, **kwargs: Any) -> Any:
    """Take one of Keras's own steps: as Keras does or, for ``super().train_step(data)`` in a stateful step, with the data alone."""
    recorder = current_recorder()
    if len(args) + len(kwargs) != 1 or isinstance(recorder, ReplicaRecorder):
        return original(model, *args, **kwargs)
    (data,) = [*args, *kwargs.values()]
    parts = refs_of(model, name)
    with entered(default_strategy(), None):  # Keras's step passes the optimizer's state in and out itself
        outputs, new = original(model, tuple([read(ref) for ref in part] for part in parts), data)
    if name == "predict_step":
        parts, new = parts[OTHERS:], (new,)
    for part, values in zip(parts, new, strict=True):
        for ref, value in zip(part, values, strict=True):
            if recorder is None:
                ref.set_raw(value, stacked=False)
            else:
                recorder.write(ref, value)
    return outputs
