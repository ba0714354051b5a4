"""Pictures in files, decoded with Pillow."""

import importlib
import io
from typing import Any

import numpy as np

from ...errors import ConfigurationError, DatasetError

# JPEG has a bit for each block of 64 pixels at least, and PNG a byte for 8,256. Others hold more, if all pixels are the same.
_JPEG_PIXELS_PER_BYTE, _PIXELS_PER_BYTE = 1 << 10, 1 << 14
_ANYWAY = 1 << 23  # pixels that a file of another kind may have, however few bytes it has
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "WEBP")  # whatever the name of the file says
# What libpng takes of red, green and blue, in parts of 32768.
_GREY_OF = np.array([9798, 19235, 3735], np.int64)


def import_pillow(name: str) -> Any:
    """Import Pillow for the function ``name``.

    Raises:
        ConfigurationError: If it is not installed.
    """
    try:
        return importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{name} decodes pictures with Pillow, which cannot be imported ({error}). Run: pip install 'replicant-jax[images]'."
        ) from error


def decoded(
    pillow: Any, name: str, path: str, data: bytes, channels: int, *, remedy: str = "move it out of the folder"
) -> np.ndarray:
    """Return a picture as ``uint8[height, width, channels]``. Of an animation, this is the first frame.

    Raises:
        DatasetError: If it is damaged, or no picture.
    """
    try:
        with pillow.open(io.BytesIO(data), formats=_FORMATS) as picture:
            _check_size(picture, len(data))
            if channels == 1 and picture.format == "JPEG":
                picture.draft("L", None)  # the file has the brightness by itself
            return _with_channels(picture, channels)
    # Pillow's decoders raise errors of many types for damaged files.
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, KeyError, pillow.DecompressionBombError) as error:
        raise DatasetError(
            f"{name}: {path!r} is no BMP, GIF, JPEG, PNG or WebP picture, or it is damaged: {error}. Copy the file again, or "
            f"{remedy}."
        ) from error


def _check_size(picture: Any, num_bytes: int) -> None:
    """Check that a picture has bytes for its pixels. Otherwise, room would be made for what is not there.

    Raises:
        ValueError: If it has not.
    """
    width, height = picture.size
    most = _JPEG_PIXELS_PER_BYTE * num_bytes if picture.format == "JPEG" else max(_ANYWAY, _PIXELS_PER_BYTE * num_bytes)
    if width * height > most:
        raise ValueError(f"{num_bytes:,} bytes cannot hold {width} x {height} pixels")


def _with_channels(picture: Any, channels: int) -> np.ndarray:
    if picture.mode.startswith("I"):  # 16 bits of grey, of which the upper 8 are taken
        grey = (np.asarray(picture).astype(np.int64) >> 8).astype(np.uint8)[:, :, None]
        return _colours_of_grey(grey, channels)
    if channels == 4:
        return np.asarray(picture.convert("RGBA"))
    if channels == 3:
        return np.asarray(picture.convert("RGB"))
    if picture.mode in ("1", "L", "LA", "La"):
        return np.asarray(picture.convert("L"))[:, :, None]
    colours = np.asarray(picture.convert("RGB")).astype(np.int64)
    return ((colours @ _GREY_OF) >> 15).astype(np.uint8)[:, :, None]


def _colours_of_grey(grey: np.ndarray, channels: int) -> np.ndarray:
    colours = np.repeat(grey, min(channels, 3), axis=2)
    return np.concatenate([colours, np.full_like(grey, 255)], axis=2) if channels == 4 else colours
