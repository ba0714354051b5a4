"""Datasets of numbers in files: `NumpyDataset`, `TokenDataset` and `MegatronDataset`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ._arguments import whole
from ._column_readers import column_names, skips
from ._dataset import Dataset
from ._readers import reading
from .files._file_names import FileNames, file_names
from .files._limits import MAX_RECORD_BYTES, MAX_SHARD_BYTES, checked_limit
from .files.arrays._megatron import Megatron, prefix_of
from .files.arrays._numpy_files import NumpyFiles
from .files.arrays._tokens import Tokens

_TOKEN_DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")


class NumpyDataset(Dataset):
    """The rows of the arrays in files of NumPy: of ``.npy`` files, and dicts of rows of ``.npz`` files.

    The first dimension counts the rows. Dtypes are kept, in this machine's byte order; texts become ``str``. Rows of ``.npy`` files
    are read as they are needed, also those of memory maps. Arrays in Fortran's order, and those of ``.npz`` files, are in memory as
    a whole, one file at a time. The position is a file and the number of a row.

    Args:
        files: A path or URL, a list of them, or a dataset of them. The files are read in this order, and go by their contents.
        columns: The names of the arrays to read of ``.npz`` files; None reads all.
        on_error: "raise", or "skip" to leave out files that cannot be read; `DistributedIterator.stats` counts each as one record.
        num_parallel_reads: The number of files that are read at once, as for `TFRecordDataset`.
        max_record_bytes: The most bytes that a row of a ``.npy`` file may have.
        max_file_bytes: The most bytes that the arrays of a file may have that is in memory as a whole.

    Raises:
        ArgumentError: If an argument is not allowed.
        ArgumentTypeError: If something is not a file name, or not the name of an array.
        DatasetError: During iteration, if a file is missing, damaged or cut off, if it holds records, Python objects (which are
            pickled), dates or raw bytes, or other shapes or dtypes than the first; the message names the file.

    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> np.save(folder / "0.npy", np.arange(6, dtype=np.int16).reshape(3, 2))
    >>> list(NumpyDataset(folder / "0.npy").batch(2))
    [array([[0, 1],
           [2, 3]], dtype=int16), array([[4, 5]], dtype=int16)]
    >>> np.savez(folder / "1.npz", x=np.float32([0.5, 1.5]), y=np.array(["a", "b"]))
    >>> list(NumpyDataset(folder / "1.npz"))
    [{'x': np.float32(0.5), 'y': 'a'}, {'x': np.float32(1.5), 'y': 'b'}]
    """

    def __init__(
        self,
        files: Any,
        columns: Sequence[str] | None = None,
        *,
        on_error: str = "raise",
        num_parallel_reads: int | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
        max_file_bytes: int = MAX_SHARD_BYTES,
    ) -> None:
        method = "NumpyDataset"
        form = NumpyFiles(
            column_names(method, columns),
            checked_limit(method, max_record_bytes),
            checked_limit(method, max_file_bytes, "max_file_bytes"),
            skips=skips(method, on_error),
        )
        super().__init__(reading(form, files, num_parallel_reads))


class TokenDataset(Dataset):
    """Windows of token ids in files that hold nothing else, as nanoGPT and llm.c write them.

    A window never reaches into the next file: of each file, what is behind its last whole window is not read. The head of llm.c's
    files is left out, and says the dtype. The position is a file and the number of a window.

    Args:
        files: A path or URL, a list of them, or a dataset of them. The files are read in this order.
        length: The number of token ids in a window. For inputs and the labels behind them, it is one more than the model takes.
        stride: The number of token ids from the beginning of a window to that of the next; None means ``length``.
        dtype: What a token id is in the files: "uint8", "uint16", "uint32", "int32" or "int64", little-endian. None goes by the
            head of llm.c's files.
        on_error: "raise", or "skip" to leave out files that cannot be read; `DistributedIterator.stats` counts each as one record.
        num_parallel_reads: The number of files that are read at once, as for `TFRecordDataset`.

    Raises:
        ArgumentError: If an argument is not allowed.
        ArgumentTypeError: If something is not a file name or an integer.
        DatasetError: During iteration, if a file is missing, or its size is not that of whole token ids; the message names it.

    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.bin"
    >>> np.arange(11, dtype=np.uint16).tofile(path)
    >>> for tokens in TokenDataset(path, 5, stride=4, dtype="uint16"):
    ...     print(tokens[:-1], tokens[1:])
    [0 1 2 3] [1 2 3 4]
    [4 5 6 7] [5 6 7 8]
    """

    def __init__(
        self,
        files: Any,
        length: int,
        *,
        stride: int | None = None,
        dtype: Any = None,
        on_error: str = "raise",
        num_parallel_reads: int | None = None,
    ) -> None:
        method = "TokenDataset"
        length = whole(method, "length", length, 1)
        form = Tokens(
            length,
            length if stride is None else whole(method, "stride", stride, 1),
            _token_dtype(method, dtype),
            skips=skips(method, on_error),
        )
        super().__init__(reading(form, files, num_parallel_reads))


class MegatronDataset(Dataset):
    """The sequences of token ids in Megatron's indexed datasets, a ``.bin`` and an ``.idx`` file each, as arrays of any length.

    Sequences are those that ``add_item`` has written, in most datasets one for each document. The dtype is kept. To train on them,
    call `Dataset.pack_sequences`. The position is a dataset and the number of a sequence.

    Args:
        prefixes: The path or URL of both files without their endings, or that of one of them, a list of them, or a dataset of them.
        on_error: "raise", or "skip" to leave out datasets that cannot be read; `DistributedIterator.stats` counts each as one
            record, or the rest of its sequences if reading began.
        num_parallel_reads: The number of datasets that are read at once, as for `TFRecordDataset`.
        max_record_bytes: The most bytes that a sequence may have.

    Raises:
        ArgumentError: If an argument is not allowed.
        ArgumentTypeError: If something is not a path.
        DatasetError: During iteration, if a file is missing or damaged, or its numbers are not whole ones; the message names it.

    >>> import pathlib, struct, tempfile
    >>> prefix = pathlib.Path(tempfile.mkdtemp()) / "text_document"
    >>> _ = prefix.with_suffix(".bin").write_bytes(struct.pack("<5H", 1, 2, 3, 4, 5))
    >>> head = b"MMIDIDX" + bytes(2) + struct.pack("<QBQQ", 1, 8, 2, 3)
    >>> _ = prefix.with_suffix(".idx").write_bytes(head + struct.pack("<2i2q3q", 3, 2, 0, 6, 0, 1, 2))
    >>> list(MegatronDataset(prefix))
    [array([1, 2, 3], dtype=uint16), array([4, 5], dtype=uint16)]
    """

    def __init__(
        self,
        prefixes: Any,
        *,
        on_error: str = "raise",
        num_parallel_reads: int | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        method = "MegatronDataset"
        form = Megatron(checked_limit(method, max_record_bytes), skips=skips(method, on_error))
        if not isinstance(prefixes, Dataset):
            names = [f"{prefix_of(name)}.bin" for name in file_names(method, prefixes).tables[0]]
            prefixes = Dataset(FileNames(size=len(names), tables=(np.array(names, object),)))
        super().__init__(reading(form, prefixes, num_parallel_reads))


def _token_dtype(method: str, dtype: Any) -> np.dtype | None:
    """The dtype of token ids, little-endian.

    Raises:
        ArgumentError: If it is none.
    """
    if dtype is None:
        return None
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name not in _TOKEN_DTYPES:
        raise ArgumentError(f"{method}: dtype must be one of {', '.join(map(repr, _TOKEN_DTYPES))}, or None. Received: {dtype!r}.")
    return found.newbyteorder("<")
