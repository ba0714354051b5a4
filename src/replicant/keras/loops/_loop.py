"""``fit``, ``evaluate``, ``predict`` and their ``_on_batch`` variants: Keras's own loops around steps that use every device.

A model that is made, compiled or loaded under a strategy remembers it, so you may call the loops anywhere.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from ...errors import ContextError
from ...programs.validity._traced_values import naming_the_line
from ...replicas._context import active_replica_context
from ...replicas._own_device import on_own_device
from ...replicas._own_mesh import without_mesh
from ...variables._recorder import NotTraceable, current_recorder
from ...variables._slices import in_pieces
from .._internals import Functional
from ..data import _host_inputs
from ..state import _loop_state
from ..state._loop_run import LoopRun
from ..state._owner import STRATEGY, strategy_of
from ..state._refs import MADE_UNDER
from . import _workers

_OVER_WORKERS = ("fit", "evaluate", "predict")


def run(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a loop of a model, or what it does with one batch, as a `LoopRun`.

    It runs on the devices of the model's strategy, and without a mesh that the user has set. So what Keras makes meanwhile, as the
    slots of an optimizer, lies on one of them, too.
    """
    name, args = original.__name__, (model, *args)
    _check_outside(model, name)
    if strategy_of(model) is None:
        _adopt(model)
    strategy, cut = strategy_of(model), _host_inputs.cut_of(model)
    if cut is not None:
        args, kwargs = _host_inputs.prepared(cut, original, args, kwargs)
    with naming_the_line(f"{name} of the model {model.name!r}"), LoopRun(model, name, _inputs_of(model)) as loop:
        _sync(model)
        try:
            if strategy is None:
                return original(*args, **kwargs)
            with without_mesh(), on_own_device(strategy.placement):
                if strategy.placement.world is None or name not in _OVER_WORKERS:
                    return original(*args, **kwargs)
                return _workers.run(original, loop, strategy, args, kwargs)
        except BaseException:
            _sync(model)
            raise


def _adopt(model: Any) -> None:
    """Let a model belong to the strategy of its variables if these lie in slices on several workers, who compute it together."""
    owners = (v.__dict__.get(MADE_UNDER) for v in model.variables if in_pieces(v._value))
    if owner := next(filter(None, owners), None):
        model.__dict__[STRATEGY] = owner


def _sync(model: Any) -> None:
    """Give the variables what a step has returned, if Ctrl-C came in the last loop before Keras has done so."""
    state = model.__dict__.get(_loop_state.STATE) or {}
    if not any(_loop_state.is_gone(x) for part in state.values() for x in part):
        model.jax_state_sync()


def _inputs_of(model: Any) -> Sequence[Any]:
    """Return the inputs of a model if Keras compares batches with them; nothing for other models."""
    graph = getattr(model, "_functional", None) if isinstance(model, keras.Sequential) else model
    return graph.inputs if isinstance(graph, Functional) and _host_inputs.cut_of(model) is None else ()


def _check_outside(model: Any, loop: str) -> None:
    """Raise if a loop is called in a trace: it reads data and calls compiled steps of its own."""
    if current_recorder() is None:
        return
    text = (
        f"{loop} of the model {model.name!r} was called inside `strategy.run` or a compiled function, but it is a loop of its own, "
        f"which compiles its steps and uses all devices. Call model.{loop}(...) outside. Inside, call the model on a batch, "
        "model(x, training=...), and to train, use a GradientTape and optimizer.apply_gradients(...)."
    )
    raise (NotTraceable if active_replica_context() is None else ContextError)(text)
