"""Turns weights into pictures, and pictures into PNG files."""

import struct
import zlib

import keras
import numpy as np

_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}  # number of channels -> PNG type: gray, RGB, RGB with transparency
_MAX_PICTURES = 3


def pictures_of(weight: np.ndarray) -> list[np.ndarray]:
    """Draw at most 3 pictures of a weight, uint8[height, width, channels], from black (smallest value) to white (largest).

    Axes of length 1 are dropped. A vector becomes a column, a matrix is drawn with its longer side horizontal, and a stack of
    matrices becomes one picture each. A weight of four axes is a stack of colour pictures if the last axis has length 1, 3 or 4.
    Other weights have no picture.
    """
    stack = _as_stack(np.squeeze(np.asarray(weight, np.float64)))
    if stack is None or not stack.size:
        return []
    finite = stack[np.isfinite(stack)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    scaled = (np.nan_to_num(stack, nan=low, posinf=high, neginf=low) - low) / ((high - low) or 1.0)
    return list(np.round(scaled[:_MAX_PICTURES] * 255).astype(np.uint8))


def _as_stack(array: np.ndarray) -> np.ndarray | None:
    """Arrange `array` as [picture, height, width, channels]; None if that is impossible."""
    match array.ndim:
        case 0:
            return array.reshape(1, 1, 1, 1)
        case 1:
            return array.reshape(1, -1, 1, 1)
        case 2:
            return (array.T if array.shape[0] > array.shape[1] else array)[None, :, :, None]
        case 3:
            last = keras.config.image_data_format() == "channels_last"
            return (np.moveaxis(array, -1, 0) if last else array)[..., None]
        case 4 if array.shape[-1] in _COLOUR_TYPES:
            return array
    return None


def png(image: np.ndarray) -> bytes:
    """Encode `image`, uint8[height, width, 1 or 3 or 4], as a PNG file.

    >>> png(np.zeros((1, 1, 1), np.uint8))[1:4]
    b'PNG'
    """
    height, width, channels = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    no_filter = np.zeros((height, 1), np.uint8)  # each line begins with the number of its filter
    lines = np.concatenate([no_filter, image.reshape(height, -1)], axis=1)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
