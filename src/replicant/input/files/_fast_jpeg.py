"""JPEG pictures, decoded by simplejpeg: in half the time of Pillow, and also by the fast transform that is TensorFlow's default."""

import functools
import importlib
from typing import Any

import numpy as np

from ...errors import ConfigurationError
from ._pictures import check_room_for_pixels

_BEGINNING = b"\xff\xd8\xff"
_COLOURS = {1: "GRAY", 3: "RGB", 4: "RGBA"}
_OWN_CHANNELS = {"Gray": 1, "YCbCr": 3}


@functools.cache
def simplejpeg() -> Any:
    """Return the module, or None if it is not installed."""
    try:
        return importlib.import_module("simplejpeg")
    except ModuleNotFoundError:
        return None


def check_simplejpeg(name: str) -> None:
    """Check that simplejpeg is installed, for the function ``name``.

    Raises:
        ConfigurationError: If it is not.
    """
    if simplejpeg() is None:
        raise ConfigurationError(
            f'{name}: dct_method="INTEGER_FAST" decodes JPEG pictures with simplejpeg, which is not installed. Run: pip install '
            "'replicant-jax[jpeg]'."
        )


def is_jpeg(data: bytes) -> bool:
    """Return whether these are the bytes of a JPEG picture."""
    return data.startswith(_BEGINNING)


def jpeg_pixels(data: bytes, channels: int, *, fast_dct: bool) -> np.ndarray:
    """Return a JPEG picture as ``uint8[height, width, channels]``; with 0 channels, it has those of the file.

    With ``fast_dct``, pixels are those of ``tf.io.decode_jpeg`` with its default; without, those of Pillow.

    Raises:
        ValueError: If it is damaged, or has other colours than JPEG pictures usually have.
    """
    height, width, colours, _ = simplejpeg().decode_jpeg_header(data)
    if colours not in _OWN_CHANNELS:
        raise ValueError(f"its colours are {colours}, but only grey and YCbCr can be read")
    check_room_for_pixels(width, height, len(data), "JPEG")
    return simplejpeg().decode_jpeg(data, _COLOURS[channels or _OWN_CHANNELS[colours]], fastdct=fast_dct, fastupsample=False)
