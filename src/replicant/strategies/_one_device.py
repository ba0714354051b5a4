"""OneDeviceStrategy: one replica on a device of your choice."""

from typing import Any

from ..errors import DeviceError
from ..replicas._placement import Placement
from ._devices import resolve_devices
from ._strategy import Strategy


class OneDeviceStrategy(Strategy):
    """One replica on one device, to try a distributed program before it has more.

    Args:
        device: a name ("cpu:0", "gpu:1") or a ``jax.Device``.

    Raises DeviceError for a device that does not exist. Semantics: tf.distribute.OneDeviceStrategy.

    >>> import replicant
    >>> replicant.OneDeviceStrategy("cpu:0").num_replicas_in_sync
    1
    """

    def __init__(self, device: Any):
        if isinstance(device, list | tuple) or device is None:
            raise DeviceError(f"OneDeviceStrategy takes one device, such as 'cpu:0'; got {device!r}.")
        super().__init__(Placement(resolve_devices([device])))
