"""Devices by name, and virtual CPU devices."""

import os
import re
from collections.abc import Sequence
from typing import Any

import jax

from ..errors import AlreadyStartedError, ArgumentError, ConfigurationError, DeviceError
from ..replicas._placement import Device

# XLA's CPU devices hold threads of one pool while they wait for each other: too few threads and they wait for ever. Threads
# beyond the cores cost: operations are cut in as many parts (8 on 2 cores: a step of the guide's CNN takes 1.3 times as long).
_THREADS_PER_DEVICE = 4
_MIN_THREADS = 8
_DEVICE_COUNT = "--xla_force_host_platform_device_count"


def set_virtual_devices(num_devices: int) -> None:
    """Make JAX show `num_devices` CPU devices, to try and test programs for several devices on one CPU.

    Call it before anything that starts JAX (before making arrays, strategies or Keras models). Asking again for the number that is
    already there is fine.

    Args:
        num_devices: int >= 1.

    Raises ArgumentError for other values, AlreadyStartedError if JAX has started with another number, ConfigurationError if
    XLA_FLAGS asks for a number of its own.

    >>> import replicant
    >>> replicant.set_virtual_devices(0)
    Traceback (most recent call last):
    ...
    replicant.errors.ArgumentError: set_virtual_devices needs an int >= 1; got 0.
    """
    if not isinstance(num_devices, int) or isinstance(num_devices, bool) or num_devices < 1:
        raise ArgumentError(f"set_virtual_devices needs an int >= 1; got {num_devices!r}.")
    flag = next((x for x in os.environ.get("XLA_FLAGS", "").split() if x.startswith(_DEVICE_COUNT)), None)
    if flag is not None:
        raise ConfigurationError(
            f"set_virtual_devices({num_devices}): XLA_FLAGS has {flag}, which sets the number of CPU devices too. Remove it from "
            "XLA_FLAGS, or do not call set_virtual_devices."
        )
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError:  # JAX says so once its backends exist
        have = len(jax.devices("cpu"))
        if have == num_devices:
            return
        raise AlreadyStartedError(
            f"set_virtual_devices({num_devices}) came too late: JAX has already started, with {have} CPU device(s). Call it at the "
            "top of the program, before making arrays, models or strategies."
        ) from None
    if not fusing():
        have_threads(num_devices)


def fusing() -> bool:
    """Whether replicas on CPU devices are fused unless somebody asks for something else: then no program waits for another."""
    return os.environ.get("REPLICANT_FUSE_REPLICAS", "1") != "0"


def have_threads(num_devices: int | None = None) -> None:
    """Before JAX starts: threads for programs of several CPU devices (by default: of all there will be) that wait for each other.

    Afterwards it has no effect, and the bound on programs in flight alone keeps them from waiting for ever (``_in_flight.py``).
    """
    num_devices = num_devices or max(1, jax.config.values["jax_num_cpu_devices"])
    if num_devices == 1:
        return
    threads = max(_MIN_THREADS, _THREADS_PER_DEVICE * num_devices)
    set_by_user = os.environ.get("NPROC", "")
    if not (set_by_user.isdigit() and int(set_by_user) >= threads):
        os.environ["NPROC"] = str(threads)


def list_devices(device_type: str | None = None) -> list[str]:
    """Names of this process's devices, such as "cpu:0" or "gpu:1".

    Args:
        device_type: "cpu", "gpu" or "tpu" in any case; by default the kind that JAX prefers.

    Raises DeviceError if there are none of that type.
    """
    return [name_of(device) for device in _devices_of(device_type)]


def name_of(device: Device) -> str:
    """The short name of a device: its type and its number among this process's devices of that type."""
    peers = jax.local_devices(backend=device.platform)
    return f"{device.platform}:{peers.index(device)}"


def resolve_devices(devices: Sequence[Any] | str | None) -> tuple[Device, ...]:
    """The devices meant by names ("cpu:0", "GPU:1", "/gpu:0"), ``jax.Device`` objects, or None for all local ones."""
    if devices is None or (not isinstance(devices, str) and len(devices) == 0):
        return tuple(jax.local_devices())
    found = [_resolve(d) for d in ([devices] if isinstance(devices, str) else devices)]
    for i, device in enumerate(found):
        if device in found[:i]:
            raise DeviceError(
                f"Device {devices[i]!r} is given twice (devices={list(devices)!r}): each replica needs a device of its own."
            )
    return tuple(found)


def _resolve(device: Any) -> Device:
    if isinstance(device, jax.Device):
        return device
    match = re.fullmatch(r"(?:.*/)?(?:device:)?(cpu|gpu|cuda|rocm|tpu)(?::(\d+))?", str(device), re.IGNORECASE)
    if not isinstance(device, str) or not match:
        raise DeviceError(f"{device!r} is not a device: use a name such as 'cpu:0' or 'gpu:1', or a jax.Device.")
    kind, index = match[1].lower(), int(match[2] or 0)
    have = _devices_of(kind)
    if index >= len(have):
        hint = f" For more CPU devices call replicant.set_virtual_devices({index + 1}) first." if kind == "cpu" else ""
        raise DeviceError(
            f"There is no device {device!r}: this process has {len(have)} {kind} device(s), numbered 0 to {len(have) - 1}.{hint}"
        )
    return have[index]


def _devices_of(kind: str | None) -> list[Device]:
    if kind is None:
        return jax.local_devices()
    try:
        return jax.local_devices(backend=kind.lower())
    except RuntimeError as error:
        have = ", ".join(sorted({d.platform for d in jax.local_devices()}))
        raise DeviceError(f"This process has no {kind.lower()} devices; it has: {have}.") from error
