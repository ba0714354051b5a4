"""The only importer of ``keras.src``: the seams at which Keras learns about replicas, checked once at import.

Keras has no public hook for what happens at these places, so its classes are wrapped. Every wrapper does what Keras did unless a
strategy is at work. What Replicant relies on is checked when it is imported: the version, the classes, and the parameters of every
method in ``_SEAMS``.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import keras

from ..errors import BackendError

OLDEST = (3, 12)  # before it, Keras's trainer forces its state onto the devices that it was on when the step was traced
NEWEST = (3, 15)  # that `make test-keras-versions` ran with
_VERSION = tuple(int(part) for part in keras.__version__.split(".")[:2])


def _check() -> None:
    backend = keras.backend.backend()
    if backend != "jax":
        raise BackendError(
            f"Replicant drives Keras on the JAX backend; this Keras runs on {backend!r}. Set the environment variable "
            "KERAS_BACKEND=jax (or os.environ['KERAS_BACKEND'] = 'jax') before importing keras."
        )
    if _VERSION < OLDEST:
        raise BackendError(f"Replicant needs Keras >= {_dotted(OLDEST)}; this is {keras.__version__}. Run: pip install -U keras.")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


_check()

try:
    from keras.src.backend.common import KerasVariable, global_state
    from keras.src.backend.common.masking import get_keras_mask as mask_of
    from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope
    from keras.src.backend.jax.trainer import JAXEpochIterator, JAXTrainer
    from keras.src.losses import loss as loss_module
    from keras.src.losses.loss import Loss
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
    from keras.src.random.seed_generator import SeedGenerator
    from keras.src.saving.keras_saveable import KerasSaveable
    from keras.src.trainers import data_adapters
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
    from keras.src.trainers.data_adapters.array_slicing import NumpySliceable, convert_to_sliceable
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights
    from keras.src.trainers.epoch_iterator import EpochIterator
    from keras.src.trainers.trainer import Trainer
    from keras.src.utils.tracking import TrackedDict, TrackedList, TrackedSet, Tracker, is_tracking_enabled
except ImportError as error:
    raise BackendError(
        f"Keras {keras.__version__} has moved a class that Replicant extends ({error}). Use a Keras version that this release of "
        f"Replicant was tested with ({_dotted(OLDEST)} to {_dotted(NEWEST)}), or a newer Replicant."
    ) from error

__all__ = [
    "ArrayDataAdapter",
    "BaseOptimizer",
    "DataAdapter",
    "EpochIterator",
    "JAXEpochIterator",
    "JAXTrainer",
    "KerasSaveable",
    "KerasVariable",
    "Loss",
    "LossScaleOptimizer",
    "NumpySliceable",
    "SeedGenerator",
    "TrackedDict",
    "TrackedList",
    "TrackedSet",
    "Tracker",
    "Trainer",
    "class_weight_to_sample_weights",
    "convert_to_sliceable",
    "data_adapters",
    "get_stateless_scope",
    "in_stateless_scope",
    "is_tracking_enabled",
    "loss_module",
    "mask_of",
    "wrap_function",
    "wrap_method",
    "wrap_property",
]


_APPLY = ("self", "grads", "trainable_variables")

# What Replicant wraps or calls: the owner, the name, and the parameters that it must have, in this order; None: a property.
_SEAMS: Mapping[tuple[Any, str], tuple[str, ...] | None] = {
    (KerasVariable, "__init__"): ("self", "initializer"),
    (KerasVariable, "value"): None,
    (KerasVariable, "_initialize_with_initializer"): ("self", "initializer"),
    (KerasVariable, "assign"): ("self", "value"),
    (KerasVariable, "assign_add"): ("self", "value"),
    (KerasVariable, "assign_sub"): ("self", "value"),
    (BaseOptimizer, "apply"): _APPLY,
    (BaseOptimizer, "finalize_variable_values"): ("self", "var_list"),
    (BaseOptimizer, "stateless_apply"): ("self", "optimizer_variables", "grads", "trainable_variables"),
    (LossScaleOptimizer, "apply"): _APPLY,
    (SeedGenerator, "next"): ("self", "ordered"),
    (Loss, "__call__"): ("self", "y_true", "y_pred", "sample_weight"),
    (Trainer, "compute_loss"): ("self", "x", "y", "y_pred", "sample_weight"),
    (Trainer, "compile"): ("self", "optimizer", "loss"),
    (JAXTrainer, "__init__"): ("self",),
    (JAXTrainer, "make_train_function"): ("self", "force"),
    (JAXTrainer, "make_test_function"): ("self", "force"),
    (JAXTrainer, "make_predict_function"): ("self", "force"),
    (JAXTrainer, "train_step"): ("self", "state", "data"),
    (JAXTrainer, "test_step"): ("self", "state", "data"),
    (JAXTrainer, "predict_step"): ("self", "state", "data"),
    (JAXTrainer, "jax_state_sync"): ("self",),
    (JAXTrainer, "fit"): ("self", "x", "y", "batch_size", "epochs", "verbose", "callbacks"),
    (EpochIterator, "__init__"): ("self", "x"),
    (EpochIterator, "_enumerate_iterator"): ("self",),
    (JAXEpochIterator, "_get_iterator"): ("self",),
    (ArrayDataAdapter, "_get_iterator"): ("self", "slice_and_convert_fn", "inputs"),
    (keras.callbacks.CallbackList, "on_train_batch_end"): ("self", "batch", "logs"),
    (keras.callbacks.CallbackList, "on_test_batch_end"): ("self", "batch", "logs"),
    (Tracker, "track"): ("self", "attr"),
    (Tracker, "untrack"): ("self", "value"),
    (keras.Layer, "__delattr__"): ("self", "name"),
    (keras.layers.Layer, "__call__"): ("self",),
    (keras.layers.BatchNormalization, "call"): ("self", "inputs", "training", "mask"),
    (data_adapters, "get_data_adapter"): (
        "x",
        "y",
        "sample_weight",
        "batch_size",
        "steps_per_epoch",
        "shuffle",
        "class_weight",
    ),
}


def _check_seams() -> None:
    for (owner, name), expected in _SEAMS.items():
        what = f"{owner.__name__}.{name}"
        found = vars(owner).get(name)
        if expected is None:
            if not isinstance(found, property):
                raise _moved(f"{what} is no property but {found!r}")
        elif not callable(found):
            raise _moved(f"{what} is gone")
        elif (parameters := tuple(inspect.signature(found).parameters))[: len(expected)] != expected:
            raise _moved(f"{what} takes ({', '.join(parameters)}) and no longer ({', '.join(expected)})")


def _moved(what: str) -> BackendError:
    return BackendError(
        f"Keras {keras.__version__} has changed what Replicant extends: {what}. Use a Keras version that this release of Replicant "
        f"was tested with ({_dotted(OLDEST)} to {_dotted(NEWEST)}), or a newer Replicant."
    )


_check_seams()
if _VERSION > NEWEST:
    warnings.warn(
        f"This Replicant was tested with Keras {_dotted(OLDEST)} to {_dotted(NEWEST)}; this is {keras.__version__}. All that "
        f"Replicant extends is where it was, but compare results, or run: pip install 'keras=={_dotted(NEWEST)}.*'.",
        stacklevel=2,
    )


def wrap_function(module: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace the function ``module.name`` by ``wrapper(original, ...)``."""
    original = vars(module)[name]

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(module, name, function)


def wrap_method(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace ``owner.name`` by ``wrapper(original, self, ...)``."""
    original = owner.__dict__[name]

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    setattr(owner, name, method)


def wrap_property(owner: type, name: str, getter: Callable[[Callable[[Any], Any], Any], Any]) -> None:
    """Replace the property ``owner.name`` by one whose getter is ``getter(original, self)``."""
    original = owner.__dict__[name]
    setattr(owner, name, property(functools.partial(getter, original.fget), original.fset, original.fdel, original.__doc__))


class outside_stateless_scope:  # noqa: N801  (a context manager, used like a function)
    """For code that makes variables in the midst of a trace: Keras makes them at once instead of deferring them."""

    def __enter__(self) -> None:
        self._scope = get_stateless_scope() if in_stateless_scope() else None
        global_state.set_global_attribute("stateless_scope", None)

    def __exit__(self, *exc_info: object) -> None:
        global_state.set_global_attribute("stateless_scope", self._scope)
