"""MirroredStrategy: one replica on each of this process's devices."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from ..errors import ArgumentError
from ..replicas._placement import Placement
from ._devices import fusing, have_threads, resolve_devices
from ._strategy import Strategy

_NARROW = ("bfloat16", "float16")


class MirroredStrategy(Strategy):
    """One replica on each device of this process, in lockstep, with mirrored variables.

    Args:
        devices: names ("cpu:0", "GPU:1"), ``jax.Device`` objects; None or empty means all local devices.
        fuse_replicas: compute all replicas on the first device, as one vectorised program, with equal results. None: on CPU,
            whose virtual devices share the same cores, unless the environment variable REPLICANT_FUSE_REPLICAS is 0.
        gradient_dtype: "bfloat16" or "float16": gradients travel between the replicas of a custom loop in that type, at half the
            bytes and with its precision. None: in their own.
        shard_optimizer_state: each device keeps and updates its slice of the optimizer's state (ZeRO stage 1), with the same
            numbers. State is cut along its first axis that the replicas divide; what has none is mirrored. Not for fused
            replicas, which share one device.
        strict: gradients that the sum over the replicas counts several times (a mean over one replica's rows, a batch that was not
            distributed, a gradient summed twice) raise ReductionError; otherwise they are told as a ReductionWarning. None: False,
            unless the environment variable REPLICANT_STRICT is set to anything but 0.

    Raises DeviceError for devices that do not exist or are given twice, ArgumentError for options that contradict each other or
    another `gradient_dtype`. Semantics: tf.distribute.MirroredStrategy; sliced state: ZeRO (Rajbhandari et al. 2020).

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
                "MirroredStrategy(fuse_replicas=True, shard_optimizer_state=True): fused replicas compute on one device, which has "
                "to hold all of the state. Give one of the two."
            )
        fused = _fused(found, False if shard_optimizer_state else fuse_replicas)
        super().__init__(Placement(found, fused=fused, slices_slots=shard_optimizer_state), strict=strict)
        self.gradient_dtype = _gradient_dtype(gradient_dtype)


def _gradient_dtype(asked: Any) -> Any:
    if asked is None:
        return None
    if str(asked) not in _NARROW:
        raise ArgumentError(f"MirroredStrategy: gradient_dtype must be one of {_NARROW} or None; got {asked!r}.")
    return jnp.dtype(str(asked))


def _fused(devices: tuple[Any, ...], asked: bool | None) -> bool:
    return fused_by_default(devices) if asked is None else asked and len(devices) > 1


def fused_by_default(devices: tuple[Any, ...]) -> bool:
    """Whether replicas on these devices are fused unless somebody asks for something else."""
    return fusing() and len(devices) > 1 and all(device.platform == "cpu" for device in devices)
