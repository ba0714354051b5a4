"""TPUStrategy: one replica on each TPU core of one or several hosts."""

from collections.abc import Sequence
from typing import Any

from ..cluster.resolvers._resolver import ClusterResolver
from ..cluster.resolvers._tpu import TPUClusterResolver
from ..errors import ArgumentTypeError, DeviceError
from ..replicas._context import planning
from ..replicas._placement import Placement
from ._communication import CommunicationOptions
from ._devices import devices_of, have_threads, resolve_devices
from ._multi_worker import check_alone, meet
from ._strategy import Strategy


class TPUStrategy(Strategy):
    """One replica on each TPU core, in lockstep, with mirrored variables. On several hosts, every host runs the same program.

    On TPUs, as everywhere, the inputs of a step have static shapes: a last batch of another size is compiled separately. Use
    ``compile(steps_per_execution=...)`` or several steps in one ``replicant.function`` to keep the TPU busy.

    Semantics: tf.distribute.TPUStrategy, but you need not call ``initialize_tpu_system``.

    Args:
        tpu_cluster_resolver: A resolver of the TPU slice; by default a ``TPUClusterResolver`` that reads the environment.
        devices: Names or ``jax.Device`` objects of this process to use instead, as for MirroredStrategy. With
            ``list_devices("cpu")`` you can try a TPU program on virtual CPU devices.
        strict: As for MirroredStrategy.

    Raises:
        DeviceError: If there is no TPU.
        ArgumentTypeError: If `tpu_cluster_resolver` is not a resolver.
        ClusterError: On several hosts, like the other errors of MultiWorkerMirroredStrategy.

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
            if tpu_cluster_resolver is None:
                check_alone("TPUStrategy")
            _require_tpus()
        super().__init__(meet("TPUStrategy", membership, CommunicationOptions(), platform="tpu"), strict=strict)

    @property
    def cluster_resolver(self) -> ClusterResolver | None:
        """The resolver that told the strategy about its slice; None if you gave devices."""
        return self._resolver


def _require_tpus() -> None:
    try:
        devices_of("tpu")
    except DeviceError as error:
        raise DeviceError(
            f"{error} TPUStrategy needs TPUs. To try the program on CPU devices, call replicant.set_virtual_devices(8), then "
            'TPUStrategy(devices=replicant.list_devices("cpu")).'
        ) from error
