"""Copies of arrays in host memory, which their owner may write to again as soon as our call has returned.

JAX reads a NumPy array later than that. On CPUs it shares the memory of an array that begins at a multiple of 64 bytes, for as long
as the result lives, and copies others in a thread of its own. To GPUs it copies in the background. ``jnp.array(x, copy=True)`` and
``may_alias=False`` do not change that.
"""

import sys
from typing import Any

import jax
import numpy as np

_ALIGNMENT = 64  # bytes; JAX would copy an array that begins elsewhere once more
_HOST = (1, 3)  # kDLCPU and kDLCUDAHost of DLPack
_SMALL = 4096  # bytes, below which an aligned copy takes longer than a second copy


def own(x: Any) -> Any:
    """Return a copy of an array in host memory, as of NumPy or PyTorch. Return arrays of JAX and all else as they are.

    A masked array keeps its mask, which JAX refuses. Other arrays get this machine's byte order.

    >>> import numpy as np
    >>> x = np.array([1.0, 2.0])
    >>> kept = own(x)
    >>> x[:] = 0
    >>> kept
    array([1., 2.])
    """
    if isinstance(x, np.ndarray):
        return x.copy() if isinstance(x, np.ma.MaskedArray) else _copy(x)
    if isinstance(x, jax.Array | np.generic) or not (hasattr(x, "__dlpack_device__") and hasattr(x, "__array__")):
        return x
    return _copy(np.asarray(x)) if x.__dlpack_device__()[0] in _HOST else x


def own_if_held(arrays: list[Any], known: tuple[Any, ...] = (), *, holders: int = 0) -> list[Any]:
    """Return a list with copies of the arrays, as of `own`, that something else than this list holds, or holds the memory of.

    Args:
        arrays: The arrays, and anything else.
        known: Arrays that nobody writes to, which are not copied.
        holders: How often the caller holds each array besides the list.
    """
    theirs, references = {id(y) for y in known}, _REFERENCES + holders
    return [
        x if type(x) is np.ndarray and ((sys.getrefcount(x) <= references and has_memory_alone(x)) or id(x) in theirs) else own(x)
        for x in arrays
    ]


def has_memory_alone(x: np.ndarray) -> bool:
    """Return whether nothing but this array holds its memory. What holds the array itself must be counted by the caller."""
    base = x.base
    if base is None:
        return x.flags.owndata
    return type(base) is np.ndarray and base.flags.owndata and sys.getrefcount(base) <= _HOLDERS


def _count_references() -> int:
    """Count the references that `own_if_held` sees to an array that only its list holds."""
    (count,) = [sys.getrefcount(x) for x in [np.zeros(1)]]
    return count


def _count_holders() -> int:
    """Count the references that `has_memory_alone` sees to an array that only a view of it holds."""
    view = np.zeros(2)[:1]
    base = view.base
    return sys.getrefcount(base)


_REFERENCES = _count_references()
_HOLDERS = _count_holders()


def _copy(x: np.ndarray) -> np.ndarray:
    if 0 in x.strides and x.size:
        repeats = [stride == 0 and size > 1 for stride, size in zip(x.strides, x.shape, strict=True)]
        if any(repeats):  # as np.broadcast_to makes them, of any size from little memory
            return np.broadcast_to(_copy(x[tuple([slice(1) if repeated else slice(None) for repeated in repeats])]), x.shape)
    native = x.dtype if x.dtype.isnative else x.dtype.newbyteorder("=")
    if x.nbytes < _SMALL or x.dtype.hasobject or x.dtype.kind == "T":  # objects and texts are references
        return np.array(x, native, order="C")  # of this class alone: a memmap would go on sharing its file
    memory = np.empty(x.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    fresh = np.ndarray(x.shape, native, memory, start)
    np.copyto(fresh, x)
    return fresh
