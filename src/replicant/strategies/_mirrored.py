"""MirroredStrategy: one replica on each of this process's devices."""

import os
from collections.abc import Sequence
from typing import Any

from .._placement import Placement
from .._strategy import Strategy
from ._devices import resolve_devices


class MirroredStrategy(Strategy):
    """One replica on each device of this process, in lockstep, with mirrored variables.

    Args:
        devices: names ("cpu:0", "GPU:1"), ``jax.Device`` objects; None or empty means all local devices.
        fuse_replicas: compute all replicas on the first device, as one vectorised program, with equal results. None: on CPU,
            whose virtual devices share the same cores, unless the environment variable REPLICANT_FUSE_REPLICAS is 0.

    Raises DeviceError for devices that do not exist or are given twice. Semantics: tf.distribute.MirroredStrategy.

    >>> import replicant
    >>> strategy = replicant.MirroredStrategy(["cpu:0"])
    >>> strategy.num_replicas_in_sync
    1
    """

    def __init__(self, devices: Sequence[Any] | None = None, *, fuse_replicas: bool | None = None):
        found = resolve_devices(devices)
        super().__init__(Placement(found, fused=_fused(found, fuse_replicas)))


def _fused(devices: tuple[Any, ...], asked: bool | None) -> bool:
    if asked is None:
        asked = os.environ.get("REPLICANT_FUSE_REPLICAS", "1") != "0" and all(device.platform == "cpu" for device in devices)
    return asked and len(devices) > 1
