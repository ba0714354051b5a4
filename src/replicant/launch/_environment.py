"""Makes the environment of a worker from that of the supervisor."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from ..cluster.wire._supervisor import ADDRESS, GENERATION, KEY
from ..errors import ConfigurationError
from ._cpu import huge_pages, virtual_devices

_VISIBLE = "CUDA_VISIBLE_DEVICES"
# The variables that are passed on to other hosts begin with one of these.
_CARRIED = ("JAX_", "KERAS_", "NCCL_", "NPROC", "PYTHONUNBUFFERED", "REPLICANT_", "XLA_")
_DROPPED = ("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS", "JAX_COORDINATOR_PORT", "JAX_PROCESS_COUNT")
_DROPPED += ("JAX_PROCESS_INDEX", "TF_CONFIG", "REPLICANT_SINGLE")


@dataclasses.dataclass(frozen=True)
class Place:
    """A worker's place in its generation.

    Args:
        rank: The rank of the worker, from 0.
        num_workers: The number of workers in this generation.
        generation: How many times the job was started again.
        coordinator: The ``host:port`` of JAX's coordination service, or None for a single worker, which needs none.
        supervisor: The ``host:port`` of the supervisor.
        key: The key of the job.
        local: The worker's number on its machine, and the number of workers there. By default all workers are on one machine.
    """

    rank: int
    num_workers: int
    generation: int
    coordinator: str | None
    supervisor: str
    key: str
    local: tuple[int, int] | None = None


def worker_environment(
    environ: Mapping[str, str], place: Place, devices: int | None, accelerators: Sequence[str], start: float
) -> dict[str, str]:
    """All environment variables of a worker: its place and its share of the devices, but no proxies.

    Args:
        environ: The environment of the supervisor.
        place: The place of the worker.
        devices: The number of devices of each worker. By default an equal share of the accelerators, or what the program says.
        accelerators: The names of this machine's accelerators, as in CUDA_VISIBLE_DEVICES. If there are none, the CPU computes.
        start: The seconds to wait for the other workers.

    Returns:
        The variables and their values.

    Raises:
        ConfigurationError: If there are not enough accelerators.

    >>> place = Place(1, 2, 0, "127.0.0.1:1111", "127.0.0.1:2222", "key")
    >>> found = worker_environment({"https_proxy": "http://proxy:3128"}, place, 2, (), 60.0)
    >>> found["JAX_PROCESS_ID"], found["JAX_NUM_PROCESSES"], found["JAX_NUM_CPU_DEVICES"], "https_proxy" in found
    ('1', '2', '2', False)
    """
    found = {name: value for name, value in environ.items() if not name.lower().endswith("_proxy") and name not in _DROPPED}
    found |= {
        "JAX_NUM_PROCESSES": str(place.num_workers),
        "JAX_PROCESS_ID": str(place.rank),
        GENERATION: str(place.generation),
        ADDRESS: place.supervisor,
        KEY: place.key,
    }
    found.setdefault("PYTHONUNBUFFERED", "1")  # so that logs can be followed, and contain the last words of a killed worker
    found.setdefault("REPLICANT_START_TIMEOUT", str(max(1, int(start))))
    if place.coordinator is not None:
        found |= {"JAX_COORDINATOR_ADDRESS": place.coordinator, "REPLICANT_COORDINATOR": "outside"}
    if accelerators:
        found[_VISIBLE] = ",".join(_share(accelerators, place, devices))
        return found
    found |= huge_pages(found)
    return found if devices is None else found | virtual_devices(found, devices)


def carried(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are passed on to workers on other hosts.

    >>> carried({"JAX_PLATFORMS": "cpu", "HOME": "/root"})
    {'JAX_PLATFORMS': 'cpu'}
    """
    return {name: value for name, value in environ.items() if name.startswith(_CARRIED)}


def accelerators_of(environ: Mapping[str, str], device_files: Sequence[str]) -> tuple[str, ...]:
    """The NVIDIA GPUs that the workers can divide among them: the visible ones, or all if nothing limits them.

    There are none if JAX is told to use the CPU.

    Args:
        environ: The environment of the supervisor.
        device_files: The names of files in ``/dev``.

    >>> accelerators_of({}, ["nvidia0", "nvidia1", "nvidiactl", "null"])
    ('0', '1')
    >>> accelerators_of({"CUDA_VISIBLE_DEVICES": "3,5"}, ["nvidia3", "nvidia5"])
    ('3', '5')
    >>> accelerators_of({"JAX_PLATFORMS": "cpu"}, ["nvidia0"])
    ()
    """
    platforms = environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return ()
    numbers = sorted(int(name.removeprefix("nvidia")) for name in device_files if re.fullmatch(r"nvidia[0-9]+", name))
    if not numbers or _VISIBLE not in environ:
        return tuple(map(str, numbers))
    return tuple(name.strip() for name in environ[_VISIBLE].split(",") if name.strip() not in ("", "-1"))


def _share(accelerators: Sequence[str], place: Place, devices: int | None) -> Sequence[str]:
    index, count = (place.rank, place.num_workers) if place.local is None else place.local
    each = len(accelerators) // count if devices is None else devices
    if each < 1 or each * count > len(accelerators):
        asked = f"{count} workers" + ("" if devices is None else f" with {devices} GPU(s) each")
        raise ConfigurationError(
            f"{asked} need {max(each, 1) * count} GPUs, but this machine has {len(accelerators)} "
            f"({', '.join(accelerators)}). Launch fewer workers, or set JAX_PLATFORMS=cpu."
        )
    return accelerators[index * each : (index + 1) * each]
