"""TPUStrategy: one replica on each TPU core of one or several hosts."""

from collections.abc import Sequence
from typing import Any

from ..cluster._resolver import ClusterResolver
from ..cluster._tpu import TPUClusterResolver
from ..errors import ArgumentTypeError, DeviceError
from ..replicas._context import planning
from ..replicas._placement import Placement
from ._communication import CommunicationOptions
from ._devices import have_threads, list_devices, resolve_devices
from ._multi_worker import meet
from ._strategy import Strategy


class TPUStrategy(Strategy):
    """One replica on each TPU core, in lockstep, with mirrored variables. On several hosts every host runs the same program.

    Args:
        tpu_cluster_resolver: the slice; by default a `TPUClusterResolver` of the environment.
        devices: names or ``jax.Device`` objects of this process instead, as for MirroredStrategy: ``list_devices("cpu")`` tries a
            TPU program on virtual CPU devices.
        strict: as for MirroredStrategy.

    A step's inputs have static shapes on TPUs as everywhere: a last batch of another size is compiled once more. Use
    ``compile(steps_per_execution=...)`` or several steps in one `replicant.function` to keep the TPU busy.

    Raises DeviceError where there is no TPU, ArgumentTypeError for another resolver, and what MultiWorkerMirroredStrategy raises on
    several hosts. Semantics: tf.distribute.TPUStrategy; nothing needs ``initialize_tpu_system``.

    >>> import replicant
    >>> TPUStrategy(devices=["cpu:0"]).num_replicas_in_sync
    1
    """

    def __init__(
        self,
        tpu_cluster_resolver: ClusterResolver | None = None,
        *,
        devices: Sequence[Any] | None = None,
        strict: bool | None = None,
    ) -> None:
        if tpu_cluster_resolver is not None and not isinstance(tpu_cluster_resolver, ClusterResolver):
            raise ArgumentTypeError(
                f"TPUStrategy: tpu_cluster_resolver must be a replicant.cluster.TPUClusterResolver; got {tpu_cluster_resolver!r}."
            )
        self._resolver = tpu_cluster_resolver
        if devices is not None:
            have_threads()
            super().__init__(Placement(resolve_devices(devices)), strict=strict)
            return
        self._resolver = tpu_cluster_resolver or TPUClusterResolver()
        membership = self._resolver.membership()
        if membership.num_processes == 1 and planning() is None:
            _require_tpus()
        super().__init__(meet("TPUStrategy", membership, CommunicationOptions(), platform="tpu"), strict=strict)

    @property
    def cluster_resolver(self) -> ClusterResolver | None:
        """What told the strategy about its slice; None for devices that were given."""
        return self._resolver


def _require_tpus() -> None:
    try:
        list_devices("tpu")
    except DeviceError as error:
        raise DeviceError(
            f"{error} TPUStrategy needs TPUs. To try the program on CPU devices: "
            'replicant.set_virtual_devices(8), then TPUStrategy(devices=replicant.list_devices("cpu")).'
        ) from error
