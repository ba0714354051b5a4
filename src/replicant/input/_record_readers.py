"""Datasets of records: `JsonLinesDataset` and `TarDataset`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ArgumentTypeError
from ._column_readers import column_names, fill_values, skips
from ._dataset import Dataset
from ._readers import reading
from .files._json_lines import JsonLines, check_compression
from .files._stream import checked_compression
from .files._tar import Tar
from .graph._structure import TensorSpec, flatten


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

    Raises:
        ArgumentError: If an argument is not allowed.
        ArgumentTypeError: If something is not a file name, a name of a column or a `TensorSpec`.
        ConfigurationError: If a file needs zstandard, and it is not installed (``pip install 'replicant[zstd]'``).
        DatasetError: During iteration, if a file is missing, or its compressed data is damaged.
        ElementError: During iteration, if a line is no JSON object, or has other values; the message names the file and the line.
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
    ) -> None:
        method = "JsonLinesDataset"
        form = JsonLines(
            check_compression(method, compression_type),
            names=column_names(method, columns),
            fill_null=fill_values(method, fill_null),
            signature=_signature(method, output_signature),
            skips=skips(method, on_error),
        )
        super().__init__(reading(form, files, num_parallel_reads))


class TarDataset(Dataset):
    """The samples in tar files, as WebDataset writes them: dicts of bytes by extension, and ``__key__``.

    Members that follow each other are one sample if their names are the same up to the first dot of the last part: ``a/1.jpg`` and
    ``a/1.cls.txt`` become ``{"__key__": "a/1", "jpg": ..., "cls.txt": ...}``. Decode them in `map`, on threads if that is slow. The
    position is a byte of the uncompressed file.

    Args:
        files: A file name, a list of names, or a dataset of names. The files are read in this order.
        compression_type: The compression: None or "" for none, "GZIP" or "ZLIB".
        on_error: "raise", or "skip" to leave out the rest of a file from where it is damaged; `DistributedIterator.stats` counts it
            as one record.
        num_parallel_reads: The number of files that are read at once, as for `TFRecordDataset`.

    Raises:
        ArgumentError: If an argument is not allowed.
        ArgumentTypeError: If something is not a file name.
        DatasetError: During iteration, if a file is missing, damaged or cut off; the message names the file and the byte.

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
    ) -> None:
        form = Tar(checked_compression("TarDataset", compression_type), skips=skips("TarDataset", on_error))
        super().__init__(reading(form, files, num_parallel_reads))


def _signature(method: str, signature: Any) -> Any:
    if signature is not None and (
        not isinstance(signature, Mapping) or not all(isinstance(leaf, TensorSpec) for leaf in flatten(dict(signature))[0])
    ):
        raise ArgumentTypeError(f"{method}: output_signature must be a dict of TensorSpec by name. Received: {signature!r}.")
    return signature and dict(signature)
