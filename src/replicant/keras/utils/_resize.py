"""Resizing of pictures in NumPy, by the rules of ``tf.image.resize`` without antialiasing.

Every method takes a weighted sum of some rows, then of some columns. So a method is a function that returns, for each row of the
result, the numbers of rows of the picture (their *taps*) and their weights.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Taps = tuple[NDArray[np.int64], NDArray[np.float32]]  # [result, tap]

_CUBIC_STEPS = 1024  # TensorFlow looks cubic weights up in a table
_F32 = np.float32


def resize(image: NDArray[np.uint8], height: int, width: int, method: str) -> NDArray[np.generic]:
    """Return a picture, ``image[height, width, channels]``, in another size: as float32, or by "nearest" as uint8."""
    if method == "nearest":
        return image[_nearest(image.shape[0], height)[:, None], _nearest(image.shape[1], width)]
    rows = _weighted(image, taps(image.shape[0], height, method))
    turned = _weighted(rows.swapaxes(0, 1), taps(image.shape[1], width, method))
    return np.ascontiguousarray(turned.swapaxes(0, 1))


def resize_with_crop(image: NDArray[np.uint8], height: int, width: int, method: str) -> NDArray[np.generic]:
    """Resize the largest part around the centre that has the new aspect ratio."""
    rows, columns = image.shape[:2]
    crop_rows = max(1, min(rows, int(_F32(columns * height) / _F32(width))))
    crop_columns = max(1, min(columns, int(_F32(rows * width) / _F32(height))))
    top, left = (rows - crop_rows) // 2, (columns - crop_columns) // 2
    return resize(image[top : top + crop_rows, left : left + crop_columns], height, width, method)


def resize_with_pad(image: NDArray[np.uint8], height: int, width: int, method: str) -> NDArray[np.generic]:
    """Resize as far as the picture fits, and put it in the middle of zeros.

    Raises:
        ValueError: If nothing would be left of a very thin picture.
    """
    rows, columns = map(_F32, image.shape[:2])
    ratio = max(columns / _F32(width), rows / _F32(height))
    new_rows, new_columns = rows / ratio, columns / ratio
    inner = int(new_rows), int(new_columns)
    if not all(inner):
        raise ValueError(f"a picture of {image.shape[0]} x {image.shape[1]} is too thin to be padded to {height} x {width}")
    top, left = (max(0, int((_F32(whole) - new) / 2)) for whole, new in ((height, new_rows), (width, new_columns)))
    resized = resize(image, *inner, method)
    padded = np.zeros((height, width, image.shape[2]), resized.dtype)
    padded[top : top + inner[0], left : left + inner[1]] = resized
    return padded


@functools.lru_cache(maxsize=256)
def taps(size: int, new_size: int, method: str) -> Taps:
    """Return the taps and weights of each place of the result, along one dimension."""
    return _METHODS[method](size, new_size)


def _weighted(image: NDArray[Any], weights: Taps) -> NDArray[np.float32]:
    """The weighted sums of rows."""
    places, factors = weights
    total = image[places[:, 0]] * factors[:, 0, None, None]
    for tap in range(1, places.shape[1]):
        total += image[places[:, tap]] * factors[:, tap, None, None]
    return total


def _centres(size: int, new_size: int) -> NDArray[np.float32]:
    """Where the middle of each place of the result lies in the picture, counted from its edge."""
    return (np.arange(new_size, dtype=_F32) + _F32(0.5)) * (_F32(size) / _F32(new_size))


def _nearest(size: int, new_size: int) -> NDArray[np.int64]:
    return np.minimum(np.floor(_centres(size, new_size)).astype(np.int64), size - 1)


def _bilinear(size: int, new_size: int) -> Taps:
    places = _centres(size, new_size) - _F32(0.5)
    floor = np.floor(places)
    lower = np.maximum(floor, 0).astype(np.int64)
    upper = np.minimum(np.ceil(places), size - 1).astype(np.int64)
    part = places - floor
    return np.stack([lower, upper], 1), np.stack([1 - part, part], 1)


def _bicubic(size: int, new_size: int) -> Taps:
    places = _centres(size, new_size) - _F32(0.5)
    floor = np.floor(places)
    part = np.rint((places - floor) * _CUBIC_STEPS) / _F32(_CUBIC_STEPS)
    distances = np.stack([part + 1, part, 1 - part, 2 - part], 1).astype(_F32)
    return _inside(floor.astype(np.int64)[:, None] + np.arange(-1, 3), _keys(distances), size)


def _area(size: int, new_size: int) -> Taps:
    scale = _F32(size) / _F32(new_size)
    begins = np.arange(new_size, dtype=_F32) * scale
    ends = np.arange(1, new_size + 1, dtype=_F32) * scale
    first = np.floor(begins).astype(np.int64)
    places = first[:, None] + np.arange(int((np.ceil(ends).astype(np.int64) - first).max()))
    overlap = np.minimum(places + 1, ends[:, None]) - np.maximum(places, begins[:, None])
    return np.minimum(places, size - 1), (np.maximum(overlap, 0) / scale).astype(_F32)


def _by_kernel(kernel: Callable[[NDArray[np.float32]], NDArray[np.float32]], radius: float) -> Callable[[int, int], Taps]:
    """A method that weighs all places within a radius by their distance."""

    def method(size: int, new_size: int) -> Taps:
        step = _F32(1) / (_F32(new_size) / _F32(size))  # rounded as TensorFlow does it: taps may lie on the radius
        centres = (np.arange(new_size, dtype=_F32) + _F32(0.5)) * step
        first = np.ceil(centres - _F32(radius) - _F32(0.5)).astype(np.int64)
        last = np.floor(centres + _F32(radius) - _F32(0.5)).astype(np.int64)
        places = first[:, None] + np.arange(int((last - first).max()) + 1)
        weights = np.where(places <= last[:, None], kernel(np.abs(places.astype(_F32) + _F32(0.5) - centres[:, None])), 0)
        return _inside(places, weights, size)

    return method


def _inside(places: NDArray[np.int64], weights: NDArray[np.floating], size: int) -> Taps:
    """Leave out the taps beyond the edges. The weights of the others add up to 1."""
    weights = np.where((places >= 0) & (places < size), weights, 0).astype(_F32)
    totals = weights.sum(axis=1, keepdims=True)
    return np.clip(places, 0, size - 1), (weights / np.where(totals == 0, 1, totals)).astype(_F32)


def _keys(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The cubic kernel of Keys, with a = -1/2."""
    near = (_F32(1.5) * x - _F32(2.5)) * x * x + 1
    far = ((_F32(-0.5) * x + _F32(2.5)) * x - 4) * x + 2
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _mitchell(x: NDArray[np.float32]) -> NDArray[np.float32]:
    near = (_F32(7 / 6) * x - 2) * x * x + _F32(8 / 9)
    far = ((_F32(-7 / 18) * x + 2) * x - _F32(10 / 3)) * x + _F32(16 / 9)
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(radius: int) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    def kernel(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.where(x <= radius, np.sinc(x) * np.sinc(x / radius), 0)

    return kernel


def _gaussian(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(x < 1.5, np.exp(-2 * x * x), 0)  # a radius of 1.5, and a deviation of a third of it


_METHODS: dict[str, Callable[[int, int], Taps]] = {
    "bilinear": _bilinear,
    "bicubic": _bicubic,
    "area": _area,
    "lanczos3": _by_kernel(_lanczos(3), 3),
    "lanczos5": _by_kernel(_lanczos(5), 5),
    "gaussian": _by_kernel(_gaussian, 1.5),
    "mitchellcubic": _by_kernel(_mitchell, 2),
}
METHODS = ("nearest", *_METHODS)
