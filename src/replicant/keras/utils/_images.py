"""`image_dataset_from_directory`."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from ...errors import ArgumentError, DatasetError
from ...input._arguments import whole
from ...input.files._pictures import decoded, import_pillow
from ...input.graph._structure import TensorSpec
from ._folders import Folder, check_format, content, read_ahead
from ._resize import METHODS, resize, resize_with_crop, resize_with_pad

_NAME = "image_dataset_from_directory"
_pictures_in = functools.partial(Folder, _NAME, "pictures", (".bmp", ".gif", ".jpeg", ".jpg", ".png"))
_CHANNELS = {"rgb": 3, "rgba": 4, "grayscale": 1}
_CROP_METHODS = ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5")  # that Keras takes there


def image_dataset_from_directory(  # noqa: PLR0917 - the arguments are those of Keras
    directory: Any,
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    color_mode: str = "rgb",
    batch_size: int | None = 32,
    image_size: Any = (256, 256),
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    interpolation: str = "bilinear",
    follow_links: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    data_format: str | None = None,
    format: str = "tf",  # noqa: A002 - Keras's name
    verbose: bool = True,
) -> Any:
    """Return the pictures in a folder, as `keras.utils.image_dataset_from_directory` does.

    It needs Pillow: ``pip install 'replicant-jax[images]'``. Files are in the order of their names. With a seed, they are shuffled
    once, and the last part of them is for validation: these are Keras's files, for the same seed. Then each pass shuffles them
    anew, as ``dataset.shuffle(8 * batch_size, seed)`` does, or without a seed, as ``dataset.shuffle(len(files))``.

    Args:
        directory: The folder. With inferred labels, each folder in it is a class.
        labels: "inferred" (from the folders), None (no labels), or a list of numbers for the files in the order of their names.
        label_mode: "int", "categorical" (one-hot float32), "binary" (float32 of shape (1,), for two classes) or None (no labels).
        class_names: The names of the folders to read, in the order of their labels; None takes all in alphabetical order.
        color_mode: "rgb", "rgba" or "grayscale".
        batch_size: The number of pictures in a batch; None makes no batches.
        image_size: The height and width to resize to.
        shuffle: Whether to shuffle.
        seed: A seed for the order. With ``validation_split`` and ``shuffle``, you must give one.
        validation_split: The part of the files, between 0 and 1, that is for validation.
        subset: "training", "validation" or "both", if there is a ``validation_split``.
        interpolation: "bilinear", "nearest" (the pictures stay uint8), "bicubic", "area", "lanczos3", "lanczos5", "gaussian" or
            "mitchellcubic".
        follow_links: Whether to look into folders that are symbolic links.
        crop_to_aspect_ratio: Whether to cut off what does not fit the aspect ratio of ``image_size``.
        pad_to_aspect_ratio: Whether to fill with zeros what the picture does not cover.
        data_format: "channels_last" or "channels_first"; None takes Keras's setting.
        format: Must be "tf".
        verbose: Whether to print the number of files.

    Returns:
        A `replicant.data.Dataset` with the attributes ``class_names`` and ``file_paths``, or a list of two for "both".

    Raises:
        ArgumentError: If an argument breaks a rule.
        ArgumentTypeError: If an argument has the wrong type.
        ConfigurationError: If Pillow is not installed.
        DatasetError: If there are no pictures. During iteration, if a file is damaged; the message names it.
    """
    if not isinstance(color_mode, str) or color_mode not in _CHANNELS:
        raise ArgumentError(f'{_NAME}: color_mode must be "rgb", "rgba" or "grayscale". Received: {color_mode!r}.')
    method = _checked_method(interpolation, crop_to_aspect_ratio)
    if crop_to_aspect_ratio and pad_to_aspect_ratio:
        raise ArgumentError(f"{_NAME}: only one of crop_to_aspect_ratio and pad_to_aspect_ratio can be True.")
    check_format(_NAME, format)
    data_format = keras.config.image_data_format() if data_format is None else data_format
    if data_format not in ("channels_last", "channels_first"):
        raise ArgumentError(f'{_NAME}: data_format must be "channels_last" or "channels_first". Received: {data_format!r}.')
    read = PictureReader(
        _checked_size(image_size),
        _CHANNELS[color_mode],
        method,
        fit="crop" if crop_to_aspect_ratio else "pad" if pad_to_aspect_ratio else "stretch",
        channels_first=data_format == "channels_first",
    )
    import_pillow(_NAME)
    folder = _pictures_in(
        directory, labels, label_mode, class_names, batch_size, shuffle, seed, validation_split, subset, follow_links, verbose
    )
    return folder.datasets(read, read.spec, str(read), lambda dataset: read_ahead(dataset, batch_size))


@dataclasses.dataclass(frozen=True)
class PictureReader:
    """Reads a picture and resizes it. ``fit`` is "stretch", "crop" or "pad"."""

    size: tuple[int, int]
    channels: int
    method: str
    fit: str
    channels_first: bool

    def __str__(self) -> str:
        first = ", channels_first" if self.channels_first else ""
        return f"read_picture({self.size[0]}x{self.size[1]}x{self.channels}, {self.method}, {self.fit}{first})"

    @property
    def spec(self) -> TensorSpec:
        shape = (self.channels, *self.size) if self.channels_first else (*self.size, self.channels)
        return TensorSpec(shape, np.uint8 if self.method == "nearest" else np.float32)

    def __call__(self, path: str) -> np.ndarray:
        image = decoded(import_pillow(_NAME), _NAME, path, content(_NAME, path), self.channels)
        resized = {"stretch": resize, "crop": resize_with_crop, "pad": resize_with_pad}[self.fit]
        try:
            made = resized(image, *self.size, self.method)
        except ValueError as error:
            raise DatasetError(f"{_NAME}: {path!r}: {error}.") from error
        return np.ascontiguousarray(made.transpose(2, 0, 1)) if self.channels_first else made


def _checked_method(interpolation: str, crop: bool) -> str:
    method = str(interpolation).lower()
    allowed = _CROP_METHODS if crop else METHODS
    if method not in allowed:
        where = " with crop_to_aspect_ratio" if crop else ""
        raise ArgumentError(f"{_NAME}: interpolation{where} must be one of {', '.join(allowed)}. Received: {interpolation!r}.")
    return method


def _checked_size(image_size: Any) -> tuple[int, int]:
    if isinstance(image_size, int):
        image_size = (image_size, image_size)
    if not isinstance(image_size, list | tuple) or len(image_size) != 2:
        raise ArgumentError(f"{_NAME}: image_size must be the height and the width. Received: {image_size!r}.")
    height, width = (whole(_NAME, "each of image_size", size, 1) for size in image_size)
    return height, width
