"""`audio_dataset_from_directory`."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ...input._arguments import whole
from ...input._dataset import AUTOTUNE, Dataset
from ...input.graph._structure import TensorSpec
from ._folders import Folder, content
from ._wav import check_padded, decoded, resampled

_NAME = "audio_dataset_from_directory"
_sounds_in = functools.partial(Folder, _NAME, "sounds", (".wav",))


def audio_dataset_from_directory(  # noqa: PLR0917 - the arguments are those of Keras
    directory: Any,
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    batch_size: int | None = 32,
    sampling_rate: int | None = None,
    output_sequence_length: int | None = None,
    ragged: bool = False,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    follow_links: bool = False,
    verbose: bool = True,
) -> Any:
    """Return the sounds in a folder, as `keras.utils.audio_dataset_from_directory` does: float32 of shape (samples, channels).

    Args:
        directory: The folder. With inferred labels, each folder in it is a class. WAV files of 16-bit PCM are read.
        labels: As for `image_dataset_from_directory`, as are the arguments that are not listed here.
        label_mode: "int", "categorical", "binary" or None.
        class_names: The names of the folders to read.
        batch_size: The number of sounds in a batch; None makes no batches.
        sampling_rate: The number of samples per second to convert to, with a polyphase filter of SciPy.
        output_sequence_length: The number of samples to cut or pad to, after this conversion. None pads with zeros to the longest
            sound of each batch, and to the most channels.
        ragged: Must be False.
        shuffle: Whether to shuffle.
        seed: A seed for the order.
        validation_split: The part of the files that is for validation.
        subset: "training", "validation" or "both".
        follow_links: Whether to look into folders that are symbolic links.
        verbose: Whether to print the number of files.

    Returns:
        A `replicant.data.Dataset` with the attributes ``class_names`` and ``file_paths``, or a tuple of two for "both".

    Raises:
        ArgumentError: If an argument breaks a rule.
        ArgumentTypeError: If an argument has the wrong type.
        DatasetError: If there are no sounds. During iteration, if a file is damaged or in another format; the message names it.
    """
    if ragged:
        raise ArgumentError(f"{_NAME}: ragged must be False, because JAX has no ragged tensors. Set output_sequence_length.")
    if sampling_rate is not None and (not isinstance(sampling_rate, int) or sampling_rate <= 0):
        raise ArgumentError(f"{_NAME}: sampling_rate must be a positive integer. Received: {sampling_rate!r}.")
    length = None if output_sequence_length is None else whole(_NAME, "output_sequence_length", output_sequence_length, 1)
    folder = _sounds_in(
        directory, labels, label_mode, class_names, batch_size, shuffle, seed, validation_split, subset, follow_links, verbose
    )

    def batched(dataset: Dataset) -> Dataset:
        if batch_size is not None:
            dataset = dataset.padded_batch(batch_size) if length is None else dataset.batch(batch_size)
        return dataset.prefetch(AUTOTUNE)

    reads = f"read_sound(sampling_rate={sampling_rate}, length={length})"
    made = folder.datasets(SoundReader(sampling_rate, length), TensorSpec((length, None), np.float32), reads, batched)
    return tuple(made) if isinstance(made, list) else made


@dataclasses.dataclass(frozen=True)
class SoundReader:
    """Reads a sound, converts its rate, and cuts or pads it."""

    rate: int | None
    length: int | None

    def __call__(self, path: str) -> np.ndarray:
        sound, rate = decoded(_NAME, path, content(_NAME, path))
        if self.rate not in (None, rate):
            sound = resampled(_NAME, path, sound, rate, self.rate)
        if self.length is None:
            return sound
        check_padded(_NAME, path, sound, self.length)
        padded = np.zeros((self.length, sound.shape[1]), np.float32)
        padded[: len(sound)] = sound[: self.length]
        return padded
