"""`text_dataset_from_directory`."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from ...errors import DatasetError
from ...input._arguments import whole
from ...input.graph._structure import STRING, TensorSpec
from ._folders import Folder, check_format, content, read_ahead

_NAME = "text_dataset_from_directory"
_texts_in = functools.partial(Folder, _NAME, "texts", (".txt",))


def text_dataset_from_directory(  # noqa: PLR0917 - the arguments are those of Keras
    directory: Any,
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    batch_size: int | None = 32,
    max_length: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    follow_links: bool = False,
    format: str = "tf",  # noqa: A002 - Keras's name
    verbose: bool = True,
) -> Any:
    """Return the texts in a folder, as `keras.utils.text_dataset_from_directory` does. Texts are ``str``.

    Args:
        directory: The folder. With inferred labels, each folder in it is a class. Files whose names end in .txt are read.
        labels: As for `image_dataset_from_directory`, as are the arguments that are not listed here.
        label_mode: "int", "categorical", "binary" or None.
        class_names: The names of the folders to read.
        batch_size: The number of texts in a batch; None makes no batches.
        max_length: The most bytes of UTF-8 to keep of a text. A character that would be cut is left out.
        shuffle: Whether to shuffle.
        seed: A seed for the order.
        validation_split: The part of the files that is for validation.
        subset: "training", "validation" or "both".
        follow_links: Whether to look into folders that are symbolic links.
        format: Must be "tf".
        verbose: Whether to print the number of files.

    Returns:
        A `replicant.data.Dataset` with the attributes ``class_names`` and ``file_paths``, or a list of two for "both".

    Raises:
        ArgumentError: If an argument breaks a rule.
        ArgumentTypeError: If an argument has the wrong type.
        DatasetError: If there are no texts. During iteration, if a file is not UTF-8 text; the message names it.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("bad/1.txt", "good/1.txt", "good/2.txt"):
    ...     (folder / name).parent.mkdir(exist_ok=True)
    ...     _ = (folder / name).write_text(name)
    >>> dataset = text_dataset_from_directory(folder, shuffle=False)
    Found 3 files belonging to 2 classes.
    >>> list(dataset), dataset.class_names
    ([(array(['bad/1.txt', 'good/1.txt', 'good/2.txt'], dtype=object), array([0, 1, 1], dtype=int32))], ['bad', 'good'])
    """
    check_format(_NAME, format)
    most = None if max_length is None else whole(_NAME, "max_length", max_length, 0)
    folder = _texts_in(
        directory, labels, label_mode, class_names, batch_size, shuffle, seed, validation_split, subset, follow_links, verbose
    )
    reads = "read_text()" if most is None else f"read_text({most})"
    return folder.datasets(TextReader(most), TensorSpec((), STRING), reads, lambda dataset: read_ahead(dataset, batch_size))


@dataclasses.dataclass(frozen=True)
class TextReader:
    """Reads a UTF-8 text."""

    most: int | None

    def __call__(self, path: str) -> str:
        data = content(_NAME, path)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise DatasetError(
                f"{_NAME}: {path!r} is not UTF-8 text: {error.reason} at byte {error.start} (0x{data[error.start]:02x}). Convert "
                "the file to UTF-8, or move it out of the folder."
            ) from error
        if self.most is None or len(data) <= self.most:
            return text
        return data[: self.most].decode(errors="ignore")  # only the last character can be cut
