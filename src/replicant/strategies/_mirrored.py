"""MirroredStrategy: one replica on each of this process's devices."""

from collections.abc import Sequence
from typing import Any

from .._placement import Placement
from .._strategy import Strategy
from ._devices import resolve_devices


class MirroredStrategy(Strategy):
    """One replica on each device of this process, in lockstep, with mirrored variables.

    Args:
        devices: names ("cpu:0", "GPU:1"), ``jax.Device`` objects; None or empty means all local devices.

    Raises DeviceError for devices that do not exist or are given twice. Semantics: tf.distribute.MirroredStrategy.

    >>> import replicant
    >>> strategy = replicant.MirroredStrategy(["cpu:0"])
    >>> strategy.num_replicas_in_sync
    1
    """

    def __init__(self, devices: Sequence[Any] | None = None):
        super().__init__(Placement(resolve_devices(devices)))
