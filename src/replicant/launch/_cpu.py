"""Settings for one process that computes on CPUs, which must be made before it starts: allocator, cores, threads and devices.

``replicant run`` makes them, and ``replicant launch`` uses those for virtual devices and huge pages for each of its workers.
"""

import dataclasses
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

from .._python import bare_python
from ..errors import ArgumentError, ConfigurationError

# XLA's CPU devices occupy threads of a shared pool while they wait for each other. `set_virtual_devices` has the same figures.
_THREADS_PER_DEVICE = 4
_MIN_THREADS = 8
_DEVICE_COUNT = "--xla_force_host_platform_device_count"
_CACHE, _FUSE = "REPLICANT_COMPILATION_CACHE", "REPLICANT_FUSE_REPLICAS"
_NAMES = ("GLIBC_TUNABLES", "LD_PRELOAD", "JAX_NUM_CPU_DEVICES", "NPROC", _CACHE)
_TRIAL_SECONDS = 60.0  # for an empty program
_MAX = 1024  # threads or devices of one process

ALLOCATORS = {  # the names of their libraries, the best one first
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
    "mimalloc": ("libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so"),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so", "libtcmalloc.so"),
}


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What is asked for one process. None means that nothing is asked.

    Args:
        allocator: "jemalloc", "mimalloc" or "tcmalloc", or the path of such a library. By default, glibc's, which keeps its memory.
        cores: The cores that the process may use.
        threads: The number of threads that XLA computes with. By default as many as there are cores.
        devices: The number of virtual CPU devices.
        cache: The folder for compiled programs.
        unfused: Whether each replica computes on a device of its own.

    Raises:
        ArgumentError: If a number breaks a rule.
    """

    allocator: str | None = None
    cores: frozenset[int] | None = None
    threads: int | None = None
    devices: int | None = None
    cache: str | None = None
    unfused: bool = False

    def __post_init__(self) -> None:
        for name, value in (("--threads", self.threads), ("--devices", self.devices)):
            if value is not None and not 1 <= value <= _MAX:
                raise ArgumentError(f"{name} must be from 1 to {_MAX}. Got {value}.")


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the settings depend on besides the environment.

    Args:
        platform: The name of the system, as in ``sys.platform``.
        cores: The cores that this process may use.
        accelerators: The names of the accelerators that JAX would use.
        folders: The folders with shared libraries.
    """

    platform: str
    cores: frozenset[int]
    accelerators: tuple[str, ...]
    folders: tuple[Path, ...]


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The variables that are set, and those of the user that are left as they are."""

    variables: Mapping[str, str]
    kept: Mapping[str, str]


def choose(wishes: Wishes, environ: Mapping[str, str], machine: Machine) -> Chosen:
    """Choose the variables of a process.

    What the environment sets already is kept. If it contradicts a wish, that is an error.

    Raises:
        ArgumentError: If a wish cannot be met, or if the environment contradicts it.
        ConfigurationError: If the system is not Linux.

    >>> machine = Machine("linux", frozenset({0, 1}), (), ())
    >>> choose(Wishes(threads=2), {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, machine)
    Chosen(variables={'NPROC': '2'}, kept={'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1'})
    """
    if machine.platform != "linux":
        raise ConfigurationError(
            f"replicant run needs Linux, because it sets cores and allocators; this system is {machine.platform!r}. "
            "Start the program with python instead."
        )
    if wishes.cores is not None:
        _check_cores(wishes.cores, machine.cores)
    found = _allocator(wishes.allocator, environ, machine)
    if wishes.unfused:
        found |= _agreed("--unfused", _FUSE, "0", environ)
    if wishes.devices is not None:
        found |= _devices(wishes.devices, {**environ, **found}, machine)
    if wishes.threads is not None:
        found |= _agreed("--threads", "NPROC", str(wishes.threads), environ)
    if wishes.cache is not None:
        found |= _agreed("--cache", _CACHE, wishes.cache, environ)
    names = [*_NAMES, *sorted(name for name in environ if name.startswith("MALLOC_"))]
    return Chosen(found, {name: environ[name] for name in names if name in environ and name not in found})


def check_preload(variables: Mapping[str, str]) -> None:
    """Check that what LD_PRELOAD names can be loaded. The loader itself would only print a line, and start the program without it.

    Raises:
        ConfigurationError: If the loader says something about it.
    """
    if "LD_PRELOAD" in variables:
        try:
            done = subprocess.run(  # noqa: S603 - no code
                bare_python(""), env=dict(variables), capture_output=True, text=True, check=False, timeout=_TRIAL_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigurationError(
                f"LD_PRELOAD={variables['LD_PRELOAD']}: an empty program did not end with it within {_TRIAL_SECONDS:g} s. Give "
                "--allocator another library."
            ) from error
        if done.returncode or done.stderr:
            reason = done.stderr.strip().rstrip(".") or f"exit code {done.returncode}"
            raise ConfigurationError(
                f"LD_PRELOAD={variables['LD_PRELOAD']} cannot be loaded: {reason}. Give --allocator the path of a library for this "
                "machine."
            )


def kept_memory(environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that keeps the memory of large arrays in the process, unless the environment tells glibc what to do.

    It does from the first step on what the kernel `memory` does once it has seen a program's steps (``kernels/xla/_heap.py``). Huge
    pages on top of that made steps of a transformer slower.
    """
    if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in environ):
        return {}
    return {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=2147483647"}


def huge_pages(environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that gives large arrays huge pages, unless the environment sets it to something.

    XLA takes fresh memory for every large result. With huge pages, the kernel needs a quarter of the time for that.
    """
    return {} if "GLIBC_TUNABLES" in environ else {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def virtual_devices(environ: Mapping[str, str], devices: int) -> dict[str, str]:
    """The variables for so many virtual devices that wait for each other."""
    threads = max(_MIN_THREADS, _THREADS_PER_DEVICE * devices)
    known = environ.get("NPROC", "")
    flags = [flag for flag in environ.get("XLA_FLAGS", "").split() if not flag.startswith(_DEVICE_COUNT)]
    found = {"JAX_NUM_CPU_DEVICES": str(devices)}
    found["NPROC"] = known if known.isdigit() and int(known) >= threads else str(threads)
    return found | ({"XLA_FLAGS": " ".join(flags)} if "XLA_FLAGS" in environ else {})


def parse_cores(text: str) -> frozenset[int]:
    """The cores of a list such as ``0-3,6``.

    Raises:
        ArgumentError: If the text has another form.

    >>> sorted(parse_cores("0-2,5"))
    [0, 1, 2, 5]
    """
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ArgumentError(f"--cores {text!r} is not a list of cores. Write numbers and ranges, as in --cores 0-3,6.")
        found.update(range(first, last + 1))
    return frozenset(found)


def shown_cores(cores: Iterable[int]) -> str:
    """Write cores as a list that ``parse_cores`` reads.

    >>> shown_cores({0, 1, 2, 5})
    '0-2,5'
    """
    ranges: list[list[int]] = []
    for core in sorted(cores):
        if ranges and ranges[-1][1] == core - 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def library_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders in which to look for an allocator: those of the user, of this Python, and of the system."""
    own = [Path(name) for name in environ.get("LD_LIBRARY_PATH", "").split(":") if name]
    arch = sysconfig.get_config_var("MULTIARCH")
    system = [*([f"/usr/lib/{arch}", f"/lib/{arch}"] if arch else []), "/usr/local/lib", "/usr/lib64", "/usr/lib", "/lib64", "/lib"]
    return (*own, Path(sys.prefix) / "lib", *map(Path, system))


def _check_cores(cores: frozenset[int], usable: frozenset[int]) -> None:
    if missing := cores - usable:
        raise ArgumentError(
            f"--cores {shown_cores(cores)}: this process may not use {shown_cores(missing)}. Choose from {shown_cores(usable)}."
        )


def _allocator(wish: str | None, environ: Mapping[str, str], machine: Machine) -> dict[str, str]:
    before = environ.get("LD_PRELOAD", "")
    if wish is None:  # accelerators have their own memory, and another allocator does not read the variable of glibc
        return {} if machine.accelerators or _is_allocator(before) else kept_memory(environ)
    library = str(_library(wish, machine.folders))
    if library in re.split("[ :]", before):
        return {}
    if _is_allocator(before):
        raise ArgumentError(f"--allocator {wish}: LD_PRELOAD={before} already loads one. Unset it, or leave --allocator out.")
    return {"LD_PRELOAD": f"{library}:{before}" if before else library}


def _is_allocator(preloaded: str) -> bool:
    return any(name in Path(file).name for file in re.split("[ :]", preloaded) for name in ALLOCATORS)


def _library(wish: str, folders: tuple[Path, ...]) -> Path:
    if "/" in wish:
        path = Path(wish).absolute()
        if not path.is_file():
            raise ArgumentError(f"--allocator {wish}: there is no such file. Give the path of a shared library.")
        return _without_separators(path)
    if wish not in ALLOCATORS:
        raise ArgumentError(f"--allocator {wish!r} is not known. It is one of {', '.join(ALLOCATORS)}, or the path of a library.")
    for folder in folders:
        for name in ALLOCATORS[wish]:
            if (folder / name).is_file():
                return _without_separators((folder / name).absolute())
    raise ArgumentError(
        f"--allocator {wish}: none of {', '.join(ALLOCATORS[wish])} is in {', '.join(map(str, folders))}. Install {wish}, or give "
        "the path of its library."
    )


def _without_separators(path: Path) -> Path:
    if re.search("[ :]", str(path)):
        raise ArgumentError(f"--allocator: {str(path)!r} has a space or colon, which LD_PRELOAD cannot contain. Make a link to it.")
    return path


def _devices(devices: int, environ: Mapping[str, str], machine: Machine) -> dict[str, str]:
    if machine.accelerators:
        raise ArgumentError(
            f"--devices {devices} makes virtual devices of the CPU, but JAX would use the GPUs of this machine "
            f"({', '.join(machine.accelerators)}). Set JAX_PLATFORMS=cpu, or leave --devices out."
        )
    flag = next((flag for flag in environ.get("XLA_FLAGS", "").split() if flag.startswith(_DEVICE_COUNT)), None)
    if flag is not None:
        raise ArgumentError(f"--devices {devices}: XLA_FLAGS contains {flag}, which also sets the number. Remove one of the two.")
    found = _agreed("--devices", "JAX_NUM_CPU_DEVICES", str(devices), environ)
    # Fused replicas do not wait for each other, and compute faster with as many threads as cores.
    if devices > 1 and environ.get(_FUSE) == "0" and "NPROC" not in environ:
        found["NPROC"] = virtual_devices(environ, devices)["NPROC"]
    return found


def _agreed(option: str, name: str, value: str, environ: Mapping[str, str]) -> dict[str, str]:
    before = environ.get(name, "")
    if before not in ("", value):
        said = option if option == "--unfused" else f"{option} {value}"
        raise ArgumentError(f"{said}: the environment sets {name}={before}. Unset it, or leave {option} out.")
    return {} if before else {name: value}
