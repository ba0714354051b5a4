"""JPEG pictures, decoded by simplejpeg with the fast transform (``INTEGER_FAST``) that TensorFlow uses by default."""

import importlib
from typing import Any

import numpy as np

from ...errors import ConfigurationError
from ._pictures import check_room_for_pixels

_BEGINNING = b"\xff\xd8\xff"
_COLOURS = {1: "GRAY", 3: "RGB", 4: "RGBA"}


def import_simplejpeg(name: str) -> Any:
    """Import simplejpeg for the function ``name``.

    Raises:
        ConfigurationError: If it is not installed.
    """
    try:
        return importlib.import_module("simplejpeg")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f'{name}: dct_method="INTEGER_FAST" decodes JPEG pictures with simplejpeg, which cannot be imported ({error}). Run: '
            "pip install 'replicant-jax[jpeg]'."
        ) from error


def is_jpeg(data: bytes) -> bool:
    """Return whether these are the bytes of a JPEG picture."""
    return data.startswith(_BEGINNING)


def fast_jpeg(simplejpeg: Any, data: bytes, channels: int) -> np.ndarray:
    """Return a JPEG picture as ``uint8[height, width, channels]``; with 0 channels, it has those of the file.

    Raises:
        ValueError: If it is damaged.
    """
    height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    check_room_for_pixels(width, height, len(data), "JPEG")
    channels = channels or (1 if colours == "Gray" else 3)
    return simplejpeg.decode_jpeg(data, _COLOURS[channels], fastdct=True, fastupsample=False)
