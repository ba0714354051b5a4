"""Datasets of records: `ArrayRecordDataset`, `JsonLinesDataset`, `TarDataset`, `LitDataDataset` and `MDSDataset`."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, DatasetError
from ._arguments import whole
from ._column_readers import column_names, fill_values, skips
from ._dataset import Dataset
from ._readers import reading
from .files._file_names import FileNames, file_names
from .files._limits import MAX_RECORD_BYTES, MAX_SHARD_BYTES, checked_limit
from .files._stream import checked_compression
from .files.records._array_record import ArrayRecords
from .files.shards._litdata_folders import litdata_format
from .files.shards._mds import Mds
from .files.shards._mds_index import Shard, listed, read_index
from .files.shards._tar import Tar
from .files.text._json_lines import JsonLines, check_compression
from .graph._structure import TensorSpec, flatten


class ArrayRecordDataset(Dataset):
    """The records of ArrayRecord files, as bytes, in their order. `Dataset.global_shuffle` reads them by their numbers.

    The package ``array_record`` reads the files, on this machine only. Write them with its option ``group_size:1`` to shuffle them:
    otherwise it decompresses a whole group for each record. The position is a file and the number of a record.

    Args:
        files: A file name, a list of names, or a dataset of names. The files are read in this order.
        on_error: "raise", or "skip" to leave out files and records that cannot be read, which `DistributedIterator.stats` counts.
        num_parallel_reads: The number of files that are read at once, as for `TFRecordDataset`.
        max_record_bytes: The most bytes that a record may have.

    Raises:
        ArgumentError: If an argument is not allowed.
        ArgumentTypeError: If something is not a file name.
        ConfigurationError: During iteration, if the package is not installed (``pip install 'replicant-jax[array-record]'``).
        DatasetError: During iteration, if a file is missing or damaged, or is at a URL.
        ElementError: During iteration, if a record cannot be read; the message names the file and the record.

    >>> import pathlib, tempfile
    >>> from array_record.python.array_record_module import ArrayRecordWriter
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "numbers.array_record"
    >>> writer = ArrayRecordWriter(str(path), "group_size:1")
    >>> for i in range(3):
    ...     _ = writer.write(b"%d" % i)
    >>> writer.close()
    >>> list(ArrayRecordDataset(path))
    [b'0', b'1', b'2']
    """

    def __init__(
        self,
        files: Any,
        *,
        on_error: str = "raise",
        num_parallel_reads: int | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        method = "ArrayRecordDataset"
        form = ArrayRecords(checked_limit(method, max_record_bytes), skips=skips(method, on_error))
        super().__init__(reading(form, files, num_parallel_reads))


class JsonLinesDataset(Dataset):
    """The objects in files of JSON Lines: a dict of the values of each line. Blank lines are left out.

    Numbers become float32 and int32, or what ``output_signature`` says; lists become arrays, which `padded_batch` pads. The
    position is a byte of the uncompressed file.

    Args:
        files: A file name, a list of names, or a dataset of names. The files are read in this order.
        columns: The names to read of each object; None reads all, and all lines must then have the names of the first.
        compression_type: "AUTO" goes by the names of the files: ``.gz`` is GZIP, ``.zst`` is ZSTD. Or "GZIP", "ZLIB", "ZSTD", None.
        output_signature: A dict of `TensorSpec` by name. None takes the dtypes of the first line.
        fill_null: A dict of what stands for null or a missing name. Other names must have values.
        on_error: "raise", or "skip" to leave out lines that cannot be read, which `DistributedIterator.stats` counts.
        num_parallel_reads: The number of files that are read at once, as for `TFRecordDataset`.
        max_record_bytes: The most bytes that a line may have.

    Raises:
        ArgumentError: If an argument is not allowed.
        ArgumentTypeError: If something is not a file name, a name of a column or a `TensorSpec`.
        ConfigurationError: If a file needs zstandard, and it is not installed (``pip install 'replicant-jax[zstd]'``).
        DatasetError: During iteration, if a file is missing, or its compressed data is damaged.
        ElementError: During iteration, if a line is not a JSON object, or has other values; the message names the file and line.
            Whoever asks again gets the next line.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "two.jsonl"
    >>> _ = path.write_text('{"text": "a", "label": 1}' + chr(10) + '{"text": "b", "label": 0}' + chr(10))
    >>> list(JsonLinesDataset(path))
    [{'label': array(1, dtype=int32), 'text': 'a'}, {'label': array(0, dtype=int32), 'text': 'b'}]
    """

    def __init__(
        self,
        files: Any,
        columns: Sequence[str] | None = None,
        compression_type: str | None = "AUTO",
        output_signature: Mapping[str, Any] | None = None,
        *,
        fill_null: Mapping[str, Any] | None = None,
        on_error: str = "raise",
        num_parallel_reads: int | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        method = "JsonLinesDataset"
        names = column_names(method, columns)
        form = JsonLines(
            check_compression(method, compression_type),
            names=names,
            fill_null=fill_values(method, fill_null, names),
            signature=_signature(method, output_signature),
            skips=skips(method, on_error),
            max_record_bytes=checked_limit(method, max_record_bytes),
        )
        super().__init__(reading(form, files, num_parallel_reads))


class TarDataset(Dataset):
    """The samples in tar files, as WebDataset writes them: dicts of bytes by extension, and ``__key__``.

    Members that follow each other are one sample if their names are the same up to the first dot of the last part: ``a/1.jpg`` and
    ``a/1.cls.txt`` become ``{"__key__": "a/1", "jpg": ..., "cls.txt": ...}``. Endings in capitals become lower case. Members
    whose names begin with a dot or have none belong to no sample, nor do those of ``__meta__`` folders at the top. They are left
    out, and `DistributedIterator.stats` counts them as skipped. Decode samples in `map`, on threads if that is slow. The position
    is a byte of the uncompressed file.

    Args:
        files: A file name, a list of names, or a dataset of names. The files are read in this order.
        compression_type: The compression: None or "" for none, "GZIP" or "ZLIB".
        on_error: "raise", or "skip" to leave out the rest of a file from where it is damaged; `DistributedIterator.stats` counts it
            as one record.
        num_parallel_reads: The number of files that are read at once, as for `TFRecordDataset`.
        max_record_bytes: The most bytes that a sample may take in the uncompressed file.

    Raises:
        ArgumentError: If an argument is not allowed.
        ArgumentTypeError: If something is not a file name.
        DatasetError: During iteration, if a file is missing, damaged or cut off; the message names the file and the byte. If none
            of its members belongs to a sample.

    >>> import io, pathlib, tarfile, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "0.tar"
    >>> with tarfile.open(path, "w") as tar:
    ...     for name, data in (("1.txt", b"one"), ("1.cls", b"0")):
    ...         member = tarfile.TarInfo(name)
    ...         member.size = len(data)
    ...         tar.addfile(member, io.BytesIO(data))
    >>> list(TarDataset(path))
    [{'__key__': '1', 'cls': b'0', 'txt': b'one'}]
    """

    def __init__(
        self,
        files: Any,
        compression_type: str | None = None,
        *,
        on_error: str = "raise",
        num_parallel_reads: int | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        method = "TarDataset"
        form = Tar(
            checked_compression(method, compression_type),
            skips=skips(method, on_error),
            max_record_bytes=checked_limit(method, max_record_bytes),
        )
        super().__init__(reading(form, files, num_parallel_reads))


class LitDataDataset(Dataset):
    """The items in folders that ``litdata.optimize`` has written, in the structure that they had, or windows of token ids.

    Whole numbers are int64, others float64, and arrays and tensors keep their dtypes. ``jpeg``, ``image`` and ``file`` are bytes:
    decode them in `map`, on threads. Lists become tuples. What is pickled is refused. Chunks may be compressed by zstd. The
    position is a chunk and the number of an item.

    Args:
        folders: The path or URL of a folder with an index.json, or a list of them. The chunks are read in the order of the index;
            if it lists none, the folder has no items.
        columns: The names of the columns to read, if items are dicts; None reads all.
        block_size: The number of token ids in a window, for chunks of LitData's TokensLoader. As there, a window does not reach
            into the next chunk, and what is behind the last whole window of a chunk is not read.
        on_error: "raise", or "skip" to leave out chunks and items that cannot be read, which `DistributedIterator.stats` counts; a
            chunk that cannot be opened counts as one.
        num_parallel_reads: The number of chunks that are read at once, as for `TFRecordDataset`.
        max_chunk_bytes: The most bytes that a chunk may have that is in memory as a whole: one that is compressed, or at a URL.

    Raises:
        ArgumentError: If an argument is not allowed, or does not fit the folder.
        ArgumentTypeError: If something is not a path, or not the name of a column.
        ConfigurationError: During iteration, if a chunk needs zstandard, and it is not installed (``pip install
            'replicant-jax[zstd]'``).
        DatasetError: If an index is missing or damaged, says something that is not read, or folders have other items than the
            first. During iteration, if a chunk is missing or damaged.
        ElementError: During iteration, if an item is damaged, or does not fit the first one; the message names the chunk and the
            item.

    >>> import json, pathlib, struct, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> items = [struct.pack("<2Iq", 8, 1, number) + text for number, text in ((7, b"a"), (8, b"b"))]
    >>> _ = (folder / "0.bin").write_bytes(struct.pack("<4I", 2, 16, 33, 50) + b"".join(items))
    >>> leaf = {"type": None, "context": None, "children_spec": []}
    >>> spec = json.dumps([1, {"type": "builtins.dict", "context": '["n", "s"]', "children_spec": [leaf, leaf]}])
    >>> chunk = {"filename": "0.bin", "chunk_size": 2, "chunk_bytes": 50, "dim": None}
    >>> config = {"data_format": ["int", "str"], "data_spec": spec, "item_loader": "PyTreeLoader", "compression": None}
    >>> _ = (folder / "index.json").write_text(json.dumps({"chunks": [chunk], "config": config}))
    >>> list(LitDataDataset(folder))
    [{'n': np.int64(7), 's': 'a'}, {'n': np.int64(8), 's': 'b'}]
    """

    def __init__(
        self,
        folders: Any,
        columns: Sequence[str] | None = None,
        *,
        block_size: int | None = None,
        on_error: str = "raise",
        num_parallel_reads: int | None = None,
        max_chunk_bytes: int = MAX_SHARD_BYTES,
    ) -> None:
        method = "LitDataDataset"
        form, files = litdata_format(
            [*map(os.fsdecode, file_names(method, folders).tables[0])],
            column_names(method, columns),
            block_size if block_size is None else whole(method, "block_size", block_size, 1),
            skips=skips(method, on_error),
            max_chunk_bytes=checked_limit(method, max_chunk_bytes, "max_chunk_bytes"),
        )
        super().__init__(reading(form, Dataset(FileNames(size=len(files), tables=(np.array(files, object),))), num_parallel_reads))


class MDSDataset(Dataset):
    """The samples in folders of MDS shards, as MosaicML's streaming writes them, each as a dict of its columns.

    Numbers keep their dtypes; ``int`` is int64. ``str`` and ``str_decimal`` become ``str``, ``str_int`` int64, ``str_float``
    float64, and ``ndarray`` an array. ``json`` becomes numbers, strings, arrays (of lists) and dicts of them. ``bytes``,
    ``jpeg`` and ``png`` are bytes: decode pictures in `map`, on threads. Shards may be compressed by zstd, gz or bz2. Sizes are
    compared, and so are hashes that index.json states and hashlib knows. The position is a shard and the number of a sample. One
    shard is in memory.

    Args:
        folders: The path or URL of a folder with an index.json, or a list of them. The shards are read in the order of the index;
            if it lists none, the folder has no samples.
        columns: The names of the columns to read; None reads all.
        on_error: "raise", or "skip" to leave out shards and samples that cannot be read, whose samples `DistributedIterator.stats`
            counts.
        num_parallel_reads: The number of shards that are read at once, as for `TFRecordDataset`.
        max_shard_bytes: The most bytes that a shard may have, uncompressed.

    Raises:
        ArgumentError: If an argument is not allowed, or there is no such column.
        ArgumentTypeError: If something is not a path, or not the name of a column.
        ConfigurationError: During iteration, if a shard needs zstandard, and it is not installed (``pip install
            'replicant-jax[zstd]'``).
        DatasetError: If an index is missing or damaged, or folders have other columns than the first. During iteration, if a shard
            is missing or damaged, or a column is encoded by something that is not read, as ``pkl``.
        ElementError: During iteration, if a sample is damaged, or does not fit the first one; the message names the shard and
            the sample.

    >>> import json, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> config = {"column_names": ["x"], "column_encodings": ["uint8"], "column_sizes": [1], "format": "mds", "version": 2}
    >>> head = b"".join(number.to_bytes(4, "little") for number in (2, 16, 17, 18))
    >>> _ = (folder / "0.mds").write_bytes(head + bytes([7, 8]))
    >>> shard = {**config, "samples": 2, "raw_data": {"basename": "0.mds", "bytes": 18, "hashes": {}}, "zip_data": None}
    >>> _ = (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    >>> list(MDSDataset(folder))
    [{'x': np.uint8(7)}, {'x': np.uint8(8)}]
    """

    def __init__(
        self,
        folders: Any,
        columns: Sequence[str] | None = None,
        *,
        on_error: str = "raise",
        num_parallel_reads: int | None = None,
        max_shard_bytes: int = MAX_SHARD_BYTES,
    ) -> None:
        method = "MDSDataset"
        max_shard_bytes = checked_limit(method, max_shard_bytes, "max_shard_bytes")
        names, lenient = column_names(method, columns), skips(method, on_error)
        shards: dict[str, Shard] = {}
        first, expected = "", ()
        files: list[str] = []
        for path in map(os.fsdecode, file_names(method, folders).tables[0]):
            found, its = read_index(path)
            if not found:
                continue
            first, expected = (first, expected) if files else (path, its)
            if its != expected:
                raise DatasetError(
                    f"{method}: {path!r} has other columns than {first!r}: {listed(its)} instead of {listed(expected)}. "
                    "Make a dataset of each, and choose from them by `sample_from_datasets` or `concatenate`."
                )
            shards.update({shard.file.path: shard for shard in found})
            files += [shard.file.path for shard in found]
        known = [column.name for column in expected]
        if files and (missing := [name for name in names or () if name not in known]):
            raise ArgumentError(f"{method}: there is no column {missing[0]!r} in {first!r}. Its columns are {known}.")
        form = Mds(expected, names, lenient, shards, max_shard_bytes)
        super().__init__(reading(form, Dataset(FileNames(size=len(files), tables=(np.array(files, object),))), num_parallel_reads))


def _signature(method: str, signature: Any) -> Any:
    if signature is not None and (
        not isinstance(signature, Mapping) or not all(isinstance(leaf, TensorSpec) for leaf in flatten(dict(signature))[0])
    ):
        raise ArgumentTypeError(f"{method}: output_signature must be a dict of TensorSpec by name. Received: {signature!r}.")
    return signature and dict(signature)
