"""Keeps Gloo from writing a line to standard output for each group of devices that it connects.

It writes them to C++'s ``std::cout``, in the thread that computes a program for the first time. So while a new program computes for
the first time, that stream is told that it has failed, and drops what it gets. Python's own ``sys.stdout`` is another stream.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax

_LIBRARY = "libstdc++.so.6"  # which jaxlib has loaded on Linux
_COUT = "_ZSt4cout"
_CLEAR = "_ZNSt9basic_iosIcSt11char_traitsIcEE5clearESt12_Ios_Iostate"  # std::basic_ios<char>::clear(iostate), which sets the state
_GOOD, _BAD = 0, 1
_COMPILED = "/jax/core/compile/backend_compile_duration"


class Connecting:
    """Drops the lines while programs compute for the first time."""

    def __init__(self) -> None:
        self._num_compiled = 0
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, event: str, duration_secs: float, **_: Any) -> None:
        del duration_secs
        self._num_compiled += event == _COMPILED

    @contextmanager
    def quiet(self, wait: Callable[[], None]) -> Iterator[None]:
        """Start a program in the ``with`` block. If it had to be compiled, `wait` until it has ended."""
        before = self._num_compiled
        with _silent():
            yield
            if self._num_compiled != before:
                wait()


@cache
def connecting() -> Connecting:
    """Return the one object of this process, which is made when there are several workers."""
    return Connecting()


@contextmanager
def _silent() -> Iterator[None]:
    stream = _stream()
    if stream is None:
        yield
        return
    clear, address = stream
    clear(address, _BAD)
    try:
        yield
    finally:
        clear(address, _GOOD)


@cache
def _stream() -> tuple[Callable[[int, int], None], int] | None:
    """Return the function that sets the state of a stream, and the address of ``std::cout``; None if they cannot be found."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(_LIBRARY, mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
        clear, cout = library[_CLEAR], ctypes.addressof(ctypes.c_char.in_dll(library, _COUT))
    except (OSError, AttributeError, ValueError):  # another C++ library, which may have another layout
        return None
    clear.argtypes, clear.restype = [ctypes.c_void_p, ctypes.c_int], None
    # The state belongs to a base class, whose offset stands before the table of virtual functions.
    table = ctypes.c_void_p.from_address(cout).value
    if table is None:
        return None
    offset = ctypes.c_ssize_t.from_address(table - 3 * ctypes.sizeof(ctypes.c_void_p)).value
    return clear, cout + offset
