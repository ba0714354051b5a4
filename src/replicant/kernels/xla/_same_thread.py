"""Loads a compiled program a second time, so that it runs on the CPU in the thread that starts it.

XLA starts a program in the calling thread if it has host callbacks, since these might start programs, too. So the program is loaded
with a callback that it never calls. Nothing is traced or compiled for that.

What is loaded are the bytes that JAX keeps in its compilation cache. A program that was compiled in this process can be turned
into bytes at any time. One that came from the cache cannot, because it no longer has its machine code in that form: XLA gives bytes
without it, and such a program fails when it runs. So the entries of the cache from which programs come are noted.
"""

import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

FAMILY = "inline"  # the kernel for which this is done; programs/running/_same_thread_dispatch.py decides for which programs

_MACHINE_CODE = b"\x7fELF"  # how an object file begins on Linux
_ARGUMENTS = ["cache_key", "compile_options", "backend", "executable_devices"]

_entries: list[tuple[Any, str]] = []  # the programs that came from JAX's cache and are still in use, and the names of their entries

_lock = threading.Lock()  # for changes of the list


def load_again(program: Any) -> bool:
    """Let a program of JAX's (``MeshExecutable``) run in the thread that starts it.

    Returns:
        False if it stays as it is, because it cannot be loaded: it has callbacks already, needs objects of Python's, is for several
        devices, was compiled here and sorts (XLA has no bytes for that), or its entry is no longer there or cannot be read.
    """
    call, old = program.unsafe_call, program.xla_executable
    devices = old.local_devices()
    if call.has_host_callbacks or call.keepalive or len(devices) != 1:
        return False
    try:
        new = _loaded(old, devices[0])
    except jax.errors.JaxRuntimeError:
        return False
    if new is None:
        return False
    program.xla_executable = call.xla_executable = new
    return True


def _loaded(old: Any, device: Any) -> Any:
    """Load an executable for a device with a callback; None if its machine code cannot be had."""
    keys = [key for loaded, key in list(_entries) if loaded is old]
    data = _kept(old.client, keys[0]) if keys else old.client.serialize_executable(old)
    if data is None or _MACHINE_CODE not in data:
        return None
    here = importlib.import_module("jaxlib._jax").DeviceList((device,))
    return old.client.deserialize_executable(data, here, _options(device), [_never_called])


def _options(device: Any) -> Any:
    """Return the options to load a program for a device. It may have been compiled for another one (see _program_cache.py)."""
    compiler = importlib.import_module("jax._src.compiler")
    return compiler.get_compile_options(num_replicas=1, num_partitions=1, device_assignment=np.array([[device.id]]))


def _never_called(*_: Any) -> None:
    """Stand for a callback, which no operation of the program calls."""


def _kept(client: Any, key: str) -> bytes | None:
    """Return the bytes of a program in JAX's cache."""
    entry = _cache()._get_cache(client).get(key)
    return None if entry is None else _cache().extract_executable_and_time(_cache().decompress_executable(entry))[0]


def _cache() -> Any:
    return importlib.import_module("jax._src.compilation_cache")


@functools.cache
def objection() -> str | None:
    """Prepare to note entries. Return why programs cannot be loaded again with this JAX, or None. JAX need not have started."""
    cache, private, pxla = _cache(), importlib.import_module("jaxlib._jax"), importlib.import_module("jax._src.interpreters.pxla")
    known = (
        hasattr(private, "DeviceList"),
        hasattr(importlib.import_module("jax._src.compiler"), "get_compile_options"),
        "host_callbacks" in (private.Client.deserialize_executable.__doc__ or ""),
        hasattr(private.Client, "serialize_executable"),
        hasattr(private.PjitFunction, "_cache_size"),
        hasattr(private.PjitFunction, "_clear_cache"),
        {"xla_executable", "has_host_callbacks", "keepalive"} <= set(pxla.ExecuteReplicated.__slots__),
        "xla_executable" in pxla.MeshExecutable.__slots__,
        all(hasattr(cache, name) for name in ("_get_cache", "extract_executable_and_time", "decompress_executable")),
        list(inspect.signature(cache.get_executable_and_time).parameters)[:4] == _ARGUMENTS,
    )
    if not all(known):
        return f"JAX {jax.__version__} loads programs in another way"
    cache.get_executable_and_time = _noted(cache.get_executable_and_time)
    return None


def _noted(get: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    @functools.wraps(get)
    def get_and_note(cache_key: str, *args: Any, **options: Any) -> tuple[Any, Any]:
        found = get(cache_key, *args, **options)
        if found[0] is not None:
            with _lock:
                _entries[:] = [*(entry for entry in _entries if _in_use(*entry)), (found[0], cache_key)]
        return found

    return get_and_note


def _in_use(program: Any, _: str) -> bool:
    """Whether anything else refers to a program that stands in a tuple."""
    return sys.getrefcount(program) > _REFERENCES


def _count_references() -> int:
    count: list[int] = []

    def see(program: Any, _: str) -> None:
        count.append(sys.getrefcount(program))

    entry = (object(), "")
    see(*entry)
    return count[0]


_REFERENCES = _count_references()
