"""Devices by name, and virtual CPU devices."""

import os
import re
from collections.abc import Sequence
from typing import Any

import jax

from ..errors import AlreadyStartedError, ArgumentError, ConfigurationError, DeviceError
from ..replicas._placement import Device

# XLA's CPU devices hold threads of one pool while they wait for each other. With too few threads, they wait for ever. But XLA cuts
# operations into as many parts as there are threads, which costs time: with 8 on 2 cores, a step of the guide's CNN takes 1.3 times
# as long.
_THREADS_PER_DEVICE = 4
_MIN_THREADS = 8
_TYPES = ("cpu", "gpu", "cuda", "rocm", "tpu")
_DEVICE_COUNT = "--xla_force_host_platform_device_count"
_FUSE = "REPLICANT_FUSE_REPLICAS"


def set_virtual_devices(num_devices: int, *, fused: bool | None = None) -> None:
    """Make JAX show `num_devices` CPU devices, so that you can try programs for several devices on one CPU.

    Call it before anything that starts JAX: before you make arrays, strategies or Keras models. A second call with the same
    arguments does nothing.

    Args:
        num_devices: An int >= 1.
        fused: False lets each replica of this process's strategies compute on a device of its own, as on GPUs: slower on a CPU, but
            what would go wrong on GPUs, such as an array on the wrong device, goes wrong here, too. True, the default on CPUs,
            computes all on the first device. None keeps to the environment variable REPLICANT_FUSE_REPLICAS, if it is set.

    Raises:
        ArgumentError: If `num_devices` is not an int >= 1, or if `fused` is neither a bool nor None.
        AlreadyStartedError: If JAX has started with another number.
        ConfigurationError: If XLA_FLAGS sets the number too, or if REPLICANT_FUSE_REPLICAS contradicts `fused`.

    >>> import replicant
    >>> replicant.set_virtual_devices(0)
    Traceback (most recent call last):
    ...
    replicant.errors.ArgumentError: set_virtual_devices needs an int >= 1; got 0.
    """
    if not isinstance(num_devices, int) or isinstance(num_devices, bool) or num_devices < 1:
        raise ArgumentError(f"set_virtual_devices needs an int >= 1; got {num_devices!r}.")
    _set_fused(fused)
    flag = next((x for x in os.environ.get("XLA_FLAGS", "").split() if x.startswith(_DEVICE_COUNT)), None)
    if flag is not None:
        raise ConfigurationError(
            f"set_virtual_devices({num_devices}): XLA_FLAGS contains {flag}, which also sets the number of CPU devices. Remove it "
            "from XLA_FLAGS, or do not call set_virtual_devices."
        )
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError:  # JAX raises once its backends exist
        have = len(jax.devices("cpu"))
        if have == num_devices:
            return
        raise AlreadyStartedError(
            f"set_virtual_devices({num_devices}) is too late: JAX has already started with {have} CPU device(s). Call it at the "
            "top of the program, before you make arrays, models or strategies."
        ) from None
    if not fusing():
        have_threads(num_devices)


def _set_fused(fused: bool | None) -> None:
    if fused is not None and not isinstance(fused, bool):
        raise ArgumentError(f"set_virtual_devices: fused must be True, False or None; got {fused!r}.")
    before = os.environ.get(_FUSE)
    if fused is None or (before is not None and fused == fusing()):
        return
    if before is not None:
        raise ConfigurationError(
            f"set_virtual_devices(fused={fused}): the environment sets {_FUSE}={before}, which says otherwise. Unset it, or leave "
            "fused out."
        )
    os.environ[_FUSE] = str(int(fused))


def fusing() -> bool:
    """Return whether replicas on CPU devices are fused by default, so that no program waits for another."""
    return os.environ.get(_FUSE, "1") != "0"


def have_threads(num_devices: int | None = None) -> None:
    """Before JAX starts, ask for enough threads for programs whose CPU devices wait for each other.

    Once JAX has started, this has no effect. Then only the limit on programs in flight (``runtime/_in_flight.py``) keeps them from
    waiting for ever.

    Args:
        num_devices: The number of CPU devices; None means as many as JAX will have.
    """
    num_devices = num_devices or max(1, jax.config.values["jax_num_cpu_devices"])
    if num_devices == 1:
        return
    threads = max(_MIN_THREADS, _THREADS_PER_DEVICE * num_devices)
    set_by_user = os.environ.get("NPROC", "")
    if not (set_by_user.isdigit() and int(set_by_user) >= threads):
        os.environ["NPROC"] = str(threads)


class DeviceName(str):
    """The name of a device, with what TensorFlow's devices have besides: `name` and `device_type`."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name itself."""
        return str(self)

    @property
    def device_type(self) -> str:
        """The type in upper case, such as "CPU"."""
        return self.partition(":")[0].upper()


def list_devices(device_type: str | None = None) -> list[DeviceName]:
    """List the names of this process's devices, such as "cpu:0" or "gpu:1".

    Each is a str, and also has TensorFlow's ``name``, which is the same, and ``device_type``, such as "CPU".

    Semantics: tf.config.list_physical_devices, except that names are short and None does not mean all types.

    Args:
        device_type: "cpu", "gpu" (or "cuda" or "rocm") or "tpu", in upper or lower case; None for the type that JAX prefers.

    Returns:
        The names; an empty list if there are no devices of that type.

    Raises:
        DeviceError: If `device_type` is not a type of devices.

    >>> import replicant
    >>> replicant.list_devices("cpu")[0]
    'cpu:0'
    """
    if device_type is not None and not (isinstance(device_type, str) and device_type.lower() in _TYPES):
        raise DeviceError(f"{device_type!r} is not a type of devices. Use one of: {', '.join(_TYPES)}.")
    try:
        found = jax.local_devices(backend=None if device_type is None else device_type.lower())
    except RuntimeError:  # JAX raises it if there are no devices of that type
        return []
    return [DeviceName(name_of(device)) for device in found]


def name_of(device: Device) -> str:
    """Return the short name of a device: its type, and its number among this process's devices of that type."""
    peers = jax.local_devices(backend=device.platform)
    return f"{device.platform}:{peers.index(device)}"


def resolve_devices(devices: Sequence[Any] | str | None) -> tuple[Device, ...]:
    """Return the devices for names ("cpu:0", "GPU:1", "/gpu:0") or ``jax.Device`` objects; for None, all local devices."""
    if isinstance(devices, int):
        raise DeviceError(
            f"devices must be names such as ['cpu:0', 'cpu:1'], or jax.Device objects; got {devices!r}. Write list_devices()[:n] "
            "for the first n devices, or nothing for all. To try several on one CPU, call replicant.set_virtual_devices(n) first."
        )
    if devices is None or (not isinstance(devices, str) and len(devices) == 0):
        return tuple(jax.local_devices())
    found = [_resolve(d) for d in ([devices] if isinstance(devices, str) else devices)]
    for i, device in enumerate(found):
        if device in found[:i]:
            raise DeviceError(
                f"Device {devices[i]!r} is given twice (devices={list(devices)!r}). Each replica needs its own device."
            )
    check_one_kind(found)
    return tuple(found)


def check_one_kind(devices: Sequence[Device]) -> None:
    """Raise DeviceError if devices are of several types: one program of XLA runs on devices of one type."""
    kinds = sorted({device.platform for device in devices})
    if len(kinds) > 1:
        raise DeviceError(
            f"The devices are of {len(kinds)} types, {' and '.join(kinds)} ({', '.join(map(str, devices))}), but all replicas run "
            "one program, which is compiled for one type. Name devices of one type."
        )


def _resolve(device: Any) -> Device:
    if isinstance(device, jax.Device):
        return device
    match = re.fullmatch(r"(?:.*/)?(?:device:)?(cpu|gpu|cuda|rocm|tpu)(?::(\d+))?", str(device), re.IGNORECASE)
    if not isinstance(device, str) or not match:
        raise DeviceError(f"{device!r} is not a device. Use a name such as 'cpu:0' or 'gpu:1', or a jax.Device.")
    kind, index = match[1].lower(), int(match[2] or 0)
    have = devices_of(kind)
    if index >= len(have):
        hint = f" For more CPU devices, call replicant.set_virtual_devices({index + 1}) first." if kind == "cpu" else ""
        raise DeviceError(
            f"There is no device {device!r}: this process has {len(have)} {kind} device(s), numbered 0 to {len(have) - 1}.{hint}"
        )
    return have[index]


def devices_of(kind: str) -> list[Device]:
    """Return this process's devices of a type, and raise DeviceError if there are none."""
    try:
        return jax.local_devices(backend=kind.lower())
    except RuntimeError as error:
        have = ", ".join(sorted({d.platform for d in jax.local_devices()}))
        raise DeviceError(f"This process has no {kind.lower()} devices. Its devices are: {have}.") from error
