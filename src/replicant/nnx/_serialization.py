"""Tells ``flax.serialization`` how to write what ``strategy.run`` returns: as the value that is the same on all replicas."""

from typing import Any

from flax import serialization

from ..replicas._values import Mirrored


def _to_state(mirrored: Mirrored) -> Any:
    return serialization.to_state_dict(mirrored.value)


def _from_state(mirrored: Mirrored, state: Any) -> Any:
    return serialization.from_state_dict(mirrored.value, state)


serialization.register_serialization_state(Mirrored, _to_state, _from_state)
