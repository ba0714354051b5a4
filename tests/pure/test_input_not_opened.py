"""What readers say about folders, patterns and files that are compressed in a way that was not said, and how to go on."""

import bz2
import gzip
import io
import json
import lzma
import re
import tarfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from replicant.data import (
    ArrowDataset,
    CsvDataset,
    Dataset,
    FixedLengthRecordDataset,
    JsonLinesDataset,
    MDSDataset,
    NumpyDataset,
    ParquetDataset,
    TarDataset,
    TextLineDataset,
    TFRecordDataset,
    TFRecordWriter,
    make_csv_dataset,
)
from replicant.errors import DatasetError
from replicant.input.files import _stream


def tar_bytes():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("1.txt", "2.txt"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(name[:1].encode()))
    return file.getvalue()


def records_bytes(folder):
    with TFRecordWriter(folder / "records") as writer:
        for record in (b"1", b"2"):
            writer.write(record)
    return (folder / "records").read_bytes()


def numpy_bytes(rows):
    file = io.BytesIO()
    np.save(file, np.array(rows, np.int32))
    return file.getvalue()


def parquet_bytes():
    file = io.BytesIO()
    pq.write_table(pa.table({"x": [1, 2]}), file)
    return file.getvalue()


def arrow_bytes():
    file = io.BytesIO()
    with pa.ipc.new_file(file, pa.schema([("x", pa.int64())])) as writer:
        writer.write(pa.record_batch({"x": [1, 2]}))
    return file.getvalue()


READERS = {  # how two elements are read, and the bytes of a file that has them
    "arrow": (ArrowDataset, lambda _: arrow_bytes()),
    "csv": (lambda names, *more: CsvDataset(names, [0], *more), lambda _: b"1\n2\n"),
    "fixed": (lambda names: FixedLengthRecordDataset(names, 1), lambda _: b"12"),
    "json": (JsonLinesDataset, lambda _: b'{"x": 1}\n{"x": 2}\n'),
    "lines": (TextLineDataset, lambda _: b"1\n2\n"),
    "make_csv": (
        lambda names, kind=None: make_csv_dataset(names, 1, num_epochs=1, compression_type=kind),
        lambda _: b"x\n1\n2\n",
    ),
    "numpy": (NumpyDataset, lambda _: numpy_bytes([1, 2])),
    "parquet": (ParquetDataset, lambda _: parquet_bytes()),
    "records": (TFRecordDataset, records_bytes),
    "tar": (TarDataset, lambda _: tar_bytes()),
}


def advised(message):
    """The dataset that a message says to pass."""
    return eval(re.search(r"Dataset\.list_files\('.*', shuffle=False\)", message)[0], {"Dataset": Dataset})


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("given", ["folder", "folder/", "pattern"])
def test_a_folder_or_a_pattern_is_an_error_that_says_what_to_pass(tmp_path, name, given):
    read, data = READERS[name]
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "0").write_bytes(data(tmp_path))
    path = {"folder": str(folder), "folder/": f"{folder}/", "pattern": f"{folder}/[0-9]*"}[given]
    if (name, given) == ("make_csv", "pattern"):  # which it takes
        assert len(list(read(path))) == 2
        return
    rule = "If it is a pattern, pass the files that match" if given == "pattern" else "It is a folder. Pass the files in it"
    with pytest.raises(DatasetError, match=rf"cannot (open|read) '{re.escape(path)}': .*\. {rule}: Dataset.list_files") as caught:
        list(read(path))
    assert len(list(read(advised(str(caught.value))))) == 2


def test_other_paths_are_to_be_checked(tmp_path):
    with pytest.raises(DatasetError, match=r"TextLineDataset: cannot open '.*none': No such file or directory\. Check the path\."):
        list(TextLineDataset(tmp_path / "none"))
    with pytest.raises(DatasetError, match=r"TarDataset: cannot open '.*none': No such file or directory\. Check the path\."):
        list(TarDataset(tmp_path / "none").shuffle(2, seed=1))


KINDS = {
    "GZIP": (gzip.compress, "gunzip"),
    "ZLIB": (zlib.compress, None),
    "ZSTD": (zstandard.compress, "unzstd"),
    "bzip2": (bz2.compress, "bunzip2"),
    "xz": (lzma.compress, "unxz"),
}
TAKEN = {"arrow": (), "numpy": (), "parquet": (), "json": ("GZIP", "ZLIB", "ZSTD")}


@pytest.mark.parametrize("name", [name for name in READERS if name != "fixed"])  # whose records are any bytes
@pytest.mark.parametrize("kind", KINDS)
def test_a_compressed_file_is_an_error_that_says_how_to_read_it(tmp_path, name, kind):
    read, data = READERS[name]
    compress, program = KINDS[kind]
    path = tmp_path / "data.tgz"  # an ending that no reader goes by
    path.write_bytes(compress(data(tmp_path)))
    is_taken = kind in TAKEN.get(name, ("GZIP", "ZLIB"))
    remedy = f'pass compression_type="{kind}"' if is_taken else rf"decompress it before \({program or 'zlib-flate -uncompress'}\)"
    with pytest.raises(DatasetError, match=rf"data.tgz.*compressed by {kind}: {remedy}\.$"):
        list(read(str(path)))
    if name == "json" and is_taken:
        assert len(list(read(str(path), compression_type=kind))) == 2
    elif is_taken:
        assert len(list(read(str(path), kind))) == 2


def test_json_lines_go_by_endings_in_capitals_too(tmp_path):
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(b'{"x": 1}\n'))
    assert [int(each["x"]) for each in JsonLinesDataset(tmp_path / "A.JSONL.GZ")] == [1]


@pytest.mark.parametrize("name", [name for name in READERS if name not in ("arrow", "numpy", "parquet", "fixed")])
@pytest.mark.parametrize("size", [1, 7, 512, 200_000])
def test_zeros_behind_a_gzip_file_are_padding(tmp_path, name, size):
    read, data = READERS[name]
    path = tmp_path / "data.gz"
    path.write_bytes(gzip.compress(data(tmp_path)) + bytes(size))
    options = ("GZIP",) if name != "json" else ()
    assert gzip.decompress(path.read_bytes()) == data(tmp_path)
    assert len(list(read(str(path), *options))) == 2


@pytest.mark.parametrize("piece", [1, 1 << 16])
def test_members_of_gzip_files_may_be_padded(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(_stream, "_COMPRESSED_PIECE", piece)
    path = tmp_path / "data.gz"
    path.write_bytes(gzip.compress(b"1\n") + bytes(10) + gzip.compress(b"2\n") + bytes(3))
    iterator = iter(TextLineDataset(path, "GZIP"))
    assert next(iterator) == "1"
    state = json.loads(json.dumps(iterator.state()))
    assert list(iterator) == ["2"]
    iterator.restore(state)
    assert list(iterator) == ["2"]
    path.write_bytes(gzip.compress(b"1\n") + bytes(10) + b"no gzip")
    with pytest.raises(DatasetError, match=r"is not a complete GZIP file: .*incorrect header check"):
        list(TextLineDataset(path, "GZIP"))
    path.write_bytes(bytes(10) + gzip.compress(b"1\n"))
    with pytest.raises(DatasetError, match=r"is not a complete GZIP file: .*incorrect header check"):
        list(TextLineDataset(path, "GZIP"))
    path.write_bytes(zlib.compress(b"1\n") + bytes(10))  # of which no program says that it is padding
    with pytest.raises(DatasetError, match="is not a complete ZLIB file"):
        list(TextLineDataset(path, "ZLIB"))


def test_what_has_no_elements_is_an_empty_dataset(tmp_path):
    tar, table = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w"):
        pass
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), table)
    empty = {
        "csv": b"",
        "fixed": b"",
        "json": b"",
        "lines": b"",
        "make_csv": b"x\n",
        "numpy": numpy_bytes([]),
        "parquet": table.getvalue(),
        "records": b"",
        "tar": tar.getvalue(),
    }
    for name, data in empty.items():
        path = tmp_path / name
        path.write_bytes(data)
        assert list(READERS[name][0](str(path))) == [], name
    for kind in (pa.ipc.new_file, pa.ipc.new_stream):
        with kind(tmp_path / "arrow", pa.schema([("x", pa.int64())])):
            pass
        assert list(ArrowDataset(tmp_path / "arrow")) == []
    (tmp_path / "index.json").write_text(json.dumps({"shards": [], "version": 2}))  # as streaming's MDSWriter leaves it
    assert list(MDSDataset(tmp_path)) == []
