"""OneDeviceStrategy: one replica on a device of your choice."""

from typing import Any

from ..errors import DeviceError
from ..replicas._placement import Placement
from ._devices import resolve_devices
from ._strategy import Strategy


class OneDeviceStrategy(Strategy):
    """One replica on one device, so that you can try a distributed program before you have more devices.

    Semantics: tf.distribute.OneDeviceStrategy.

    Args:
        device: A name ("cpu:0", "gpu:1") or a ``jax.Device``.

    Raises:
        DeviceError: If the device does not exist, or if `device` is not one device.

    >>> import replicant
    >>> replicant.OneDeviceStrategy("cpu:0").num_replicas_in_sync
    1
    """

    def __init__(self, device: Any):
        if isinstance(device, list | tuple) or device is None:
            raise DeviceError(f"OneDeviceStrategy takes one device, such as 'cpu:0'; got {device!r}.")
        super().__init__(Placement(resolve_devices([device])))
