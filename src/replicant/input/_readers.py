"""Datasets of files: `TFRecordDataset`, `TextLineDataset` and `FixedLengthRecordDataset`."""

from collections.abc import Callable
from typing import Any, ClassVar

from ._arguments import calls_in_parallel, whole
from ._dataset import AUTOTUNE, Dataset
from .files._file_names import file_names
from .files._files import ReadFiles
from .files._format import Format
from .files._limits import MAX_RECORD_BYTES, checked_limit
from .files._stream import checked_compression
from .files.records._fixed import FixedLength
from .files.records._tfrecord import Records
from .files.text._lines import Lines
from .graph._graph import Node
from .sources._sources import tensors
from .transforms.mixtures._interleave import Interleave

_DEFAULT_READS = 4  # for AUTOTUNE: the order must not depend on the machine


class _OfFiles(Dataset):
    """The records of files whose format needs no arguments but a compression."""

    _method: ClassVar[str]
    _format: ClassVar[type[Lines | Records]]

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
        *,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        check_buffer(self._method, buffer_size)
        form = self._format(
            checked_compression(self._method, compression_type), max_record_bytes=checked_limit(self._method, max_record_bytes)
        )
        super().__init__(reading(form, filenames, num_parallel_reads))


class TFRecordDataset(_OfFiles):
    """The records of TFRecord files, as bytes. Their checksums are verified.

    Args:
        filenames: A path or URL, a list of them, or a dataset of them. The files are read in this order.
        compression_type: The compression: None or "" for none, "GZIP" or "ZLIB".
        buffer_size: As in tf.data, but without effect: files are read in large pieces.
        num_parallel_reads: The number of files that are read at once, each on a thread, one record of each in turn. None
            reads one file after the other. AUTOTUNE (-1) reads 4.
        name: Without effect.
        max_record_bytes: The most bytes that a record may take in the uncompressed file, with its length and its checksums.

    Raises:
        ArgumentTypeError: If something is not a file name.
        ArgumentError: If there is no name, or the compression or a number is not allowed.
        DatasetError: During iteration, if a file is missing, damaged or cut off, or a record is too large; the message names the
            file and the byte.

    >>> import pathlib, tempfile
    >>> from replicant.data import FixedLenFeature, TFRecordWriter, encode_example, parse_example
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "numbers.tfrecord"
    >>> with TFRecordWriter(path) as writer:
    ...     for i in range(3):
    ...         writer.write(encode_example({"x": i}))
    >>> features = {"x": FixedLenFeature((), "int64")}
    >>> list(TFRecordDataset(path).batch(2).map(lambda records: parse_example(records, features)))
    [{'x': array([0, 1])}, {'x': array([2])}]
    """

    _method, _format = "TFRecordDataset", Records


class TextLineDataset(_OfFiles):
    """The lines of UTF-8 text files, as str, without line endings.

    Args:
        filenames: A path or URL, a list of them, or a dataset of them. The files are read in this order.
        compression_type: The compression: None or "" for none, "GZIP" or "ZLIB".
        buffer_size: Without effect, as for `TFRecordDataset`.
        num_parallel_reads: The number of files that are read at once, as for `TFRecordDataset`.
        name: Without effect.
        max_record_bytes: The most bytes that a line may have.

    Raises:
        ArgumentTypeError: If something is not a file name.
        ArgumentError: If there is no name, or the compression or a number is not allowed.
        DatasetError: During iteration, if a file is missing or is not UTF-8 text, or a line is too long.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "two.csv"
    >>> _ = path.write_text("x,y" + chr(10) + "1,2" + chr(10))
    >>> list(TextLineDataset(path).skip(1).map(lambda line: [int(field) for field in line.split(",")]))
    [array([1, 2], dtype=int32)]
    """

    _method, _format = "TextLineDataset", Lines


def reading(form: Format, filenames: Any, num_parallel_reads: int | None) -> Interleave | ReadFiles:
    """Return the graph of the file names and the nodes that read them."""
    number = calls_in_parallel(form.name, num_parallel_reads, "num_parallel_reads")
    names = filenames.node if isinstance(filenames, Dataset) else file_names(form.name, filenames)
    if number is None:
        return ReadFiles(inputs=(names,), form=form, names=names)
    cycle_length = _DEFAULT_READS if number == AUTOTUNE else number
    return Interleave(inputs=(names,), fn=_one_file(form, names), cycle_length=cycle_length, block_length=1, parallel=True)


class FixedLengthRecordDataset(Dataset):
    """The records of files in which all records have the same number of bytes, as bytes.

    Args:
        filenames: A path or URL, a list of them, or a dataset of them. The files are read in this order.
        record_bytes: The number of bytes of a record.
        header_bytes: The number of bytes to leave out at the beginning of each file; None means 0.
        footer_bytes: The number of bytes to leave out at the end of each file; None means 0.
        buffer_size: As in tf.data, but without effect: files are read in large pieces.
        compression_type: The compression: None or "" for none, "GZIP" or "ZLIB".
        num_parallel_reads: The number of files that are read at once, as for `TFRecordDataset`.
        name: Without effect.

    Raises:
        ArgumentTypeError: If something is not a file name.
        ArgumentError: If there is no name, or a number or the compression is not allowed.
        DatasetError: During iteration, if a file is missing, or ends in the middle of a record.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "bytes"
    >>> _ = path.write_bytes(b"head1122")
    >>> list(FixedLengthRecordDataset(path, record_bytes=2, header_bytes=4))
    [b'11', b'22']
    """

    def __init__(  # noqa: PLR0917 - the arguments are those of tf.data
        self,
        filenames: Any,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        buffer_size: int | None = None,
        compression_type: str | None = None,
        num_parallel_reads: int | None = None,
        name: str | None = None,
    ) -> None:
        method = "FixedLengthRecordDataset"
        check_buffer(method, buffer_size)
        form = FixedLength(
            checked_compression(method, compression_type),
            record_bytes=whole(method, "record_bytes", record_bytes, 1),
            header_bytes=whole(method, "header_bytes", header_bytes or 0, 0),
            footer_bytes=whole(method, "footer_bytes", footer_bytes or 0, 0),
        )
        super().__init__(reading(form, filenames, num_parallel_reads))


def check_buffer(method: str, size: int | None) -> None:
    """Check a buffer size, which is for tf.data only."""
    if size is not None:
        _ = whole(method, "buffer_size", size, 0)


def _one_file(form: Format, names: Node) -> Callable[[str | bytes], Dataset]:
    def read(name: str | bytes) -> Dataset:
        return Dataset(ReadFiles(inputs=(tensors(name),), form=form, names=names))

    read.__qualname__ = form.label.removesuffix("()")  # the name in the pipeline's description
    return read
