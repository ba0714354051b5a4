"""Pictures in files, decoded with Pillow."""

import importlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import ConfigurationError, DatasetError

# JPEG has a bit for each block of 64 pixels at least, and PNG a byte for 8,256. Others hold more, if all pixels are the same.
_JPEG_PIXELS_PER_BYTE, _PIXELS_PER_BYTE = 1 << 10, 1 << 14
_ANYWAY = 1 << 23  # pixels that a file of another kind may have, however few bytes it has
_STILLS = ("BMP", "JPEG", "PNG")
_FORMATS = (*_STILLS, "GIF", "WEBP")  # whatever the name of the file says
_PNG_BITS = 24  # the byte of a PNG picture that says how many bits a channel has
# What libpng takes of red, green and blue, in parts of 32768.
_GREY_OF = np.array([9797, 19234, 3737], np.int64)
_SRGB_GAMMA = 0.45455


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
        return _read(pillow, data, _FORMATS, lambda picture: _with_channels(picture, data, channels))
    except ValueError as error:
        raise DatasetError(
            f"{name}: {path!r} is not a BMP, GIF, JPEG, PNG or WebP picture, or it is damaged: {error}. Copy the file again, or "
            f"{remedy}."
        ) from error


def picture_of(pillow: Any, data: bytes, channels: int, dtype: np.dtype) -> np.ndarray:
    """Return a picture of a record as ``dtype[height, width, channels]``; with 0 channels, it has those of the file.

    Pixels are those of ``tf.io.decode_image``, with ``dct_method="INTEGER_ACCURATE"`` for JPEG.

    Raises:
        ValueError: If it is damaged, no BMP, JPEG or PNG picture, or Pillow does not give pixels of this dtype.
    """
    try:
        return _read(pillow, data, _STILLS, lambda picture: _in_dtype(picture, data, channels, dtype))
    except ValueError as error:
        raise ValueError(f"it is not a BMP, JPEG or PNG picture, or it is damaged: {error}") from error


def _read(pillow: Any, data: bytes, formats: tuple[str, ...], convert: Callable[[Any], np.ndarray]) -> np.ndarray:
    """What ``convert`` returns for the picture.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        with pillow.open(io.BytesIO(data), formats=formats) as picture:
            width, height = picture.size
            check_room_for_pixels(width, height, len(data), picture.format)
            return convert(picture)
    except pillow.UnidentifiedImageError as error:
        raise ValueError("Pillow does not know its first bytes") from error
    # Pillow's decoders raise errors of many types for damaged files.
    except (OSError, SyntaxError, EOFError, IndexError, TypeError, KeyError, pillow.DecompressionBombError) as error:
        raise ValueError(str(error)) from error


def _in_dtype(picture: Any, data: bytes, channels: int, dtype: np.dtype) -> np.ndarray:
    channels = channels or _own_channels(picture)
    if dtype == np.uint8:
        return _with_channels(picture, data, channels)
    if picture.format != "PNG":
        raise ValueError(f"{picture.format} pictures have 8 bits, and {dtype} is expected")
    if data[_PNG_BITS] < 16:  # the upper byte is repeated as the lower one
        return _with_channels(picture, data, channels).astype(np.uint16) * 257
    if picture.mode.startswith("I"):
        return _colours_of_grey(np.asarray(picture).astype(np.uint16)[:, :, None], channels)
    raise ValueError("it has colours of 16 bits, of which Pillow gives only 8. Pass SkipDecoding(), and decode it in `map`")


def _own_channels(picture: Any) -> int:
    """The number of channels of a picture as it is stored; those of a palette are those of its colours."""
    mode = "L" if picture.mode.startswith("I") or picture.mode == "1" else picture.mode
    if mode == "P":
        return 4 if "transparency" in picture.info else 3
    if mode not in ("L", "RGB", "RGBA"):
        raise ValueError(f"its pixels are {picture.mode!r}, but only grey, RGB and RGBA can be read")
    return {"L": 1, "RGB": 3, "RGBA": 4}[mode]


def check_room_for_pixels(width: int, height: int, num_bytes: int, form: str) -> None:
    """Check that a picture has bytes for its pixels. Otherwise, room would be made for what is not there.

    Raises:
        ValueError: If it has not.
    """
    most = _JPEG_PIXELS_PER_BYTE * num_bytes if form == "JPEG" else max(_ANYWAY, _PIXELS_PER_BYTE * num_bytes)
    if width * height > most:
        raise ValueError(f"{num_bytes:,} bytes cannot hold {width} x {height} pixels")


def _with_channels(picture: Any, data: bytes, channels: int) -> np.ndarray:
    if channels == 1 and picture.format == "JPEG":
        picture.draft("L", None)  # the file has the brightness by itself
    if picture.mode.startswith("I"):  # 16 bits of grey, of which the upper 8 are taken
        grey = (np.asarray(picture).astype(np.int64) >> 8).astype(np.uint8)[:, :, None]
        return _colours_of_grey(grey, channels)
    if channels == 4 and picture.mode != "CMYK":
        return np.asarray(picture.convert("RGBA"))
    if channels == 1 and picture.mode in ("1", "L", "LA", "La"):
        return np.asarray(picture.convert("L"))[:, :, None]
    colours = _of_inks(np.asarray(picture)) if picture.mode == "CMYK" else np.asarray(picture.convert("RGB"))
    if channels == 1:
        gamma = _gamma(picture)
        if gamma != 1 and data[_PNG_BITS] == 16 and data[_PNG_BITS + 1] & 2:  # colours, not grey and alpha
            raise ValueError(
                "it has a gamma, and colours of 16 bits, of which Pillow gives 8: too few for grey. Read it in colours"
            )
        return _grey_of(colours, gamma)[:, :, None]
    return colours if channels == 3 else np.concatenate([colours, np.full_like(colours[:, :, :1], 255)], axis=2)


def _of_inks(inks: np.ndarray) -> np.ndarray:
    """Cyan, magenta, yellow and black as red, green and blue."""
    left = 255 - inks.astype(np.int64)
    return (left[:, :, :3] * left[:, :, 3:] // 255).astype(np.uint8)


def _gamma(picture: Any) -> float:
    """The exponent with which a PNG picture says that light became levels; 1 if it says nothing, or nearly that, as for libpng."""
    gamma = _SRGB_GAMMA if "srgb" in picture.info else picture.info.get("gamma", 1.0)
    return gamma if picture.format == "PNG" and gamma > 0 and not 0.95 <= gamma <= 1.05 else 1.0


def _grey_of(colours: np.ndarray, gamma: float) -> np.ndarray:
    """The grey of colours as libpng computes it: of the light, if the picture says what that is."""
    if gamma == 1:
        return ((colours.astype(np.int64) @ _GREY_OF) >> 15).astype(np.uint8)
    levels = np.arange(256) / 255
    light, back = (np.floor(255 * levels**power + 0.5).astype(np.int64) for power in (1 / gamma, gamma))
    grey = back[(light[colours] @ _GREY_OF + (1 << 14)) >> 15].astype(np.uint8)
    return np.where((colours == colours[:, :, :1]).all(axis=2), colours[:, :, 0], grey)


def _colours_of_grey(grey: np.ndarray, channels: int) -> np.ndarray:
    colours = np.repeat(grey, min(channels, 3), axis=2)
    return np.concatenate([colours, np.full_like(grey, np.iinfo(grey.dtype).max)], axis=2) if channels == 4 else colours
