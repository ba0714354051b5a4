"""Lets CPU workers find each other's compiled programs on disk, even after they have formed a new group with other ranks.

The names of entries in JAX's compilation cache depend on the ids of the devices and on the rank of the process, and only process 0
writes. So the other workers would compile everything again at each start, and all workers would do so whenever their number
changes. But a compiled CPU program depends only on the kind of processor, and on which of its devices share a process. So the names
are made from these instead. (For GPUs, JAX leaves the ids out by itself.)
"""

import hashlib
import importlib
import inspect
import platform
from pathlib import Path
from typing import Any

# The functions of jax._src.cache_key that are replaced, and their arguments in the tested versions (0.10 to 0.12).
_EXPECTED = {
    "_hash_accelerator_config": ["hash_obj", "accelerators"],
    "_hash_serialized_compile_options": ["hash_obj", "compile_options_obj", "strip_device_assignment"],
}
_state: dict[str, bool] = {}


def share_programs() -> bool:
    """Name entries in this way from now on. Idempotent.

    Returns:
        Whether this version of JAX allows it. If it does not, everything works, but more programs are compiled.
    """
    if "shared" not in _state:
        _state["shared"] = _install()
    return _state["shared"]


def processor() -> str:
    """The kind of this machine's processor. A program compiled for one kind may not run on a machine with another kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        described = "\n".join(sorted({x for x in lines if x.startswith(("flags", "model name", "Features", "CPU part"))}))
    except OSError:
        described = platform.processor()
    return hashlib.sha256(f"{platform.machine()}\n{described}".encode()).hexdigest()[:12]


def layout_of(processes: list[int]) -> list[int]:
    """Which of a program's devices share a process. Processes are numbered in the order in which they appear.

    >>> layout_of([4, 4, 7]), layout_of([0, 0, 1]), layout_of([2])
    ([0, 0, 1], [0, 0, 1], [0])
    """
    order = list(dict.fromkeys(processes))
    return [order.index(process) for process in processes]


def _install() -> bool:
    try:
        keys: Any = importlib.import_module("jax._src.cache_key")
        known = {name: list(inspect.signature(getattr(keys, name)).parameters) for name in _EXPECTED}
    except (ImportError, AttributeError):
        return False
    if known != _EXPECTED:
        return False
    hash_others = keys._hash_accelerator_config  # noqa: SLF001 - JAX has no public name for it
    hash_options = keys._hash_serialized_compile_options  # noqa: SLF001 - nor for this
    own = processor()

    def hash_devices(hash_obj: Any, accelerators: Any) -> None:
        devices = list(accelerators.flat)
        if all(device.platform == "cpu" for device in devices):
            hash_obj.update(f"replicant {own} {layout_of([device.process_index for device in devices])}".encode())
        else:
            hash_others(hash_obj, accelerators)

    def hash_without_ids(hash_obj: Any, compile_options_obj: Any, strip_device_assignment: bool = False) -> None:
        del strip_device_assignment
        hash_options(hash_obj, compile_options_obj, strip_device_assignment=True)

    keys._hash_accelerator_config = hash_devices  # noqa: SLF001 - it is replaced by this
    keys._hash_serialized_compile_options = hash_without_ids  # noqa: SLF001 - likewise
    return True
