"""An operation of XLA in which two workers of one host exchange an array through `PeerMemory`.

XLA calls a function of ours by name (its foreign function interface), which begins the exchange and returns at once. XLA goes on
once the exchange is over, and no thread of it waits meanwhile. So the two workers may come to it in any order with their other
exchanges.
"""

import _thread
import ctypes
import functools
import math
import sys
import threading
from typing import Any

import jax
import numpy as np
from jax import Array

from ..cluster import _bootstrap
from ..cluster._peer_memory import PeerMemory
from ..runtime import _in_flight

TARGET = "replicant_peer_swap"

# Where XLA's interface of version 0.3 has what is read here, in bytes (jaxlib's c_api.h).
_EXTENSION, _API, _ARGUMENTS, _RESULTS, _ATTRIBUTES, _FUTURE = 8, 16, 40, 80, 120, 168
_LISTED = 32  # the pointers in a list of arguments or results
_COUNT, _NAMES, _VALUES = 16, 32, 40  # of attributes
_DATA = 24  # of a buffer
_METADATA, _IS_METADATA, _VERSION = 24, 1, (24, 28)
_FIRST_FUNCTION = 48
_NEW_ERROR, _NEW_FUTURE, _SET_AVAILABLE, _SET_ERROR = 0, 13, 14, 15
_UNAVAILABLE, _INTERNAL = 14, 13  # codes of errors

_HURRY_SECONDS = 1e-4  # for which a thread may keep Python's lock while another one has an exchange to go on with

_Function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_peer: PeerMemory | None = None


class _Hurry:
    """Lets threads wait less for Python's lock while exchanges are under way: 0.1 ms instead of 5 ms, a few times in each."""

    def __init__(self) -> None:
        self._lock, self._count, self._before = threading.Lock(), 0, 0.0

    def begin(self) -> None:
        """An exchange begins."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(_HURRY_SECONDS, self._before))

    def end(self) -> None:
        """An exchange is over."""
        with self._lock:
            self._count -= 1
            if self._count == 0:
                sys.setswitchinterval(self._before)


_hurry = _Hurry()


class _Call(ctypes.Structure):
    """What functions of XLA's take: a future, and an error; or the text and code of an error to make."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
    )


def use(peer: PeerMemory) -> None:
    """Exchange arrays with this worker from now on."""
    global _peer  # noqa: PLW0603 - XLA calls a function of the process
    _register()
    _peer = peer


def is_open() -> bool:
    """Whether there is a worker to exchange arrays with."""
    return _peer is not None and _peer.is_open


def swap(array: Array, channel: int) -> Array:
    """Return the other worker's array. Both call this, within a program, with arrays of the same shape and dtype.

    Exchanges of one channel meet in the order in which XLA comes to them. So a program must have only one of them.
    """
    num_bytes = math.prod(array.shape) * np.dtype(array.dtype).itemsize
    function = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(array.shape, array.dtype))
    return function(array, channel=np.int64(channel), num_bytes=np.int64(num_bytes))


@functools.cache
def _register() -> Any:
    """Give XLA the function. What is returned must not be freed."""
    function = _Function(_handle)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None, "functions have addresses"
    _bootstrap.before_end(_in_flight.wait_for_all)  # programs call the function, which cannot run once the interpreter ends
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(address), platform="cpu", api_version=1)
    return function


def _handle(frame: int) -> int | None:
    """What XLA calls. Returns the address of an error, or None."""
    if _is_told_version(frame):
        return None
    api = _at(frame + _API)
    try:
        _begin(frame, api)
    except Exception as error:  # noqa: BLE001 - XLA raises it where the program was called
        return _new_error(api, f"an exchange with the other worker could not begin: {type(error).__name__}: {error}", _INTERNAL)
    return None


def _begin(frame: int, api: int) -> None:
    source, target = (_at(_at(_at(frame + part + _LISTED)) + _DATA) for part in (_ARGUMENTS, _RESULTS))
    numbers = _numbers(frame + _ATTRIBUTES)
    future = _future(api)

    def finish(error: str | None) -> None:
        # XLA runs the rest of the program in the thread that says so. Nobody must wait for that one.
        _thread.start_new_thread(_end, (api, future, error))

    ctypes.c_uint64.from_address(frame + _FUTURE).value = future
    _hurry.begin()
    try:
        if _peer is None:
            finish("this process has no worker beside it")
        else:
            _peer.swap(numbers["channel"], source, target, numbers["num_bytes"], finish)
    except BaseException:
        _hurry.end()  # nothing will be finished
        raise


def _end(api: int, future: int, error: str | None) -> None:
    """Tell XLA that an exchange is over."""
    _hurry.end()
    if error is None:
        _call(api, _SET_AVAILABLE, future, 0)
    else:
        _call(api, _SET_ERROR, future, _new_error(api, error, _UNAVAILABLE))


def _is_told_version(frame: int) -> bool:
    """Answer the call with which XLA asks for the version of its interface. Returns whether this was such a call."""
    extension = _at(frame + _EXTENSION)
    if not extension or ctypes.c_int32.from_address(extension + 8).value != _IS_METADATA:
        return False
    metadata = _at(extension + _METADATA)
    for place, number in zip(_VERSION, (0, 3), strict=True):
        ctypes.c_int32.from_address(metadata + place).value = number
    return True


def _numbers(attributes: int) -> dict[str, int]:
    """The attributes of a call, which are whole numbers."""
    found = {}
    for i in range(_at(attributes + _COUNT)):
        name, value = (_at(_at(attributes + part) + 8 * i) for part in (_NAMES, _VALUES))
        found[ctypes.string_at(_at(name), _at(name + 8)).decode()] = ctypes.c_int64.from_address(_at(value + 8)).value
    return found


def _at(address: int) -> int:
    """The address that is written at an address."""
    return ctypes.c_uint64.from_address(address).value


def _future(api: int) -> int:
    made = _Call(24, None, None, None)
    _function(api, _NEW_FUTURE)(ctypes.addressof(made))
    return made.first


def _new_error(api: int, text: str, code: int) -> int:
    data = text.encode()
    return _call(api, _NEW_ERROR, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value, code)


def _call(api: int, which: int, first: Any, second: Any) -> Any:
    made = _Call(ctypes.sizeof(_Call), None, first, second)
    return _function(api, which)(ctypes.addressof(made))


def _function(api: int, which: int) -> Any:
    return _Function(_at(api + _FIRST_FUNCTION + 8 * which))
