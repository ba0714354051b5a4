"""The examples in a folder, the part of them that is asked for, and the datasets of it."""

import dataclasses
import itertools
import logging
import numbers
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ...errors import ArgumentError, ArgumentTypeError, DatasetError
from ...input._arguments import whole
from ...input._dataset import AUTOTUNE, Dataset
from ...input.graph._structure import STRING, TensorSpec, as_leaf
from ...input.transforms._whole_files import ExampleFiles, WholeFiles

_logger = logging.getLogger("replicant.keras")

_LOCAL_SHUFFLE = 8  # batches in the buffer of a shuffle
_UNBATCHED_SHUFFLE = 1024  # elements in it, if there are no batches
LARGEST_SEED = 2**32 - 1  # that NumPy's RandomState takes

Reader = Callable[[str], Any]


class DirectoryDataset(Dataset):
    """A dataset of the examples in a folder. Transforms return an ordinary `Dataset`, without these attributes.

    Args:
        dataset: The dataset.
        class_names: The names of the classes, or None if there are no labels.
        file_paths: The names of the files, before they are shuffled in each pass.
    """

    def __init__(self, dataset: Dataset, class_names: list[str] | None, file_paths: list[str]) -> None:
        super().__init__(dataset.node)
        self.class_names = class_names
        self.file_paths = file_paths


@dataclasses.dataclass(frozen=True)
class Examples:
    """The files that were found, their labels, and the names of the classes."""

    paths: list[str]
    labels: np.ndarray | None
    class_names: list[str] | None

    def part(self, chosen: Any) -> "Examples":
        """Return some of them: a slice, or an array of numbers."""
        paths = self.paths[chosen] if isinstance(chosen, slice) else [self.paths[i] for i in chosen]
        return Examples(paths, None if self.labels is None else self.labels[chosen], self.class_names)


@dataclasses.dataclass(frozen=True)
class Example:
    """Reads an example, and encodes its label."""

    read: Reader
    label_mode: str | None
    num_classes: int

    def __call__(self, path: str, label: Any = None) -> Any:
        example = self.read(path)
        if self.label_mode is None:
            return example
        if self.label_mode == "binary":
            return example, np.array([label], np.float32)
        if self.label_mode == "categorical":
            encoded = np.zeros(self.num_classes, np.float32)
            encoded[int(label)] = 1
            return example, encoded
        return example, label

    def spec(self, example: TensorSpec, label: TensorSpec | None) -> Any:
        """Return the spec of what it returns."""
        if label is None:
            return example
        shapes = {"binary": (1,), "categorical": (self.num_classes,)}
        encoded = TensorSpec(shapes[self.label_mode], np.float32) if self.label_mode in shapes else label
        return example, encoded


@dataclasses.dataclass(frozen=True)
class Folder:
    """The arguments that the functions share, in Keras's order. ``name`` is the function's name, and ``what`` it looks for."""

    name: str
    what: str
    formats: tuple[str, ...]
    directory: Any
    labels: Any
    label_mode: str | None
    class_names: Sequence[str] | None
    batch_size: int | None
    shuffle: bool
    seed: int | None
    validation_split: float | None
    subset: str | None
    follow_links: bool
    verbose: bool

    def datasets(self, read: Reader, spec: TensorSpec, reads: str, batched: Callable[[Dataset], Dataset]) -> Any:
        """Return the dataset that is asked for, or the list of both.

        Args:
            read: Reads one file.
            spec: The spec of what ``read`` returns.
            reads: What ``read`` does, for the description of the dataset.
            batched: Makes batches of a dataset, and reads ahead.

        Raises:
            ArgumentError: If an argument breaks a rule.
            ArgumentTypeError: If an argument has the wrong type.
            DatasetError: If the folder cannot be read, or there are no examples.
        """
        has_labels = self._check()
        found = self._shuffled(self._found(has_labels))

        def dataset(subset: str | None, shuffle: bool) -> DirectoryDataset:
            part = self._part(found, subset)
            function = Example(read, self.label_mode if has_labels else None, len(found.class_names or ()))
            label = None if part.labels is None else TensorSpec((), part.labels.dtype)
            names = np.array(part.paths, dtype=object)
            source = ExampleFiles(
                size=len(names),
                tables=(names,) if part.labels is None else (names, part.labels),
                spec=TensorSpec((), STRING) if label is None else (TensorSpec((), STRING), label),
                name=self.name,
            )
            files = Dataset(source)
            if shuffle:
                files = files.shuffle(self._buffer(len(names)), self.seed)
            node = WholeFiles(
                inputs=(files.node,), fn=function, num_threads=AUTOTUNE, known_spec=function.spec(spec, label), reads=reads
            )
            return DirectoryDataset(batched(Dataset(node)), part.class_names, part.paths)

        if self.subset == "both":
            return [dataset("training", self.shuffle), dataset("validation", False)]
        return dataset(self.subset, self.shuffle)

    # Arguments

    def _check(self) -> bool:
        """Check the arguments, and return whether there are labels."""
        if not isinstance(self.directory, str | os.PathLike):
            raise ArgumentTypeError(f"{self.name}: directory must be the path of a folder. Received: {self.directory!r}.")
        if not isinstance(self.label_mode, str | None) or self.label_mode not in ("int", "categorical", "binary", None):
            raise ArgumentError(
                f'{self.name}: label_mode must be "int", "categorical", "binary" or None. Received: {self.label_mode!r}.'
            )
        inferred = isinstance(self.labels, str) and self.labels == "inferred"
        if not inferred and self.labels is not None:
            if not isinstance(self.labels, list | tuple):
                raise ArgumentError(
                    f'{self.name}: labels must be "inferred", None, or a list of numbers, one for each file. '
                    f"Received: {self.labels!r}."
                )
            if self.class_names is not None:
                raise ArgumentError(f'{self.name}: class_names can only be given with labels="inferred".')
        self._check_split()
        if self.batch_size is not None:
            whole(self.name, "batch_size", self.batch_size, 1)
        if self.seed is not None and self.shuffle and not 0 <= whole(self.name, "seed", self.seed) <= LARGEST_SEED:
            raise ArgumentError(f"{self.name}: seed must be from 0 to 2**32 - 1. Received: {self.seed}.")
        has_labels = self.labels is not None and self.label_mode is not None
        self._check_class_names(has_labels)
        return has_labels

    def _check_class_names(self, has_labels: bool) -> None:
        names = self.class_names
        if names is None:
            return
        if not has_labels:
            raise ArgumentError(f"{self.name}: without labels, class_names cannot be given. Received: {names!r}.")
        # The characters of a text would be taken for names, and the order of a set is another one in each process.
        if not isinstance(names, list | tuple | np.ndarray) or not all(isinstance(name, str) for name in names) or not len(names):
            raise ArgumentTypeError(f"{self.name}: class_names must be a list of names of folders. Received: {names!r}.")

    def _check_split(self) -> None:
        split = self.validation_split
        if split is not None and not isinstance(split, numbers.Real):
            raise ArgumentTypeError(f"{self.name}: validation_split must be a number. Received: {split!r}.")
        if split and not 0 < split < 1:
            raise ArgumentError(f"{self.name}: validation_split must be between 0 and 1. Received: {split}.")
        if bool(split) != bool(self.subset):
            raise ArgumentError(
                f"{self.name}: give both validation_split and subset, or neither. Received: {split!r} and {self.subset!r}."
            )
        if self.subset not in ("training", "validation", "both", None):
            raise ArgumentError(f'{self.name}: subset must be "training", "validation" or "both". Received: {self.subset!r}.')
        if split and self.shuffle and self.seed is None:
            raise ArgumentError(
                f"{self.name}: with validation_split and shuffle, give a seed. Without one, the training and the validation "
                "examples would be drawn independently, and overlap."
            )

    # What is there

    def _found(self, has_labels: bool) -> Examples:
        """The files in order, their labels and classes."""
        directory = os.fspath(self.directory)
        if not os.path.isdir(directory):  # noqa: PTH112 - names stay as they were given
            raise DatasetError(
                f"{self.name}: {directory!r} is not a folder on this machine (searched from {Path.cwd()}). Check the path; copy "
                "data from elsewhere, such as gs://, to this machine first."
            )
        if not has_labels:
            found = Examples(list(self._files(directory)), None, None)
        elif self.labels == "inferred":
            found = self._by_folders(directory)
        else:
            found = self._by_list(list(self._files(directory)))
        classes = "" if found.class_names is None else f" belonging to {len(found.class_names)} classes"
        self._say(f"Found {len(found.paths)} files{classes}.")
        if self.label_mode == "binary" and found.class_names is not None and len(found.class_names) != 2:
            raise ArgumentError(
                f'{self.name}: label_mode="binary" needs exactly 2 classes. Found {len(found.class_names)}: {found.class_names}.'
            )
        return found

    def _by_folders(self, directory: str) -> Examples:
        """The files in the folders of ``directory``, each of which is a class."""
        with os.scandir(directory) as entries:
            folders = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        names = folders if self.class_names is None else list(self.class_names)
        if not {*names} <= {*folders} or len({*names}) < len(names):
            raise ArgumentError(
                f"{self.name}: class_names must be names of folders in {directory!r}, each once. They are: {folders}. "
                f"Received: {names}."
            )
        by_class = [list(self._files(os.path.join(directory, name))) for name in names]  # noqa: PTH118 - as it was given
        labels = np.repeat(np.arange(len(names), dtype=np.int32), [len(each) for each in by_class])
        return Examples(list(itertools.chain.from_iterable(by_class)), labels, names)

    def _by_list(self, paths: list[str]) -> Examples:
        """The files with the labels that were given."""
        values = list(self.labels)
        if len(values) != len(paths):
            raise ArgumentError(
                f"{self.name}: labels must hold one number for each file, in the order of the files. There are {len(paths)} files "
                f"in {os.fspath(self.directory)!r}. Received {len(values)} labels."
            )
        for value in values:
            if not isinstance(value, numbers.Real | np.bool_):
                raise ArgumentTypeError(f"{self.name}: labels must be numbers. Received: {value!r}.")
        classes = sorted(set(values))
        if self.label_mode != "int" and any(value not in range(len(classes)) for value in classes):
            raise ArgumentError(
                f"{self.name}: with label_mode={self.label_mode!r}, the labels of {len(classes)} classes must be whole numbers "
                f"from 0 to {len(classes) - 1}. Received: {classes}."
            )
        return Examples(paths, np.asarray(as_leaf(values, lambda: "labels")), [str(each) for each in classes])

    def _files(self, directory: str) -> Iterator[str]:
        """The files below a folder that have one of the formats, sorted by folder and name."""
        links: dict[str, set[str]] = {}  # the true names of each folder and of those that it is in
        folders: list[tuple[str, list[str]]] = []
        for folder, _, names in os.walk(directory, onerror=self._not_readable, followlinks=self.follow_links):
            if self.follow_links:
                true, above = os.path.realpath(folder), links.get(os.path.dirname(folder), set())  # noqa: PTH120 - as it was given
                if true in above:
                    raise DatasetError(f"{self.name}: {folder!r} is a link to a folder that contains it, so it has no end.")
                links[folder] = above | {true}
            folders.append((folder, names))
        for folder, names in sorted(folders):
            yield from (os.path.join(folder, name) for name in sorted(names) if name.lower().endswith(self.formats))  # noqa: PTH118

    def _not_readable(self, error: OSError) -> None:
        raise DatasetError(f"{self.name}: cannot read the folder {error.filename!r}: {error}.") from error

    # The part that is asked for

    def _shuffled(self, found: Examples) -> Examples:
        """The examples in Keras's order. Without a seed, `_buffer` takes care of the order, because positions can hold it."""
        if not self.shuffle or self.seed is None:
            return found
        order = np.arange(len(found.paths))
        np.random.RandomState(self.seed).shuffle(order)
        return found.part(order)

    def _buffer(self, count: int) -> int:
        """The size of the buffer of the shuffle in each pass."""
        if self.seed is None:
            return count
        return _UNBATCHED_SHUFFLE if self.batch_size is None else _LOCAL_SHUFFLE * self.batch_size

    def _part(self, found: Examples, subset: str | None) -> Examples:
        """The examples for training, for validation, or all."""
        part = found
        if subset is not None:
            assert self.validation_split is not None, "checked before"
            count = int(self.validation_split * len(found.paths))
            border = len(found.paths) - count
            part = found.part(slice(border, None) if subset == "validation" else slice(border))
            self._say(f"Using {len(part.paths)} files for {subset}.")
        if not part.paths:
            directory, of = os.fspath(self.directory), "" if subset is None else f"{subset} "
            raise DatasetError(
                f"{self.name}: there are no {of}{self.what} in {directory!r}, where {len(found.paths)} files end "
                f"in {', '.join(self.formats)}.{self._without_folders(directory) if not found.paths else ''}"
            )
        return part

    def _without_folders(self, directory: str) -> str:
        """What to do if the files are not in folders of their own."""
        if not isinstance(self.labels, str) or not (beside := list(self._files(directory))):
            return ""
        return (
            f' With labels="inferred", only files in the folders of the classes count. {beside[0]!r} is in none: move it to such a '
            "folder, or set labels=None to read files without labels."
        )

    def _say(self, text: str) -> None:
        if not self.verbose:
            return
        if keras.config.is_interactive_logging_enabled():
            print(text)  # noqa: T201 - as Keras does
        else:
            _logger.info(text)


def read_ahead(dataset: Dataset, batch_size: int | None) -> Dataset:
    """Return batches, and read them ahead."""
    return (dataset if batch_size is None else dataset.batch(batch_size)).prefetch(AUTOTUNE)


def check_format(name: str, value: str) -> None:
    """Check the argument ``format``.

    Raises:
        ArgumentError: If it is not "tf".
    """
    if value != "tf":
        raise ArgumentError(
            f'{name}: format must be "tf", which stands for a replicant.data.Dataset here. Received: {value!r}. Datasets of Grain '
            f"come from keras.utils.{name}."
        )


def content(name: str, path: str) -> bytes:
    """Return the bytes of a file.

    Raises:
        DatasetError: If it cannot be read.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - as it was given; a pipe or a device may never end
            raise DatasetError(f"{name}: {path!r} is a pipe, a device or a socket. Move it out of the folder.")
        return Path(path).read_bytes()
    except OSError as error:
        raise DatasetError(f"{name}: cannot read {path!r}: {error}.") from error
