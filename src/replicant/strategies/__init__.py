"""The strategies, one per file."""

from ._central_storage import CentralStorageStrategy as CentralStorageStrategy
from ._communication import CommunicationImplementation as CommunicationImplementation
from ._communication import CommunicationOptions as CommunicationOptions
from ._default import get_strategy as get_strategy
from ._default import install_default_strategy as install_default_strategy
from ._devices import list_devices as list_devices
from ._devices import set_virtual_devices as set_virtual_devices
from ._elastic import run_elastic as run_elastic
from ._fully_sharded import FullyShardedStrategy as FullyShardedStrategy
from ._mirrored import MirroredStrategy as MirroredStrategy
from ._multi_worker import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from ._one_device import OneDeviceStrategy as OneDeviceStrategy
from ._tpu import TPUStrategy as TPUStrategy
