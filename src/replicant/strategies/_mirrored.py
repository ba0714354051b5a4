"""MirroredStrategy: one replica on each of this process's devices."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from ..cluster.meeting._lone import trains_alone
from ..errors import ArgumentError
from ..replicas._placement import Placement
from ._devices import fusing, have_threads, resolve_devices
from ._strategy import Strategy

_NARROW = ("bfloat16", "float16")


class MirroredStrategy(Strategy):
    """One replica on each device of this process, in lockstep, with mirrored variables.

    Semantics: tf.distribute.MirroredStrategy. Sliced state: ZeRO (Rajbhandari et al. 2020).

    Args:
        devices: Names ("cpu:0", "GPU:1") or ``jax.Device`` objects; None or an empty list for all local devices.
        fuse_replicas: Whether to compute all replicas on the first device, as one vectorized program with equal results. By
            default, replicas are fused on CPU, whose virtual devices share the same cores, unless the environment variable
            REPLICANT_FUSE_REPLICAS is 0.
        gradient_dtype: "bfloat16" or "float16", in which the gradients of a custom loop travel between the replicas, with half the
            bytes and with that precision. None sends them in their own dtype.
        shard_optimizer_state: Whether each device keeps and updates only its slice of the optimizer's state (ZeRO stage 1). The
            numbers stay the same. State is cut along its first axis that the number of replicas divides, and mirrored if it has
            none. Fused replicas cannot do this, since they share one device.
        strict: Whether to raise ReductionError instead of a ReductionWarning for gradients that the sum over the replicas counts
            several times (a mean over one replica's rows, a batch that was not distributed, a gradient summed twice). By default
            False, unless the environment variable REPLICANT_STRICT is set to anything but 0.

    Raises:
        DeviceError: If a device does not exist or is given twice, or the devices are of several types.
        ArgumentError: If options contradict each other, or if `gradient_dtype` is another dtype.

    >>> import replicant
    >>> strategy = replicant.MirroredStrategy(["cpu:0"])
    >>> strategy.num_replicas_in_sync
    1
    """

    def __init__(
        self,
        devices: Sequence[Any] | None = None,
        *,
        fuse_replicas: bool | None = None,
        gradient_dtype: str | None = None,
        shard_optimizer_state: bool = False,
        strict: bool | None = None,
    ):
        if shard_optimizer_state or fuse_replicas is False:
            have_threads()
        found = resolve_devices(devices)
        if fuse_replicas and shard_optimizer_state:
            raise ArgumentError(
                "MirroredStrategy(fuse_replicas=True, shard_optimizer_state=True): fused replicas compute on one device, which "
                "must hold the whole state. Choose one of the two options."
            )
        fused = _fused(found, False if shard_optimizer_state else fuse_replicas)
        super().__init__(Placement(found, fused=fused, slices_slots=shard_optimizer_state), strict=strict)
        self.gradient_dtype = _gradient_dtype(gradient_dtype)
        trains_alone(type(self).__name__)


def _gradient_dtype(asked: Any) -> Any:
    if asked is None:
        return None
    if str(asked) not in _NARROW:
        raise ArgumentError(f"MirroredStrategy: gradient_dtype must be one of {_NARROW} or None; got {asked!r}.")
    return jnp.dtype(str(asked))


def _fused(devices: tuple[Any, ...], asked: bool | None) -> bool:
    return fused_by_default(devices) if asked is None else asked and len(devices) > 1


def fused_by_default(devices: tuple[Any, ...]) -> bool:
    """Return whether replicas on these devices are fused by default."""
    return fusing() and len(devices) > 1 and all(device.platform == "cpu" for device in devices)
