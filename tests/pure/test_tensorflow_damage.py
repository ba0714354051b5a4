"""What cannot be true in a checkpoint of TensorFlow is an error that names the file and the tensor."""

import numpy as np
import pytest

import replicant
from replicant import errors
from replicant.checkpoint.tensorflow import open_checkpoint
from replicant.checkpoint.tensorflow.files import _cover
from replicant.checkpoint.tensorflow.files._slice_key import slice_key

from . import _tensorflow_files as tf

KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)
WORDS = np.array([b"one", b"two"], object)
CUT = np.arange(8, dtype=np.int64)


def values():
    return {"cut": ((8,), np.int64, [(((0, 4),), CUT[:4]), (((4, 4),), CUT[4:])]), "kernel": KERNEL, "words": WORDS}


CHECKSUM = tf.masked(tf.raw(KERNEL)[1])
START = 64  # where the kernel begins, behind the slices

PARSED = "the record of 'kernel' cannot be parsed, "

# What is written in place of the record of the kernel, and what is said about it. In the index every checksum is right.
RECORDS = {
    "a huge shape": (tf.entry(1, (1 << 61,), 24), r"the shape of 'kernel' is \(2305843009213693952,\), which no array has"),
    "a large shape": (
        tf.entry(1, (1 << 40,), 24),
        r"'kernel' has 24 bytes, but its shape \(1099511627776,\) and dtype float32 need 4398046511104",
    ),
    "a negative size of an axis": (tf.entry(1, (-2, -3), 24), r"the shape of 'kernel' is \(-2, -3\), which no array has"),
    "a size beside 0": (
        tf.entry(1, (0, 1 << 62), 0),
        r"the shape of 'kernel' is \(0, 4611686018427387904\), which no array has",
    ),
    "many axes": (tf.entry(1, (1,) * 65, 4), "the shape of 'kernel' is one of 65 axes, which no array has"),
    "a negative size": (tf.entry(1, (2, 3), -24), "the bytes of 'kernel' are -24 from byte 0 on"),
    "a negative offset": (tf.entry(1, (2, 3), 24, offset=-8), "the bytes of 'kernel' are 24 from byte -8 on"),
    "a size too small": (
        tf.entry(1, (2, 3), 4),
        r"'kernel' has 4 bytes, but its shape \(2, 3\) and dtype float32 need 24",
    ),
    "another file": (
        tf.entry(1, (2, 3), 24, shard=5),
        "'kernel' should be in the data file with the number 5, but there are 1, from 0 on",
    ),
    "a negative file": (tf.entry(1, (2, 3), 24, shard=-1), "'kernel' should be in the data file with the number -1"),
    "strings without room": (
        tf.entry(7, (100,), 24),
        r"'kernel' has 24 bytes, but its shape \(100,\) and dtype object need at least 104",
    ),
    "unknown rank": (tf.message((1, 1), (2, tf.message((3, 1)))), f"{PARSED}its shape is of unknown rank"),
    "no message": (b"\xff\xff\xff", f"{PARSED}a number has no end before byte 3 of 3"),
    "bytes for a number": (tf.message((1, b"abc")), f"{PARSED}a field has 3 bytes in place of an integer"),
    "a number for bytes": (tf.message((2, 5)), f"{PARSED}a field has the integer 5 in place of bytes"),
    "a long checksum": (tf.message((6, b"12345")), f"{PARSED}its checksum has 5 bytes"),
    "slices that are not there": (
        tf.entry(1, (2, 3), 0, slices=[tf.extents((0, 2), (0, None))]),
        r"the slice \(\(0, 2\), \(0, -1\)\) of 'kernel' is missing",
    ),
    "a slice outside": (
        tf.entry(1, (2, 3), 0, slices=[tf.extents((1, 2), (0, None))]),
        r"the slice \(\(1, 2\), \(0, -1\)\) of 'kernel' is not within its shape \(2, 3\)",
    ),
    "a slice of other axes": (
        tf.entry(1, (2, 3), 0, slices=[tf.extents((0, 2))]),
        "a slice of 'kernel' has 1 axes, but the tensor has 2",
    ),
}


@pytest.mark.parametrize(("record", "message"), RECORDS.values(), ids=RECORDS)
def test_a_record_that_cannot_be_true(tmp_path, record, message):
    path = tf.write_bundle(tmp_path / "ckpt", values(), changes=lambda records: records.__setitem__(b"kernel", record))
    with pytest.raises(errors.DamagedCheckpointError, match=rf"ckpt\.index is damaged: {message}"):
        open_checkpoint(path).read("kernel")
    if "cannot be parsed" not in message:  # the others are whole
        assert open_checkpoint(path).read("cut").tolist() == CUT.tolist()


# Records of "kernel" for which the data file is not right.
DATA = {
    "past the end": (
        tf.entry(1, (2, 3), 24, offset=1 << 40),
        r"the bytes of 'kernel' should be 1099511627776 to 1099511627800 of it, but it has \d+ bytes",
    ),
    "a wrong checksum": (
        tf.entry(1, (2, 3), 24, offset=START, checksum=1),
        rf"'kernel' \(bytes 64 to 88\) should have the checksum 0x00000001, but its bytes give 0x{CHECKSUM:08x}",
    ),
    "no strings": (tf.entry(7, (2,), 24, offset=START), "the bytes of 'kernel' are 24, but its strings need 6"),
    "no bools": (
        tf.entry(10, (24,), 24, offset=START, checksum=CHECKSUM),
        "'kernel' is of dtype bool, but has a byte that is neither 0 nor 1",
    ),
}


@pytest.mark.parametrize(("record", "message"), DATA.values(), ids=DATA)
def test_bytes_that_are_others(tmp_path, record, message):
    path = tf.write_bundle(tmp_path / "ckpt", values(), changes=lambda records: records.__setitem__(b"kernel", record))
    bundle = open_checkpoint(path)
    with pytest.raises(errors.DamagedCheckpointError, match=rf"ckpt\.data-00000-of-00001 is damaged: {message}"):
        bundle.read("kernel")
    whole = tuple(slice(None) for _ in bundle.shape("kernel"))
    with pytest.raises(errors.DamagedCheckpointError, match=rf"ckpt\.data-00000-of-00001 is damaged: {message}"):
        bundle.read_part("kernel", whole)


def test_a_data_file_that_is_cut_or_changed(tmp_path):
    path = tf.write_bundle(tmp_path / "ckpt", values())
    file = tmp_path / "ckpt.data-00000-of-00001"
    data = file.read_bytes()
    for at in range(0, len(data), 2):
        key = "cut" if at < START else "kernel" if at < START + 24 else "words"
        for damaged, message in (
            (data[:at], r"should be \d+ to \d+ of it, but it has"),
            (data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :], r"should have the checksum|strings need|cannot be parsed"),
        ):
            file.write_bytes(damaged)
            with pytest.raises(
                errors.DamagedCheckpointError, match=rf"data-00000-of-00001 is damaged: .*'{key}'.*({message})|({message}).*"
            ):
                open_checkpoint(path).read(key)
    file.unlink()
    with pytest.raises(errors.DamagedCheckpointError, match=r"data-00000-of-00001: the bytes of 'cut' could not be read"):
        open_checkpoint(path).read("cut")
    file.mkdir()
    with pytest.raises(errors.DamagedCheckpointError, match=r"data-00000-of-00001: the bytes of 'cut' could not be read"):
        open_checkpoint(path).read("cut")


def test_an_index_that_is_cut_or_changed(tmp_path):
    path = tf.write_bundle(tmp_path / "ckpt", values(), per_block=2)
    file = tmp_path / "ckpt.index"
    data = file.read_bytes()
    nothing = tf.block([])
    metadata = data.index(nothing)
    for at in range(0, len(data), 3):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            file.write_bytes(damaged)
            in_footer = len(data) - 48 <= at < len(data) - 8  # of which the places of the metadata are not used, nor the zeros
            if len(damaged) == len(data) and (metadata <= at < metadata + len(nothing) or in_footer):
                continue
            with pytest.raises(errors.DamagedCheckpointError, match=r"ckpt\.index is damaged: "):
                open_checkpoint(path).read("kernel")


def with_header(record):
    def change(records):
        if record is None:
            del records[b""]
        else:
            records[b""] = record

    return change


HEADERS = {
    "none": (None, "is damaged: it has no header, the record with the empty key"),
    "no files": (tf.header(0), "is damaged: it says that the tensors are in 0 files"),
    "another order": (tf.header(1, 2), r"is damaged: it names the order of bytes 2, but there are only 0 \(little\) and 1 \(big\)"),
    "no message": (b"\x0b", "is damaged: the record of the header cannot be parsed, a field has the unknown wire type 3"),
    "newer readers": (
        tf.header(1, 0, ((1, 9), (2, 2))),
        "is for readers of version 2 or newer of the format, and this one is of version 1",
    ),
    "not this version": (
        tf.header(1, 0, ((1, 9), (3, 1))),
        "says that readers of version 1 of the format, like this one, must not",
    ),
    "not these versions": (tf.header(1, 0, ((1, 9), (3, b"\x00\x01"))), "says that readers of version 1 of the format"),
}


@pytest.mark.parametrize(("record", "message"), HEADERS.values(), ids=HEADERS)
def test_a_header_that_cannot_be_true(tmp_path, record, message):
    path = tf.write_bundle(tmp_path / "ckpt", values(), changes=with_header(record))
    with pytest.raises(errors.CheckpointError, match=rf"ckpt\.index {message}"):
        replicant.load_checkpoint(path)


def slices(*own, shape=(8,), parts=None):
    """A change: the tensor has these slices; `parts` are records of slices by number."""

    def change(records):
        records[b"cut"] = tf.entry(9, shape, 0, slices=[tf.extents(*each) for each in own])
        for key in [key for key in records if key.startswith(b"\0")]:
            del records[key]
        for i, each in enumerate(own):
            sizes = tuple(size if n is None else n for (_, n), size in zip(each, shape, strict=True))
            record = tf.entry(9, sizes, 8 * int(np.prod(sizes)), offset=8 * each[0][0])
            records[slice_key(b"cut", tuple((a, -1 if n is None else n) for a, n in each))] = (parts or {}).get(i, record)

    return change


SLICES = {
    "a hole": (slices(((0, 4),), ((5, 3),)), r"the 2 slices of 'cut' have 7 elements, but its shape \(8,\) has 8"),
    "an overlap": (
        slices(((0, 4),), ((3, 4),)),
        r"the slice \(\(3, 7\),\) of 'cut' has elements that another slice has, too",
    ),
    "too many": (slices(((0, 8),), ((0, 4),)), r"the 2 slices of 'cut' have 12 elements, but its shape \(8,\) has 8"),
    "another dtype": (
        slices(((0, 4),), ((4, 4),), parts={1: tf.entry(1, (4,), 16)}),
        r"the slice \(\(4, 4\),\) of 'cut' should have shape \(4,\) and dtype number 9, but has \(4,\) and 1",
    ),
    "another shape": (
        slices(((0, 4),), ((4, 4),), parts={1: tf.entry(9, (2, 2), 32)}),
        r"the slice \(\(4, 4\),\) of 'cut' should have shape \(4,\) and dtype number 9, but has \(2, 2\) and 9",
    ),
    "the same bytes": (
        slices(((0, 4),), ((4, 4),), parts={1: tf.entry(9, (4,), 32, offset=8)}),
        "two slices of 'cut' are at byte 8 of the data file with the number 0",
    ),
    "slices of slices": (
        slices(((0, 4),), ((4, 4),), parts={1: tf.entry(9, (4,), 0, slices=[tf.extents((0, 4))])}),
        r"the slice \(\(4, 4\),\) of 'cut' should have shape",
    ),
    "more than there is": (
        slices(((0, 1 << 39),), ((1 << 39, 1 << 39),), shape=(1 << 40,)),
        r"the bytes of 'cut' should be 0 to 4398046511104 of it, but it has",
    ),
}


@pytest.mark.parametrize(("change", "message"), SLICES.values(), ids=SLICES)
def test_slices_that_cannot_be_true(tmp_path, change, message):
    path = tf.write_bundle(tmp_path / "ckpt", {**values(), "kernel": np.arange(1000)}, changes=change)
    with pytest.raises(errors.DamagedCheckpointError, match=rf"is damaged: {message}"):
        open_checkpoint(path).read("cut")


def test_a_slice_of_no_tensor(tmp_path):
    path = tf.write_bundle(
        tmp_path / "ckpt",
        values(),
        changes=lambda records: records.__setitem__(slice_key(b"other", ((0, 1),)), tf.entry(9, (1,), 8)),
    )
    with pytest.raises(
        errors.DamagedCheckpointError, match=r"ckpt\.index is damaged: it has the slice '.*other.*', which no tensor has"
    ):
        open_checkpoint(path)


def test_slices_that_are_no_grid(monkeypatch):
    boxes = [((0, 2), (0, 6)), ((2, 6), (0, 3)), ((2, 6), (3, 6))]
    _cover.check_cover("file", "cut", (6, 6), boxes)
    monkeypatch.setattr(_cover, "_MOST_CELLS", 3)
    with pytest.raises(errors.DamagedCheckpointError, match="file is damaged: the 3 slices of 'cut' are not a grid, or nearly one"):
        _cover.check_cover("file", "cut", (6, 6), boxes)
