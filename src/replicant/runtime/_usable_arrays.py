"""Which arrays of NumPy mean the same on a device: the others are refused where they come in, before a step is compiled for them.

A masked array holds numbers that do not count, and its mask would be lost. Records, raw bytes and numbers of more than 64 bits have
no counterpart in JAX. The byte order is not a property of a number, so arrays in the other one are copied.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

NUMBERS = frozenset(map(np.dtype, "?bhilqBHILQefdFD"))  # in this machine's byte order
_USABLE = NUMBERS | {np.dtype(object)}  # others are looked at
_LISTS = (list, tuple)
_NUMPY = (np.ndarray, np.generic)
_WIDE = {np.longdouble: "np.float64", np.clongdouble: "np.complex128"}


def usable(x: Any, refuse: Callable[[str], Exception]) -> Any:
    """Return an array or scalar of NumPy as devices take it: itself, or a copy in this machine's byte order, or texts as objects.

    Anything else is returned as it is.

    Args:
        x: The array.
        refuse: Makes the error from what follows the name of the array in the message.

    Raises:
        Exception: What ``refuse`` returns, if it is a masked array in which something is masked, has no dtype of a device, or lacks
            a text.
    """
    if not isinstance(x, _NUMPY):
        return x
    dtype = x.dtype
    if dtype in _USABLE and not isinstance(x, np.ma.MaskedArray):
        return x
    if (advice := _advice(dtype)) is not None:
        raise refuse(advice)
    if isinstance(x, np.ma.MaskedArray):
        x = _unmasked(x, refuse)
    if dtype.kind == "T":
        x = _texts(x, refuse)
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def check_unmasked(value: Any, refuse: Callable[[str], Exception]) -> None:
    """Check that no masked array is somewhere in nested lists, which NumPy would join without the masks.

    Raises:
        Exception: What ``refuse`` returns.
    """
    for kind in set(map(type, value)):
        if issubclass(kind, np.ma.MaskedArray):
            for item in value:
                usable(item, refuse)
        elif issubclass(kind, _LISTS):
            for item in value:
                if isinstance(item, _LISTS):
                    check_unmasked(item, refuse)


def _advice(dtype: np.dtype) -> str | None:
    """What to write instead of an array of a dtype that no device has; None if devices may have it."""
    if dtype.names is not None:
        return (
            f"holds records, of dtype {dtype}. Pass their fields as components: "
            "`{name: array[name] for name in array.dtype.names}`."
        )
    if dtype.type is np.void:
        return f"holds raw bytes, of dtype {dtype}. Pass them as numbers: `array[..., None].view(np.uint8)`."
    if dtype.type in _WIDE:
        return f"is of dtype {dtype}, which no device computes with. Convert it: `array.astype({_WIDE[dtype.type]})`."
    return None


def _unmasked(x: Any, refuse: Callable[[str], Exception]) -> np.ndarray:
    mask = np.ma.getmaskarray(x)
    if mask.any():
        first = tuple(np.argwhere(mask)[0].tolist())
        raise refuse(
            f"is a masked array, in which {np.count_nonzero(mask)} of {mask.size} values are masked, the first at {first}. "
            "Fill them in: `array.filled(0)`. To train without them, pass `~np.ma.getmaskarray(array)` as weights, too."
        )
    return np.asarray(x)


def _texts(x: Any, refuse: Callable[[str], Exception]) -> np.ndarray:
    texts = x.astype(object)
    missing = [i for i, text in enumerate(texts.flat) if not isinstance(text, str)]
    if missing:
        where = tuple(int(i) for i in np.unravel_index(missing[0], texts.shape))
        raise refuse(
            f"is of dtype {x.dtype}, and {len(missing)} of its {texts.size} texts are missing, the first at {where}. Fill "
            "them in: `np.vectorize(lambda text: text if isinstance(text, str) else '', otypes=[object])(array)`."
        )
    return texts
