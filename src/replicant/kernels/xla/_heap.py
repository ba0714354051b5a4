"""Keeps the memory of programs' temporary arrays and results in the process, instead of getting it from the system in each step.

Each time that a program runs, XLA allocates the memory for its temporaries in one piece, and that for each result which overwrites
nothing. glibc maps a piece of more than 32 MB, and unmaps it when it is freed. So every step touches pages that the system must
first find and fill with zeros. In a step of a transformer with 320 MB of temporaries, these are 80,000 pages and a third of the
processor time; in a sum of 100 MB over two workers, a third of it, too. Pages that are kept cost nothing.

Only the heap can hold large pieces, and glibc gives it to the main thread. The arenas of other threads are too small for them. So
all threads are given the heap, before JAX starts its own: programs run in JAX's threads.

Kept memory has a price, because freed pieces lie between others and cannot always be used for the next one. So glibc is told to
keep all of them only once programs are seen to need many fresh pages, and only while there is room. Until then, it maps pieces of
more than 32 MB, and keeps up to 128 MB of free memory at the end of the heap. By itself it would keep a fraction of a megabyte, and
a heap that all threads share ends with what programs free: every step would return it, and touch it again.

When a program begins its second run, XLA is asked for the size of what each run takes. If that is small or unknown, the third and
the fourth run are watched. Programs that are not large, but many, show later, in the pages of all.
"""

import ctypes
import os
import resource
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ._flags import accelerator, jax_has_started

_WINDOW = 8  # programs that start between two looks
_LARGE = 16 << 20  # bytes of fresh pages per program that make it worthwhile
_ENOUGH, _WINDOWS = 3, 12  # in so many of the last windows
_MAPPED = 32 << 20  # bytes of the largest piece that glibc takes from the heap, if it is not told to take all
_KEPT = 128 << 20  # bytes of free memory at the end of the heap that stay there
_UNWATCHED, _WATCHED = 2, 2  # the first runs of a program, in which it is compiled, and those after them
_ROOM = 8  # times as much memory must be available
_HUGE = 3  # times as much memory gets huge pages
_SCARCE = 0.1  # of the memory; if less is left, nothing is kept any more

# The names of these options in mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
_DEFAULT_MMAP_MAX = 65536
_MADV_HUGEPAGE = 14
_OTHERS = ("mallctl", "MallocExtension_ReleaseFreeMemory", "mi_malloc")  # symbols of jemalloc, tcmalloc and mimalloc
_TUNABLES = ("arena_max", "mmap_max", "mmap_threshold", "trim_threshold")


class Glibc:
    """The allocator of the process, as far as it can be controlled and observed."""

    def __init__(self, library: Any):
        self._library = library
        library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        library.free.argtypes, library.free.restype = [ctypes.c_void_p], None
        library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def share_heap(self) -> bool:
        """Let threads that start from now on allocate from the heap, as the main thread does. False if glibc refuses."""
        library = self._library
        if not library.mallopt(_M_ARENA_MAX, 1):
            return False
        library.mallopt(_M_MMAP_THRESHOLD, _MAPPED)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT)
        return True

    def keep(self, num_bytes: int) -> None:
        """Take large pieces from the heap from now on, and never shrink it. The next `num_bytes` of it get huge pages."""
        library, page = self._library, resource.getpagesize()
        library.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
        library.mallopt(_M_MMAP_MAX, 0)
        # Extend the heap by a piece, and free that before anything has touched it.
        if begin := library.malloc(num_bytes):
            first = -(-begin // page) * page
            library.madvise(first, (begin + num_bytes - first) // page * page, _MADV_HUGEPAGE)  # no effect without huge pages
            library.free(begin)

    def give_back(self) -> None:
        """Map large pieces again, and return free memory to the system."""
        self._library.mallopt(_M_TRIM_THRESHOLD, _KEPT)
        self._library.mallopt(_M_MMAP_MAX, _DEFAULT_MMAP_MAX)
        self._library.malloc_trim(0)

    @staticmethod
    def fresh_bytes() -> int:
        """The bytes of all pages that the system has given to this process so far."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize()

    @staticmethod
    def memory() -> tuple[int, int]:
        """The bytes that this process could still get, and the bytes of all memory."""
        return available(Path("/proc/meminfo"), Path("/sys/fs/cgroup"))


class Keeper:
    """Decides whether to keep memory, from what programs do. Call `note` before each one starts, from one thread at a time.

    JAX starts up to 32 programs ahead of those that it runs. So the pages of all steps of a short epoch may be found in one window.
    Compiling needs many pages too, but seldom in as many windows.
    """

    def __init__(self, allocator: Any):
        self._allocator = allocator
        self._count = 0
        self._seen = allocator.fresh_bytes()
        self._large: deque[bool] = deque(maxlen=_WINDOWS)
        self.state = "watching"

    def note(self) -> None:
        """Note that a program is about to start."""
        self._count += 1
        if self._count % _WINDOW == 0 and self.state != "given up":
            self._look()

    def fresh_bytes(self) -> int:
        """The bytes of all pages that the system has given to this process so far."""
        return self._allocator.fresh_bytes()

    def need(self, fresh: int) -> None:
        """Keep memory if there is room, because programs need so many bytes of fresh pages."""
        if self.state == "watching" and self._allocator.memory()[0] >= _ROOM * fresh:
            self._allocator.keep(_HUGE * fresh)
            self.state = "keeping"

    def _look(self) -> None:
        seen = self._allocator.fresh_bytes()
        fresh, self._seen = (seen - self._seen) // _WINDOW, seen
        is_large = fresh >= _LARGE
        self._large.append(is_large)
        if self.state == "watching" and is_large and sum(self._large) >= _ENOUGH:
            self.need(fresh)
        elif self.state == "keeping" and (is_large or self._count % (64 * _WINDOW) == 0):
            left, of = self._allocator.memory()
            if left < _SCARCE * of:
                self._allocator.give_back()
                self.state = "given up"


class FirstRuns:
    """Watches the first runs of one program, which begin after each other: with several at a time, pages belong to nobody.

    A program that runs only once, as those that initialize, decides nothing.

    Args:
        wait: Waits for what `run` has returned. None if nobody may wait: then only the size decides.
        size: Returns the bytes that each run of a program takes that has run, given the arguments of `run`; 0 if unknown.
    """

    def __init__(self, wait: Callable[[Any], Any] | None, size: Callable[..., int]):
        self._wait, self._size = wait, size
        self._count = 0
        self._least = sys.maxsize  # bytes of fresh pages in a watched run

    @property
    def are_over(self) -> bool:
        """Whether `run` does nothing any more but start the program."""
        return self._count == _UNWATCHED + _WATCHED

    def run(self, start: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return ``start(*args, **options)``."""
        watching = keeper
        if watching is None or watching.state != "watching" or self.are_over:
            return start(*args, **options)
        if self._count == 1 and (size := self._size(*args)) >= _MAPPED:
            watching.need(size)
        if self._wait is None:
            self._count = self._count + 1 if self._count == 0 else _UNWATCHED + _WATCHED
            return start(*args, **options)
        before = watching.fresh_bytes()
        result = start(*args, **options)
        self._wait(result)
        self._count += 1
        if self._count > _UNWATCHED:
            self._least = min(self._least, watching.fresh_bytes() - before)
            if self._count == _UNWATCHED + _WATCHED and self._least >= _MAPPED:
                watching.need(self._least)
        return result


def available(meminfo: Path, cgroup: Path) -> tuple[int, int]:
    """The bytes that this process could still get, and the bytes of all memory, of the machine or of its smaller control group."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    left, of = (1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    try:
        limit, used = (cgroup / "memory.max").read_text().strip(), int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except OSError:  # no control group, or one of the first version
        return left, of
    if limit == "max":
        return left, of
    return min(left, int(limit) - used + int(stat.get("inactive_file", 0))), min(of, int(limit))


def _nothing() -> None:
    """Do nothing, because nobody watches."""


note: Callable[[], None] = _nothing
keeper: Keeper | None = None


def install(wanted: bool, environ: Mapping[str, str] = os.environ) -> str:
    """Watch what programs allocate, if this is `wanted` and possible.

    Returns:
        What was done, as ``status()`` shows it. The text begins with "on" or "off".
    """
    global note, keeper  # noqa: PLW0603 - `note` is replaced, so that no step has to ask
    if not wanted:
        return "off: REPLICANT_KERNELS does not ask for it"
    if set_already := [name for name in environ if name.startswith("MALLOC_")]:
        return f"off: {set_already[0]} is already set"
    if set_already := [name for name in _TUNABLES if f"glibc.malloc.{name}" in environ.get("GLIBC_TUNABLES", "")]:
        return f"off: GLIBC_TUNABLES already sets glibc.malloc.{set_already[0]}"
    if reason := accelerator():
        return f"off: {reason}, which has its own memory"
    if jax_has_started():
        return "off: JAX started before replicant was imported; import replicant first"
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return "off: the allocator is not glibc's"
    if others := [name for name in _OTHERS if hasattr(library, name)]:
        return f"off: another allocator is loaded ({others[0]})"
    allocator = Glibc(library)
    try:
        allocator.memory()
    except OSError as error:
        return f"off: the system does not tell how much memory there is ({error})"
    if not allocator.share_heap():
        return "off: glibc does not let threads share the heap"
    keeper = Keeper(allocator)
    note = keeper.note
    return "on"
