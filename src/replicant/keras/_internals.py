"""The only importer of ``keras.src``: the seams at which Keras learns about replicas, checked once at import.

Keras has no public hook for what happens at these five places, so its classes are wrapped here. Every wrapper does what Keras did
unless a ``strategy.run`` is in progress.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from ..errors import BackendError

MIN_VERSION = (3, 15)


def _check() -> None:
    backend = keras.backend.backend()
    if backend != "jax":
        raise BackendError(
            f"Replicant drives Keras on the JAX backend; this Keras runs on {backend!r}. Set the environment variable "
            "KERAS_BACKEND=jax (or os.environ['KERAS_BACKEND'] = 'jax') before importing keras."
        )
    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if version < MIN_VERSION:
        raise BackendError(
            f"Replicant needs Keras >= {'.'.join(map(str, MIN_VERSION))}; this is {keras.__version__}. Run: pip install -U keras."
        )


_check()

try:
    from keras.src.backend.common import KerasVariable, global_state
    from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope
    from keras.src.backend.jax.trainer import JAXTrainer
    from keras.src.losses.loss import Loss
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
    from keras.src.random.seed_generator import SeedGenerator
    from keras.src.trainers import data_adapters
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights
    from keras.src.trainers.trainer import Trainer
except ImportError as error:
    raise BackendError(
        f"Keras {keras.__version__} has moved a class that Replicant extends ({error}). Use a Keras version that this release of "
        "Replicant was tested with (see constraints.txt), or a newer Replicant."
    ) from error

__all__ = [
    "BaseOptimizer",
    "DataAdapter",
    "JAXTrainer",
    "KerasVariable",
    "Loss",
    "LossScaleOptimizer",
    "SeedGenerator",
    "Trainer",
    "class_weight_to_sample_weights",
    "data_adapters",
    "get_stateless_scope",
    "in_stateless_scope",
    "wrap_method",
    "wrap_property",
]


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
