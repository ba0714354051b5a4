"""The strategies, one policy per file."""

from ._default import install_default_strategy as install_default_strategy
from ._devices import list_devices as list_devices
from ._devices import set_virtual_devices as set_virtual_devices
from ._mirrored import MirroredStrategy as MirroredStrategy
from ._one_device import OneDeviceStrategy as OneDeviceStrategy
