"""Files: names, TFRecords, lines; damage of every kind; positions; memory."""

import gc
import gzip
import itertools
import json
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicant.data import AUTOTUNE, Dataset, TextLineDataset, TFRecordDataset, TFRecordWriter
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError
from replicant.input.files import _stream
from replicant.input.files.records import _tfrecord

COMPRESSIONS = ["", "GZIP", "ZLIB"]
RECORDS = [b"", b"a", b"two", bytes(300), b"last"]

# What TensorFlow writes for the records b"replicant" and b"".
TENSORFLOW_FILE = bytes.fromhex("090000000000000037f971397265706c6963616e7441c1bbce000000000000000029039807d8ea82a2")


def write(path, records, compression=None):
    with TFRecordWriter(path, compression) as writer:
        for record in records:
            writer.write(record)
    return path


@pytest.fixture(params=[1, 7, 1 << 20])
def any_piece(request, monkeypatch):
    """Files are read in pieces of so many bytes."""
    monkeypatch.setattr(_stream, "PIECE", request.param)


@pytest.mark.usefixtures("any_piece")
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_come_back(tmp_path, compression):
    path = write(tmp_path / "a", RECORDS, compression)
    dataset = TFRecordDataset(path, compression)
    assert list(dataset) == list(dataset) == RECORDS
    assert [batch.tolist() for batch in dataset.batch(3)] == [RECORDS[:3], RECORDS[3:]]
    assert list(dataset.skip(2).repeat(2)) == RECORDS[2:] * 2


def test_files_are_those_of_tensorflow(tmp_path):
    assert write(tmp_path / "a", [b"replicant", b""]).read_bytes() == TENSORFLOW_FILE
    (tmp_path / "b").write_bytes(TENSORFLOW_FILE)
    assert list(TFRecordDataset(tmp_path / "b")) == [b"replicant", b""]


def test_an_empty_file_has_no_records(tmp_path):
    assert list(TFRecordDataset(write(tmp_path / "a", []))) == []


def test_compression_is_that_of_gzip_and_zlib(tmp_path):
    plain = write(tmp_path / "a", RECORDS).read_bytes()
    assert gzip.decompress(write(tmp_path / "b", RECORDS, "GZIP").read_bytes()) == plain
    assert zlib.decompress(write(tmp_path / "c", RECORDS, "ZLIB").read_bytes()) == plain


def test_a_gzip_file_of_several_members_is_one_file(tmp_path):
    plain = write(tmp_path / "a", RECORDS).read_bytes()
    (tmp_path / "b").write_bytes(gzip.compress(plain[:20]) + gzip.compress(plain[20:]))
    assert list(TFRecordDataset(tmp_path / "b", "GZIP")) == RECORDS


def test_several_files_are_read_in_their_order(tmp_path):
    first, second = write(tmp_path / "b", [b"1", b"2", b"3"]), write(tmp_path / "a", [b"4"])
    assert list(TFRecordDataset([first, str(second)])) == [b"1", b"2", b"3", b"4"]
    assert list(TFRecordDataset(np.array([str(second), str(first)]))) == [b"4", b"1", b"2", b"3"]
    assert list(TFRecordDataset(Dataset.from_tensor_slices([str(second), str(first)]))) == [b"4", b"1", b"2", b"3"]
    for reads in (2, AUTOTUNE):
        assert list(TFRecordDataset([first, second], num_parallel_reads=reads)) == [b"1", b"4", b"2", b"3"]


def test_facts_of_file_datasets(tmp_path):
    dataset = TFRecordDataset([tmp_path / "a", tmp_path / "b"], "GZIP")
    assert repr(dataset) == "<Dataset: files(2 files) > TFRecordDataset(GZIP)>"
    assert dataset.cardinality() == Dataset.UNKNOWN
    assert str(dataset.element_spec) == "TensorSpec(shape=(), dtype=string)"
    parallel = TFRecordDataset(tmp_path / "a", num_parallel_reads=2)
    assert "interleave(TFRecordDataset, cycle_length=2, block_length=1" in repr(parallel)


def damaged(path, at, mask=0x40):
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(bytes(data))
    return path


# The second of three records of 5 bytes begins at byte 21: length 8, its checksum 4, data 5, its checksum 4.
@pytest.mark.usefixtures("any_piece")
@pytest.mark.parametrize(
    ("at", "part"),
    [(21, "length"), (28, "length"), (29, "length"), (33, "data"), (37, "data"), (38, "data"), (41, "data")],
)
def test_a_damaged_record_is_named_after_those_before_it(tmp_path, at, part):
    path = damaged(write(tmp_path / "bad", [b"first", b"wrong", b"third"]), at)
    iterator = iter(TFRecordDataset(path).prefetch(8))
    assert next(iterator) == b"first"
    message = (
        rf"TFRecordDataset: '{path}' is damaged in the record at byte 21: the checksum of its {part} should be "
        r"0x[0-9a-f]{8}, but the bytes give 0x[0-9a-f]{8}\. Copy or write the file again\.$"
    )
    for _ in range(2):
        with pytest.raises(DatasetError, match=message):
            next(iterator)


@st.composite
def files(draw):
    """A file of records, many of one length, perhaps damaged and cut off."""
    runs = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=4))
    records = [bytes([i % 251]) * length for length, count in runs for i in range(count)]
    data = bytearray(b"".join(b"".join(_tfrecord.record_parts(record)) for record in records))
    if data and draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    return bytes(data[: draw(st.integers(0, len(data)) | st.just(len(data)))]), draw(st.booleans())


@given(files())
@settings(max_examples=400)
def test_records_of_one_length_are_read_as_those_of_any_length(case):
    data, last = case
    form = _tfrecord.Records()
    records, ends, failure = form.split("name", 1000, memoryview(data), last)
    expected, stops, expected_failure = form._one_by_one("name", 1000, data, last)
    assert records == expected
    assert list(ends) == [stop + 4 for stop in stops]
    assert str(failure) == str(expected_failure)


def test_records_of_one_length_are_read_at_once():
    good = b"".join(b"".join(_tfrecord.record_parts(bytes([i]) * 9)) for i in range(20))
    other = b"".join(_tfrecord.record_parts(b"longer than these"))
    assert _tfrecord._alike(memoryview(good + other)) == ([bytes([i]) * 9 for i in range(20)], 25)
    wrong = bytearray(good)
    wrong[25 * 7 + 12] ^= 1
    assert _tfrecord._alike(memoryview(bytes(wrong))) == ([bytes([i]) * 9 for i in range(7)], 25)
    assert _tfrecord._alike(memoryview(other * 3)) == ([], 0)


def test_expected_and_found_checksums_are_the_right_ones(tmp_path):
    path = write(tmp_path / "bad", [b"123456789"])
    damaged(path, 21, 0x01)  # the first byte of the stored checksum of the data
    # CRC-32C of "123456789" is 0xe3069283 (RFC 3720).
    masked = (((0xE3069283 >> 15) | (0xE3069283 << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    with pytest.raises(DatasetError, match=f"should be 0x{masked ^ 0x01:08x}, but the bytes give 0x{masked:08x}"):
        list(TFRecordDataset(path))


@pytest.mark.usefixtures("any_piece")
@pytest.mark.parametrize(
    ("keep", "what"),
    [
        (1, "record at byte 21 needs at least 12 bytes, but only 1 follow"),
        (11, "record at byte 21 needs at least 12 bytes, but only 11 follow"),
        (12, "record at byte 21 needs 21 bytes, but only 12 follow"),
        (20, "record at byte 21 needs 21 bytes, but only 20 follow"),
    ],
)
def test_a_file_that_is_cut_off(tmp_path, keep, what):
    path = write(tmp_path / "bad", [b"first", b"wrong"])
    path.write_bytes(path.read_bytes()[: 21 + keep])
    iterator = iter(TFRecordDataset(path))
    assert next(iterator) == b"first"
    with pytest.raises(DatasetError, match=rf"'{path}' is cut off: the {what}"):
        next(iterator)


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_files_that_are_cut_off_or_damaged(tmp_path, compression):
    whole = write(tmp_path / "a", RECORDS, compression).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-5])
    with pytest.raises(DatasetError, match=rf"cut' is not a complete {compression} file: it ends in the middle of the compr"):
        list(TFRecordDataset(tmp_path / "cut", compression))
    (tmp_path / "wrong").write_bytes(b"?" + whole[1:])
    with pytest.raises(DatasetError, match=rf"wrong' is not a complete {compression} file: .*incorrect header check"):
        list(TFRecordDataset(tmp_path / "wrong", compression))


def test_a_compressed_file_that_is_read_as_plain_names_the_remedy(tmp_path):
    path = write(tmp_path / "a", RECORDS, "GZIP")
    with pytest.raises(DatasetError, match=r'record at byte 0: the checksum of its length.*pass compression_type="GZIP"'):
        list(TFRecordDataset(path))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: list(TFRecordDataset("no/such")), DatasetError, "TFRecordDataset: cannot open 'no/such': No such file"),
        (lambda: list(TextLineDataset("/")), DatasetError, "TextLineDataset: cannot open '/': Is a directory"),
        (lambda: TFRecordDataset([]), ArgumentError, r"TFRecordDataset: there is no file name in \[\]"),
        (lambda: TFRecordDataset(3), ArgumentTypeError, "TFRecordDataset takes a file name or a list of them. Received: 3"),
        (lambda: TextLineDataset([3.5]), ArgumentTypeError, r"TextLineDataset takes a file name.*Received: \[3.5\]"),
        (
            lambda: TFRecordDataset("a", "ZIP"),
            ArgumentError,
            'compression_type must be None, "", "GZIP" or "ZLIB". Received: \'ZIP\'',
        ),
        (
            lambda: TFRecordDataset("a", num_parallel_reads=0),
            ArgumentError,
            "num_parallel_reads must be None, AUTOTUNE .* Received: 0",
        ),
        (lambda: list(TFRecordDataset(Dataset.range(2))), DatasetError, "reads a dataset of file names.*Received: np.int64"),
        (lambda: Dataset.list_files("/no/such/*.txt"), DatasetError, r"list_files: no file matches '/no/such/\*.txt' \(searched"),
        (lambda: Dataset.list_files([]), ArgumentError, "list_files: there is no file name"),
        (lambda: TFRecordWriter("/tmp/x", "LZ4"), ArgumentError, "TFRecordWriter: compression_type must be"),
    ],
)
def test_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_writer_takes_bytes_until_it_is_closed(tmp_path):
    writer = TFRecordWriter(tmp_path / "a")
    with pytest.raises(ArgumentTypeError, match=r"TFRecordWriter.write takes bytes. Received: str.*encode_example"):
        writer.write("text")
    writer.write(b"1")
    writer.flush()
    assert list(TFRecordDataset(tmp_path / "a")) == [b"1"]
    writer.close()
    writer.close()
    with pytest.raises(ArgumentError, match="the writer is closed"):
        writer.write(b"2")


def test_list_files_is_sorted_or_shuffled(tmp_path):
    names = [str(tmp_path / f"{i:02}.txt") for i in range(20)]
    for name in reversed(names):
        Path(name).touch()
    (tmp_path / "other.csv").touch()
    assert list(Dataset.list_files(str(tmp_path / "*.txt"), shuffle=False)) == names
    assert list(Dataset.list_files([str(tmp_path / "1*"), tmp_path / "0*.txt", names[0]], shuffle=False)) == names
    shuffled = Dataset.list_files(str(tmp_path / "*.txt"), seed=1)
    first, second = list(shuffled), list(shuffled)
    assert sorted(first) == sorted(second) == names
    assert first not in (names, second)
    assert list(Dataset.list_files(str(tmp_path / "*.txt"), seed=1)) == first
    assert len(shuffled) == 20
    with pytest.raises(DatasetError, match=r"no file matches '.*jpg'"):
        Dataset.list_files([str(tmp_path / "*.txt"), str(tmp_path / "*.jpg")])


@pytest.mark.usefixtures("any_piece")
@pytest.mark.parametrize("compress", [lambda data: data, gzip.compress], ids=["plain", "gzip"])
def test_lines(tmp_path, compress):
    (tmp_path / "a").write_bytes(compress("one\r\n\nzwölf\n".encode()))
    (tmp_path / "b").write_bytes(compress(b"last"))
    compression = "GZIP" if compress is gzip.compress else None
    dataset = TextLineDataset([tmp_path / "a", tmp_path / "b"], compression)
    assert list(dataset) == ["one", "", "zwölf", "last"]
    assert list(dataset.skip(1).take(2)) == ["", "zwölf"]


def test_lines_that_are_not_text(tmp_path):
    (tmp_path / "a").write_bytes(b"good\nb\xffd\ngood\n")
    iterator = iter(TextLineDataset(tmp_path / "a").prefetch(8))
    assert next(iterator) == "good"
    with pytest.raises(DatasetError, match=r"a' is not UTF-8 text: invalid start byte at byte 6 \(0xff\), in the line .* byte 5"):
        next(iterator)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("reads", [None, 2])
def test_a_position_leads_to_the_same_rest_from_every_point(tmp_path, compression, reads, monkeypatch):
    monkeypatch.setattr(_stream, "PIECE", 60)
    monkeypatch.setattr(_stream, "_COMPRESSED_PIECE", 60)
    files = [write(tmp_path / str(i), [f"{i}-{k}".encode() * 3 for k in range(4 + i)], compression) for i in range(3)]

    def make():
        return TFRecordDataset(files, compression, num_parallel_reads=reads).repeat(2)

    whole = list(make())
    assert len(whole) == 30
    for cut in range(31):
        with iter(make()) as iterator:
            assert list(itertools.islice(iterator, cut)) == whole[:cut]
            state = json.loads(json.dumps(iterator.state()))
        again = iter(make())
        again.restore(state)
        assert json.loads(json.dumps(again.state())) == state
        assert list(again) == whole[cut:], cut


def is_open(path):
    return any(entry.exists() and entry.samefile(path) for entry in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are seen in /proc")
@pytest.mark.long
def test_an_iterator_that_is_dropped_closes_its_file(tmp_path):
    path = write(tmp_path / "a", RECORDS)
    iterator = iter(TFRecordDataset(path))
    next(iterator)
    assert is_open(path)
    del iterator
    gc.collect()
    assert not is_open(path)


def test_a_file_is_streamed(tmp_path):
    """64 MB of records pass through a few MB of memory."""
    record = bytes(1 << 16)
    write(tmp_path / "a", itertools.repeat(record, 1024))
    tracemalloc.start()
    try:
        count = sum(len(batch) for batch in TFRecordDataset(tmp_path / "a").batch(16).prefetch(2))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 1024
    assert peak < 16 << 20


def test_a_position_in_a_file_that_is_gone_does_not_cut_the_next_one(tmp_path):
    first, second = (tmp_path / name for name in "ab")
    for path in (first, second):
        path.write_text("".join(f"{path.name}{i}\n" for i in range(4)))
    iterator = iter(TextLineDataset([first, second]).ignore_errors())
    assert [next(iterator) for _ in range(3)] == ["a0", "a1", "a2"]
    state = json.loads(json.dumps(iterator.state()))
    first.unlink()
    again = iter(TextLineDataset([first, second]).ignore_errors())
    again.restore(state)
    assert list(again) == ["b0", "b1", "b2", "b3"]


def test_lines_before_the_end_of_a_gzip_file_that_is_cut_off_come_first(tmp_path):
    lines = [str(i) for i in np.random.default_rng(0).integers(0, 1 << 30, 1000)]
    cut = gzip.compress("\n".join(lines).encode())[:-200]
    (tmp_path / "a").write_bytes(cut)
    whole = zlib.decompressobj(31).decompress(cut).count(b"\n")
    iterator = iter(TextLineDataset(tmp_path / "a", "GZIP"))
    assert list(itertools.islice(iterator, whole)) == lines[:whole]
    assert whole > 900
    for _ in range(2):
        with pytest.raises(DatasetError, match="is not a complete GZIP file: it ends in the middle of the compressed data"):
            next(iterator)
