"""CentralStorageStrategy: TensorFlow's name for replicas that share variables; here a MirroredStrategy."""

from collections.abc import Sequence
from typing import Any

from ._devices import resolve_devices
from ._mirrored import MirroredStrategy


class CentralStorageStrategy(MirroredStrategy):
    """A MirroredStrategy under the name that TensorFlow programs use for variables on one device and replicas on all.

    Both give the same numbers. Here each device keeps a copy of the variables, which takes as much memory per device as the one
    copy takes in TensorFlow, and saves the way there at every step. If the state of the optimizer is too large, use
    ``MirroredStrategy(shard_optimizer_state=True)``.

    Semantics: tf.distribute.experimental.CentralStorageStrategy.

    Args:
        compute_devices: The devices of the replicas, as for MirroredStrategy.
        parameter_device: The device that would keep the variables. It must exist, and has no other effect.

    Raises:
        DeviceError: If a device does not exist or is given twice.

    >>> import replicant
    >>> replicant.CentralStorageStrategy(["cpu:0"]).num_replicas_in_sync
    1
    """

    def __init__(self, compute_devices: Sequence[Any] | None = None, parameter_device: Any = None):
        if parameter_device is not None:
            resolve_devices([parameter_device])
        super().__init__(compute_devices)
