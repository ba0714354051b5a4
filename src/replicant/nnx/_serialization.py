"""Tells ``flax.serialization`` how to write what ``strategy.run`` returns: as the value that is the same on all replicas."""

from typing import Any

import numpy as np
from flax import serialization

from ..errors import ArgumentError
from ..replicas._values import Mirrored


def _to_state(mirrored: Mirrored) -> Any:
    return serialization.to_state_dict(mirrored.value)


def _from_state(mirrored: Mirrored, state: Any) -> Any:
    found: Any = serialization.from_state_dict(mirrored.value, state)
    if np.shape(found) != np.shape(mirrored.value):
        raise ArgumentError(
            f"flax.serialization: the saved value has the shape {np.shape(found)}, and the target {np.shape(mirrored.value)}. Flax "
            "does not compare them. Make the target as it was when it was saved."
        )
    return found


serialization.register_serialization_state(Mirrored, _to_state, _from_state)
