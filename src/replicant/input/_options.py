"""Options of datasets and of their distribution. They never change values, only which worker reads what, and when."""

import dataclasses
import enum
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError, MissingNameError


class AutoShardPolicy(enum.IntEnum):
    """Which worker reads what when several share a dataset; the numbers are those of tf.data.

    AUTO: FILE if there are enough files, else DATA. FILE: every worker reads its own files. DATA: every worker reads
    everything and keeps its share. OFF: every worker has all elements. HINT: the same as OFF.
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


_ORDER, _CHOSEN = "the order is always kept", "threads and buffers are chosen for you"
_NOT_NEEDED = {  # the options of tf.data
    "autotune": _CHOSEN,
    "dataset_name": "a dataset has no name",
    "deterministic": _ORDER,
    "experimental_deterministic": _ORDER,
    "experimental_external_state_policy": "positions are always exact",
    "experimental_optimization": "there is no graph to optimize",
    "experimental_service": "a strategy shares datasets among workers",
    "experimental_slack": _CHOSEN,
    "experimental_symbolic_checkpoint": "positions are always exact",
    "experimental_threading": _CHOSEN,
    "experimental_warm_start": _CHOSEN,
    "framework_type": "there is one framework",
    "threading": _CHOSEN,
}


@dataclasses.dataclass
class DistributeOptions:
    """Options of distribution, available as ``options.experimental_distribute``."""

    auto_shard_policy: AutoShardPolicy = AutoShardPolicy.AUTO

    def __setattr__(self, name: str, value: object) -> None:
        if name != "auto_shard_policy":
            raise ArgumentError(f"DistributeOptions has no option {name!r}. It has: auto_shard_policy.")
        if not isinstance(value, AutoShardPolicy):
            raise ArgumentTypeError(
                f"auto_shard_policy must be a replicant.data.AutoShardPolicy, such as AutoShardPolicy.DATA. Received: {value!r}."
            )
        object.__setattr__(self, name, value)


@dataclasses.dataclass
class Options:
    """Options of a dataset, which ``Dataset.with_options`` sets.

    >>> options = Options()
    >>> options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    """

    experimental_distribute: DistributeOptions = dataclasses.field(default_factory=DistributeOptions)

    def __setattr__(self, name: str, value: object) -> None:
        if name != "experimental_distribute":
            raise ArgumentError(_absent(name))
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise MissingNameError(_absent(name))  # as in `options.threading.private_threadpool_size = 4`


def _absent(name: str) -> str:
    advice = f" Delete the line: {_NOT_NEEDED[name]}." if name in _NOT_NEEDED else ""
    return f"Options has no option {name!r}. It has: experimental_distribute.{advice}"


class InputReplicationMode(enum.Enum):
    """How often an input function is called: once per worker, or once per replica."""

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


@dataclasses.dataclass(frozen=True)
class InputOptions:
    """Options of one distributed dataset.

    Args:
        experimental_fetch_to_device: Whether to place batches on the devices ahead of time. None means True. With False,
            batches are still read ahead, but stay on the host until they are asked for.
        experimental_replication_mode: How often an input function is called. PER_REPLICA only works with
            ``distribute_datasets_from_function``.
        experimental_place_dataset_on_device: Must be False, because datasets are read by the host.
        experimental_per_replica_buffer_size: The number of batches to keep ready on every replica; at least 2 are.
        experimental_prefetch_to_device: An older name of ``experimental_fetch_to_device``.

    Raises:
        ArgumentError: If the buffer size is negative, a dataset is placed on a device, or both names have different values.

    The meaning is that of tf.distribute.InputOptions.
    """

    experimental_fetch_to_device: bool | None = None
    experimental_replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER
    experimental_place_dataset_on_device: bool = False
    experimental_per_replica_buffer_size: int = 1
    experimental_prefetch_to_device: bool | None = None

    def __post_init__(self) -> None:
        if self.experimental_per_replica_buffer_size < 0:
            raise ArgumentError(
                "InputOptions: experimental_per_replica_buffer_size must be at least 0. "
                f"Received: {self.experimental_per_replica_buffer_size}."
            )
        if self.experimental_place_dataset_on_device:
            raise ArgumentError(
                "InputOptions: experimental_place_dataset_on_device must be False: datasets are read by the host, and only their "
                "batches go to the devices. Leave it out."
            )
        if len({self.experimental_fetch_to_device, self.experimental_prefetch_to_device} - {None}) > 1:
            raise ArgumentError(
                "InputOptions: experimental_prefetch_to_device is an older name of experimental_fetch_to_device, so they "
                f"cannot differ. Received: {self.experimental_prefetch_to_device} and {self.experimental_fetch_to_device}. "
                "Give only the latter."
            )

    @property
    def fetch(self) -> bool:
        """Whether batches are placed on the devices ahead of time."""
        return self.experimental_fetch_to_device is not False and self.experimental_prefetch_to_device is not False
