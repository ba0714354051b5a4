"""What a file of a stranger may cost: memory for what was seen, not for what it says, and a limit for a record."""

import contextlib
import gzip
import io
import json
import os
import struct
import tarfile
import tracemalloc
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from PIL import Image

from replicant import data as rd
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError, ElementError
from replicant.input.files._file_format import FileReader
from replicant.input.files.records._tfrecord import read_record, record_parts
from replicant.keras.utils import audio_dataset_from_directory, image_dataset_from_directory

MB = 1 << 20


def peak(read) -> float:
    """The most memory in MB, and what was read."""
    tracemalloc.start()
    try:
        with contextlib.suppress(DatasetError):
            read()
        return tracemalloc.get_traced_memory()[1] / MB
    finally:
        tracemalloc.stop()


def lines(path, text):
    path.write_bytes(text)
    return path


READERS = {
    "TextLineDataset": (lambda path, most: rd.TextLineDataset(path, max_record_bytes=most), lambda n: b"x" * (n - 1) + b"\n"),
    "JsonLinesDataset": (
        lambda path, most: rd.JsonLinesDataset(path, max_record_bytes=most).map(lambda row: row["a"]),
        lambda n: b'{"a":"' + b"x" * (n - 9) + b'"}\n',
    ),
    "CsvDataset": (
        lambda path, most: rd.CsvDataset(path, [""], max_record_bytes=most).map(lambda field: field),
        lambda n: b"x" * (n - 1) + b"\n",
    ),
    "TFRecordDataset": (lambda path, most: rd.TFRecordDataset(path, max_record_bytes=most), lambda n: framed(b"x" * (n - 16))),
}


def framed(record):
    return b"".join(record_parts(record))


@pytest.mark.parametrize("size", [100, 3 * MB])
@pytest.mark.parametrize("reader", READERS)
def test_a_record_may_have_so_many_bytes_and_no_more(tmp_path, reader, size):
    make, record = READERS[reader]
    few = record(40)
    path = lines(tmp_path / "a", few + record(size) + few)
    assert [len(each) for each in make(path, size)] == [len(each) for each in make(path, 1 << 30)]
    iterator = iter(make(path, size - 1))
    assert len(next(iterator)) <= 40
    said = rf"{reader}: the record at byte 40 of '{path}' has (more than {size - 1:,}|{size:,}) bytes"
    with pytest.raises(
        DatasetError, match=said + ".* max_record_bytes allows. If the file is sound, give a larger max_record_bytes"
    ):
        next(iterator)


def test_a_sample_of_a_tar_may_have_so_many_bytes_and_no_more(tmp_path):
    with tarfile.open(tmp_path / "a", "w") as file:
        for name, size in (("0.x", 0), ("1.x", 3000), ("1.y", 1000), ("2.x", 0)):
            member = tarfile.TarInfo(name)
            member.size = size
            file.addfile(member, io.BytesIO(bytes(size)))
    size = 512 + 3072 + 512 + 1024
    assert [len(each["x"]) for each in rd.TarDataset(tmp_path / "a", max_record_bytes=size)] == [0, 3000, 0]
    limited = rd.TarDataset(tmp_path / "a", max_record_bytes=size - 1)
    with pytest.raises(DatasetError, match=r"TarDataset: the record at byte 512 of '.*a' has more than 5,119 bytes, the most"):
        list(limited)
    with pytest.raises(DatasetError, match=r"TarDataset: the sample at byte 512 of '.*a' has more than 5,119 bytes, the most"):
        list(limited.global_shuffle(seed=0))


@pytest.mark.parametrize(
    "make",
    [
        lambda most: rd.TextLineDataset("a", max_record_bytes=most),
        lambda most: rd.TFRecordDataset("a", max_record_bytes=most),
        lambda most: rd.CsvDataset("a", [0], max_record_bytes=most),
        lambda most: rd.JsonLinesDataset("a", max_record_bytes=most),
        lambda most: rd.TarDataset("a", max_record_bytes=most),
        lambda most: rd.Dataset.load("a", max_record_bytes=most),
        lambda most: rd.MDSDataset("a", max_shard_bytes=most),
        lambda most: rd.ArrayRecordDataset("a", max_record_bytes=most),
        lambda most: rd.NumpyDataset("a", max_record_bytes=most),
        lambda most: rd.MegatronDataset("a", max_record_bytes=most),
    ],
)
def test_a_limit_is_a_number_of_bytes(make):
    with pytest.raises(ArgumentError, match=r": max_(record|shard)_bytes must be at least 1\. Received: 0\."):
        make(0)
    with pytest.raises(ArgumentTypeError, match=r": max_(record|shard)_bytes must be an integer\. Received: 1\.5\."):
        make(1.5)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_one_line_of_a_small_file_takes_little_memory(tmp_path, suffix):
    text = b'{"a":1}\n' * (8 * MB)
    path = lines(tmp_path / f"a{suffix}", gzip.compress(text, 1) if suffix == ".gz" else zstandard.compress(text))
    assert peak(lambda: next(iter(rd.JsonLinesDataset(path)))) < 30


def test_short_lines_behind_a_long_one_are_not_made_at_once(tmp_path):
    path = lines(tmp_path / "a", b"x" * (5 * MB) + b"\n" + b"\n" * (10 * MB))
    assert peak(lambda: next(iter(rd.TextLineDataset(path)))) < 60  # a list of 10 million lines takes 600


def test_a_quote_that_nobody_closes_takes_memory_for_its_bytes(tmp_path):
    path = lines(tmp_path / "a", b'1,"x\n' + b"2\n" * (10 * MB))
    assert peak(lambda: next(iter(rd.CsvDataset(path, [0], select_cols=[0]).ignore_errors()))) < 150  # it was 2.8 GB


@pytest.mark.parametrize("size", [1 << 40, (1 << 64) - 1, 1 << 28])
def test_a_record_that_claims_much(tmp_path, size):
    head = struct.pack("<Q", size)
    checksum = record_parts(head)[3]
    path = lines(tmp_path / "a", head + checksum + bytes(1000))
    assert peak(lambda: list(rd.TFRecordDataset(path))) < 20
    with path.open("rb") as file:
        assert read_record(file) is None
    with pytest.raises(DatasetError, match=rf"the record at byte 0 of '.*a' has {size + 16:,} bytes, more than 268,435,456"):
        list(rd.TFRecordDataset(path))


def test_a_compressed_record_of_a_saved_dataset_has_a_limit(tmp_path):
    rd.Dataset.from_tensor_slices(np.zeros((4, MB), np.int8)).save(tmp_path, compression="GZIP")
    assert len(list(rd.Dataset.load(tmp_path, compression="GZIP"))) == 4
    limited = rd.Dataset.load(tmp_path, compression="GZIP", max_record_bytes=4 * MB)
    with pytest.raises(DatasetError, match=r"load: the record at byte 0 of '.*shard-00000' has more than 4,194,304 bytes, the"):
        list(limited)
    (file,) = tmp_path.rglob("shard-*")
    file.write_bytes(framed(zlib.compress(bytes(64 * MB))))
    assert peak(lambda: list(limited)) < 20


def test_large_elements_are_saved_in_records_of_their_own(tmp_path):
    rows = np.arange(6 * 10 * MB, dtype=np.uint8).reshape(6, 10 * MB)
    rd.Dataset.from_tensor_slices(rows).save(tmp_path)
    index = json.loads((tmp_path / "snapshot.json").read_text())
    assert [count for _, count in index["shards"][0]["blocks"]] == [3, 3]
    for one, other in zip(rows, rd.Dataset.load(tmp_path), strict=True):
        assert (one == other).all()


def mds(path, stated):
    path.mkdir()
    raw = np.array([2, 16, 17, 18], "<u4").tobytes() + b"ab"
    shard = {"format": "mds", "version": 2, "samples": 2, "column_names": ["x"], "column_encodings": ["uint8"], "column_sizes": [1]}
    shard |= {"raw_data": {"basename": "0.mds", "bytes": len(raw), "hashes": {}}, "zip_data": None, "compression": None}
    change, packed = stated(raw)
    (path / "0.mds").write_bytes(raw)
    if packed is not None:
        (path / "0.mds").rename(path / "1.mds.gz")
        (path / "1.mds.gz").write_bytes(packed)
        shard |= {"compression": "gz", "zip_data": {"basename": "1.mds.gz", "bytes": len(packed), "hashes": {}}}
    (path / "index.json").write_text(json.dumps({"version": 2, "shards": [{**shard, **change}]}))
    return path


@pytest.mark.parametrize(
    ("stated", "what"),
    [
        (
            lambda raw: ({"samples": 1 << 40}, None),
            r"shard 0 has 1099511627776 samples in 18 bytes, and their offsets alone take",
        ),
        (lambda raw: ({"samples": 1 << 63}, None), r"shard 0 has 9223372036854775808 samples"),
        (
            lambda raw: ({"raw_data": {"basename": "0.mds", "bytes": 1 << 40, "hashes": {}}}, None),
            r"shard 0 has 1099511627776 bytes, and the offsets of samples have 32 bits",
        ),
        (
            lambda raw: ({"raw_data": {"basename": "0.mds", "bytes": 1 << 31, "hashes": {}}}, gzip.compress(bytes(MB))),
            r"the shard at byte 0 of '.*gz' has 2,147,483,648 bytes, more than 1,073,741,824, the most that max_shard_bytes allows",
        ),
        (
            lambda raw: ({"raw_data": {"basename": "0.mds", "bytes": 1 << 29, "hashes": {}}}, gzip.compress(bytes(MB))),
            r"it holds 1048576 bytes once decompressed, and index\.json says 536870912",
        ),
    ],
)
def test_a_shard_that_claims_much(tmp_path, stated, what):
    def read():
        return list(rd.MDSDataset(mds(tmp_path / str(len(list(tmp_path.iterdir()))), stated)))

    with pytest.raises(DatasetError, match=what):
        read()
    assert peak(read) < 20


@pytest.mark.parametrize(
    ("rate", "channels", "what"),
    [
        (
            1,
            2,
            r"it has 1 samples per second, so converting it to 16000 would take a filter of .* make 320,000,000 numbers of 20,000",
        ),
        (4294967291, 2, r"it has 4294967291 samples per second, so converting it to 16000 would take a filter of 85,899,345,820"),
        (
            16000,
            10_000,
            r"it has 10000 channels, which 10,000 samples make 100,000,000 numbers; 16,777,216 are the most",
        ),
    ],
)
def test_a_sound_that_claims_much(tmp_path, rate, channels, what):
    (tmp_path / "a").mkdir()
    data = bytes(40_000)
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, channels, rate, 0, 4, 16) + b"data" + struct.pack("<I", len(data))
    (tmp_path / "a" / "0.wav").write_bytes(b"RIFF" + struct.pack("<I", len(head) + len(data)) + head + data)

    def read():
        return list(audio_dataset_from_directory(tmp_path, sampling_rate=16_000, output_sequence_length=10_000, verbose=False))

    with pytest.raises(DatasetError, match=what):
        read()


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("[" * 3000 + "1" + "]" * 3000, "it is nested more than 64 deep"),
        ("9" * 5000, "Exceeds the limit"),
        ('"\\ud800"', r"it has half of a character, .ud800, which no UTF-8 can hold"),
        ('"\\udc00"', r"it has half of a character, .udc00, which no UTF-8 can hold"),
        ('"\ud800"', r"it is not UTF-8: invalid continuation byte at byte 7"),  # its three bytes themselves
    ],
)
def test_values_of_json_that_cost_more_than_they_are_worth(tmp_path, value, what):
    path = lines(tmp_path / "a", b'{"a": 1}\n' + f'{{"a": {value}}}\n'.encode(errors="surrogatepass"))
    with pytest.raises(ElementError, match=rf"JsonLinesDataset: .*a:2 \(byte 9\): it is not JSON: .*{what}"):
        list(rd.JsonLinesDataset(path))
    assert len(list(rd.JsonLinesDataset(path, on_error="skip"))) == 1


def test_what_json_may_hold(tmp_path):
    nested = "[" * 10 + "1" + "]" * 10
    text = f'{{"t": "\\ud83d\\ude00 {"[" * 100}", "n": {nested}, "x": {"1" * 39}.5}}\n'
    (row,) = rd.JsonLinesDataset(lines(tmp_path / "a", text.encode()))
    assert row["t"] == "😀 " + "[" * 100
    assert row["n"].shape == (1,) * 10


@pytest.mark.parametrize(
    "records",
    [b"5", b"0 path=a\n", b"99 path=a\n", b"x path=a\n", b"9" * 30 + b" path=a\n", b"9 path=a\n7"],
)
def test_a_pax_header_that_is_none(tmp_path, records):
    head = tarfile.TarInfo("x")
    head.type, head.size = tarfile.XHDTYPE, len(records)
    whole = head.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512) + tarfile.TarInfo("a.x").tobuf()
    path = lines(tmp_path / "a", whole + bytes(1024))
    with pytest.raises(DatasetError, match=r"'.*a' is damaged at byte 0, .*: byte \d of its extended header begins no record"):
        list(rd.TarDataset(path))


def test_a_picture_that_claims_much(tmp_path):
    (tmp_path / "a").mkdir()
    stream = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(stream, format="jpeg")
    data = bytearray(stream.getvalue())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 8000, 9000)
    (tmp_path / "a" / "0.jpg").write_bytes(data)

    def read():
        return list(image_dataset_from_directory(tmp_path, image_size=(8, 8), verbose=False))

    with pytest.raises(DatasetError, match=r"'.*0\.jpg' is not a .* picture, or it is damaged: \d+ bytes cannot hold 9000 x 8000"):
        read()
    assert peak(read) < 20


def test_a_pax_header_has_a_limit(tmp_path):
    head = tarfile.TarInfo("x")
    head.type, head.size = tarfile.XHDTYPE, MB + 1
    path = lines(tmp_path / "a", head.tobuf(tarfile.USTAR_FORMAT) + bytes(4096))
    with pytest.raises(DatasetError, match=r"its extended header has 1,048,577 bytes, and 1,048,576 are the most that are read"):
        list(rd.TarDataset(path))


def cached(path):
    return rd.Dataset.range(600).map(lambda x: x).cache(path)


def put(path, change):
    """Write the cache anew with another index, whose checksum is right."""
    raw = path.read_bytes()
    at, magic = struct.unpack("<Q8s", raw[-16:])
    with path.open("rb") as file:
        file.seek(at)
        index = change(json.loads(read_record(file) or b""))
    path.write_bytes(
        raw[:at] + framed(index if isinstance(index, bytes) else json.dumps(index).encode()) + struct.pack("<Q8s", at, magic)
    )


def blocks(change):
    return lambda index: {**index, "blocks": change(index["blocks"])}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (blocks(lambda its: [[0, 100_000], *its[1:]]), "in the record at byte 0: its number of elements is not that of its index"),
        (blocks(lambda its: [[0, 5]]), "in the record at byte 0"),
        (blocks(lambda its: its[:2]), "in the record at byte 2180"),
        (blocks(lambda its: [[0, -5], *its[1:]]), "in its index"),
        (blocks(lambda its: [[0, 1 << 63]]), "in its index"),
        (blocks(lambda its: [[1 << 63, 5]]), "in its index"),
        (blocks(lambda its: [[0.5, 5]]), "in its index"),
        (blocks(lambda its: [[True, 5]]), "in its index"),
        (blocks(lambda its: "x"), "in its index"),
        (blocks(lambda its: [its[1], its[0], its[2]]), "in its index"),
        (blocks(lambda its: its[1:]), "in its index"),
        (blocks(lambda its: []), "in its index"),
        (lambda index: {}, "in its index"),
        (lambda index: [], "in its index"),
        (lambda index: b"[" * 100_000, "in its index"),
        (lambda index: b"x", "in its index"),
        (lambda index: {**index, "parts": 5}, "in its index"),
        (lambda index: {**index, "begin": 5}, "in its index"),
    ],
)
def test_a_cache_whose_index_is_forged(tmp_path, change, what):
    path = tmp_path / "kept"
    assert len(list(cached(path))) == 600
    put(path, change)
    with pytest.raises(DatasetError, match=rf"cache: '.*kept' is damaged {what}\b.* Delete the file to fill it again"):
        list(cached(path))


@pytest.mark.parametrize("begin", [{"a": 5}, {"position": "x"}, {"input": [], "position": None}])
def test_a_cache_whose_passes_began_nowhere(tmp_path, begin):
    path = tmp_path / "kept"
    whole = list(cached(path))
    put(path, lambda index: {**index, "begin": begin})
    with iter(cached(path)) as iterator:
        assert [next(iterator) for _ in range(3)] == whole[:3]
        state = iterator.state()
    message = (
        r"cache\(.*kept\): the position is of a pass that began at \{.*If the file of the cache is not one that Replicant wrote"
    )
    with iter(cached(path)) as again, pytest.raises(DatasetError, match=message):
        again.restore(state)


def test_a_cache_of_other_parts(tmp_path):
    path = tmp_path / "kept"
    list(cached(path))
    put(path, lambda index: {**index, "parts": index["parts"][:1]})
    with pytest.raises(DatasetError, match=r"same steps: the numbers of what they depend on \(1 and \d\) differ"):
        list(cached(path))


@pytest.mark.parametrize(
    "change",
    [
        lambda its: [its[1], its[0], its[2]],
        lambda its: its[1:],
        lambda its: [],
        lambda its: [*its, its[-1]],
        lambda its: [[0, 0], *its[1:]],
        lambda its: [[0, 1 << 62], *its[1:]],
    ],
)
def test_a_saved_dataset_whose_index_is_forged(tmp_path, change):
    rd.Dataset.range(600).save(tmp_path)
    index = json.loads((tmp_path / "snapshot.json").read_text())
    index["shards"][0]["blocks"] = change(index["shards"][0]["blocks"])
    (tmp_path / "snapshot.json").write_text(json.dumps(index))
    with pytest.raises(DatasetError, match=r"load: '.*snapshot\.json' is damaged\. Save the dataset again\."):
        rd.Dataset.load(tmp_path)


def test_a_saved_dataset_without_its_last_record(tmp_path):
    rd.Dataset.range(600).save(tmp_path)
    index = json.loads((tmp_path / "snapshot.json").read_text())
    index["shards"][0]["blocks"].pop()
    (tmp_path / "snapshot.json").write_text(json.dumps(index))
    with pytest.raises(DatasetError, match=r"load: '.*shard-00000' is damaged in the record at byte \d+\. Save the"):
        list(rd.Dataset.load(tmp_path))


def test_pipes_in_place_of_files_are_errors(tmp_path):
    for name in ("a", "a.idx", "snapshot.json", "index.json"):
        os.mkfifo(tmp_path / name)
    path = tmp_path / "a"
    reads = [
        lambda: list(rd.TextLineDataset(path)),
        lambda: list(rd.CsvDataset(path, [0])),
        lambda: list(rd.JsonLinesDataset(path)),
        lambda: list(rd.TarDataset(path)),
        lambda: list(rd.TarDataset(path).global_shuffle(seed=0)),
        lambda: list(rd.ParquetDataset(path)),
        lambda: list(rd.ArrowDataset(path)),
        lambda: rd.MDSDataset(tmp_path),
        lambda: rd.LitDataDataset(tmp_path),
        lambda: list(rd.ArrayRecordDataset(path)),
        lambda: list(rd.ArrayRecordDataset(path).global_shuffle(seed=0)),
        lambda: list(rd.NumpyDataset(path)),
        lambda: list(rd.NumpyDataset(path).global_shuffle(seed=0)),
        lambda: list(rd.TokenDataset(path, 2, dtype="uint16")),
        lambda: list(rd.MegatronDataset(tmp_path / "a.idx")),
        lambda: rd.Dataset.load(tmp_path),
        lambda: list(rd.Dataset.range(3).cache(path)),
    ]
    for read in reads:
        with pytest.raises(DatasetError, match="It is not a regular file but a pipe, a device or a socket"):
            read()


def test_a_reader_needs_no_more_than_its_first_piece(tmp_path):
    """What a file says of its sizes does not make room for them."""
    path = lines(tmp_path / "a", b"1\n" * 10)
    reader = FileReader(rd.TextLineDataset(path)._node.form, str(path), 0)
    assert reader.read(3).tolist() == ["1"] * 3
    assert len(reader.buffer) == 1 << 18
    reader.close()


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_a_column_whose_name_is_no_text(tmp_path, ending):
    table = pa.table({"abcdefgh": [1, 2]})
    path = tmp_path / f"a.{ending}"
    if ending == "arrow":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    else:
        pq.write_table(table, path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"\x80bcdefgh"))
    with pytest.raises(DatasetError, match=rf"a\.{ending}'.* can't decode byte 0x80 in position 0: .*rite the file again"):
        list(rd.ArrowDataset(str(path)) if ending == "arrow" else rd.ParquetDataset(str(path)))


def test_a_file_whose_name_is_too_long(tmp_path):
    with pytest.raises(DatasetError, match=r"File name too long.*Check the path\."):
        list(rd.TextLineDataset(str(tmp_path / ("a" * 5_000))))
