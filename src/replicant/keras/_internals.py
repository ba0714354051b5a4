"""The only importer of ``keras.src``. It imports the classes that Replicant extends, and checks the version of Keras.

``_hooks.py`` lists what Replicant does at which method.
"""

import warnings
from typing import Any

import keras

from ..errors import BackendError

OLDEST = (3, 12)  # older trainers force their state onto the devices that held it when the step was traced
NEWEST = (3, 15)  # the newest version that `make test-versions` ran with
_VERSION = tuple(int(part) for part in keras.__version__.split(".")[:2])


def _check() -> None:
    backend = keras.backend.backend()
    if backend != "jax":
        raise BackendError(
            f"Replicant needs Keras with the JAX backend, but this Keras runs on {backend!r}. Set the environment variable "
            "KERAS_BACKEND=jax (or os.environ['KERAS_BACKEND'] = 'jax') before importing keras."
        )
    if _VERSION < OLDEST:
        raise BackendError(f"Replicant needs Keras >= {_dotted(OLDEST)}; this is {keras.__version__}. Run: pip install -U keras.")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


_check()

try:
    from keras.src import api_export, backend
    from keras.src.backend.common import KerasVariable, global_state
    from keras.src.backend.common.masking import get_keras_mask as mask_of
    from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope
    from keras.src.backend.common.variables import get_autocast_scope
    from keras.src.backend.jax.core import JaxVariable
    from keras.src.backend.jax.optimizer import JaxOptimizer
    from keras.src.backend.jax.trainer import JAXEpochIterator, JAXTrainer
    from keras.src.losses import loss as loss_module
    from keras.src.losses.loss import Loss
    from keras.src.models.functional import Functional
    from keras.src.ops.numpy import ExpandDims, Reshape, Squeeze
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
    from keras.src.random import seed_generator
    from keras.src.random.seed_generator import SeedGenerator
    from keras.src.saving import saving_lib
    from keras.src.saving.keras_saveable import KerasSaveable
    from keras.src.saving.serialization_lib import in_safe_mode
    from keras.src.trainers import data_adapters
    from keras.src.trainers.compile_utils import CompileLoss
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
    from keras.src.trainers.data_adapters.array_slicing import NumpySliceable, convert_to_sliceable
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights
    from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
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
    "CompileLoss",
    "DataAdapter",
    "EpochIterator",
    "ExpandDims",
    "Functional",
    "GeneratorDataAdapter",
    "JAXEpochIterator",
    "JAXTrainer",
    "JaxOptimizer",
    "JaxVariable",
    "KerasSaveable",
    "KerasVariable",
    "Loss",
    "LossScaleOptimizer",
    "NumpySliceable",
    "Reshape",
    "SeedGenerator",
    "Squeeze",
    "TrackedDict",
    "TrackedList",
    "TrackedSet",
    "Tracker",
    "Trainer",
    "api_export",
    "backend",
    "class_weight_to_sample_weights",
    "convert_to_sliceable",
    "data_adapters",
    "get_autocast_scope",
    "get_stateless_scope",
    "global_state",
    "in_safe_mode",
    "in_stateless_scope",
    "in_symbolic_scope",
    "is_tracking_enabled",
    "loss_module",
    "mask_of",
    "moved",
    "outside_stateless_scope",
    "saving_lib",
    "seed_generator",
    "warn_if_newer",
    "without_autocast",
]


def moved(what: str) -> BackendError:
    """Return the error to raise if the installed Keras lacks what Replicant needs."""
    return BackendError(
        f"Keras {keras.__version__} has changed what Replicant extends: {what}. Use a Keras version that this release of Replicant "
        f"was tested with ({_dotted(OLDEST)} to {_dotted(NEWEST)}), or a newer Replicant."
    )


def warn_if_newer() -> None:
    """Warn if Keras is newer than the versions that Replicant was tested with."""
    if _VERSION > NEWEST:
        warnings.warn(
            f"This Replicant was tested with Keras {_dotted(OLDEST)} to {_dotted(NEWEST)}, but this is {keras.__version__}. It has "
            f"everything that Replicant extends, but compare your results, or run: pip install 'keras=={_dotted(NEWEST)}.*'.",
            stacklevel=2,
        )


class outside_stateless_scope:  # noqa: N801  (a context manager, used like a function)
    """Let code make variables during a trace: Keras makes them at once instead of deferring them."""

    def __init__(self) -> None:
        self._scope: Any = None

    def __enter__(self) -> None:
        self._scope = get_stateless_scope() if in_stateless_scope() else None
        global_state.set_global_attribute("stateless_scope", None)

    def __exit__(self, *exc_info: object) -> None:
        global_state.set_global_attribute("stateless_scope", self._scope)


class without_autocast:  # noqa: N801  (a context manager, used like a function)
    """Let variables be cast by the policies of the layers that are called, and not by that of the one that is running."""

    def __init__(self) -> None:
        self._scope: Any = None

    def __enter__(self) -> None:
        self._scope = get_autocast_scope()
        global_state.set_global_attribute("autocast_scope", None)

    def __exit__(self, *exc_info: object) -> None:
        global_state.set_global_attribute("autocast_scope", self._scope)
