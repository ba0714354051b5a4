"""HDF5 files of Keras: ``.weights.h5``, and ``.h5`` of Keras 2 and of ``model.save``.

HDF5 can lead to other files, and can claim arrays that it does not store. Both are refused before anything is read.
"""

import contextlib
import importlib
import itertools
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from ..._whole_file import writing_whole
from ...errors import CheckpointError, DamagedCheckpointError
from ._stored import Entry, WeightsFile

MAGIC = b"\x89HDF\r\n\x1a\n"
_MOST_RATIO = 1032  # of deflate, the densest compression of HDF5 itself
_MOST_DEPTH = 64  # groups within each other
_PIECE = 1 << 20  # bytes
_IN_MODEL = re.compile(r"(?:.+/)?vars/[^/]+")
_LAYERS = "layer_names"  # the attribute that files of the older format have


class Hdf5File(WeightsFile):
    """The datasets of an HDF5 file by their paths in it.

    Args:
        path: The file, for messages.
        file: The open file.

    Raises:
        DamagedCheckpointError: If it is damaged.
        CheckpointError: If it leads to other files or holds what is not an array of numbers.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.format = str(path), "an HDF5 file"
        self._opened = contextlib.ExitStack()
        self._opened.callback(file.close)
        try:
            with self._telling():
                self.file = importlib.import_module("h5py").File(file, "r")
                self._opened.callback(self.file.close)
                self._datasets = dict(self._walk(self.file, "", set()))
                self.entries = {name: self._entry(name, dataset) for name, dataset in self._datasets.items()}
        except CheckpointError:
            self.close()
            raise

    def close(self) -> None:
        self._opened.close()

    def read(self, name: str) -> np.ndarray:
        entry = self.entry(name)
        self._require_stored(entry)
        with self._telling():
            found = np.asarray(self._datasets[name][()])
        return found.view(entry.dtype) if found.dtype.kind == "V" else found.astype(entry.dtype, copy=False)

    @property
    def older(self) -> Any:
        """The group with the layers, if this is a file of the older format; otherwise None."""
        with self._telling():
            if _LAYERS in self.file.attrs:
                return self.file
            group = self.file.get("model_weights")
            return group if group is not None and _LAYERS in group.attrs else None

    def names(self, group: Any, attribute: str) -> list[str]:
        """Return a list of names, which long lists have in numbered pieces.

        Raises:
            DamagedCheckpointError: If it is damaged.
        """
        with self._telling():
            whole = attribute in group.attrs
            pieces = itertools.takewhile(group.attrs.__contains__, (f"{attribute}{i}" for i in itertools.count()))
            return [_text(name) for piece in ([attribute] if whole else pieces) for name in group.attrs[piece]]

    def _walk(self, group: Any, prefix: str, seen: set[Any]) -> Iterator[tuple[str, Any]]:
        h5py = importlib.import_module("h5py")
        if prefix.count("/") > _MOST_DEPTH:
            raise CheckpointError(f"{self.path}: groups are more than {_MOST_DEPTH} deep at {prefix!r}.")
        for key in group:
            name = f"{prefix}{key}"
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise CheckpointError(
                    f"{self.path}: {name!r} is a link, possibly to another file. No weights are read through links."
                )
            item = group[key]
            address = h5py.h5o.get_info(item.id).addr
            if address in seen:
                raise CheckpointError(f"{self.path}: {name!r} is in the file under a second name as well, which no Keras file has.")
            seen.add(address)
            if isinstance(item, h5py.Group):
                yield from self._walk(item, f"{name}/", seen)
            elif isinstance(item, h5py.Dataset):
                yield name, item

    def _entry(self, name: str, dataset: Any) -> Entry:
        if dataset.is_virtual or dataset.external:
            raise CheckpointError(f"{self.path}: the array {name!r} lies in another file. Weights are read from this file alone.")
        is_bfloat16 = dataset.dtype.kind in "Vf" and dataset.attrs.get("dtype") == "bfloat16"  # as Keras marks it
        dtype = np.dtype(ml_dtypes.bfloat16) if is_bfloat16 else dataset.dtype.newbyteorder("=")
        if dtype.kind not in "biufc" and dtype != ml_dtypes.bfloat16:
            raise CheckpointError(f"{self.path}: {name!r} is not an array of numbers but has the dtype {dtype}.")
        if dataset.shape is None:
            raise CheckpointError(f"{self.path}: {name!r} has no values at all (a null dataspace).")
        return Entry(name, tuple(dataset.shape), dtype, _layer(dataset, name))

    def _require_stored(self, entry: Entry) -> None:
        """Check that the file has the bytes that an array claims, before there is memory for them."""
        dataset = self._datasets[entry.name]
        with self._telling():
            stored, most = dataset.id.get_storage_size(), _MOST_RATIO if dataset.chunks else 1
        num_bytes = math.prod(entry.shape) * dataset.dtype.itemsize
        if num_bytes > stored * most:
            raise DamagedCheckpointError(
                f"{self.path}: {entry.name!r} has the shape {entry.shape}, so {num_bytes} bytes, and only {stored} are stored."
            )

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn what h5py raises for damaged files into an error that names the file."""
        try:
            yield
        except CheckpointError:
            raise
        except (OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise DamagedCheckpointError(f"{self.path} is damaged, or is not an HDF5 file: {error}.") from error


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _layer(dataset: Any, name: str) -> str:
    """The name of the layer that an array belongs to: Keras 3 writes it beside the arrays."""
    found = dataset.parent.attrs.get("name")
    return f"{_text(found)}/{name.rpartition('/')[2]}" if isinstance(found, str | bytes) else ""


def write_keras_weights(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a ``.weights.h5`` file that Keras loads into the model whose layers the names belong to.

    Raises:
        CheckpointError: If the names are not those of such a file, or if it cannot be written.
    """
    wrong = next((name for name in arrays if not _IN_MODEL.fullmatch(name)), None)
    if wrong is not None:
        raise CheckpointError(
            f"{path} cannot be written: Keras names the arrays in .weights.h5 by the classes and places of their layers, as in "
            f"'layers/dense/vars/0', and {wrong!r} does not tell them. Name the model: "
            "replicant checkpoint convert SRC DST --model MODULE:FUNCTION."
        )
    h5py = importlib.import_module("h5py")
    with _telling_of_disk(path), writing_whole(path) as whole, tempfile.TemporaryFile() as file:
        with h5py.File(file, "w") as written:
            for name, array in arrays.items():
                dataset = written.create_dataset(name, data=array)
                if array.dtype == ml_dtypes.bfloat16:
                    dataset.attrs["dtype"] = "bfloat16"
        file.seek(0)
        while piece := file.read(_PIECE):
            whole.write(piece)


@contextlib.contextmanager
def _telling_of_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}. Name a file in a folder that exists.") from error
