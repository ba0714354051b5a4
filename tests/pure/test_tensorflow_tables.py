"""The tables in which TensorFlow keeps the index of a checkpoint: blocks and entries that cannot be true are errors."""

import struct

import pytest

import replicant
from replicant import errors

from . import _tensorflow_files as tf


def entries():
    return [(b"", tf.header()), (b"a", tf.entry(1, (), 0)), (b"b", tf.entry(1, (), 0))]


def one(key, shared, rest, size, value=b""):
    return tf.varint(shared) + tf.varint(rest) + tf.varint(size) + key + value


LAST = struct.pack("<II", 0, 1)  # of a block: its restarts and their number
FIRST = "the block at byte 0 cannot be parsed, "
BLOCKS = {
    "twice the same key": (
        one(b"", 0, 0, 0) + one(b"a", 0, 1, 0) + one(b"a", 0, 1, 0) + LAST,
        0,
        "the key 'a' is there twice, or after one that should follow it",
    ),
    "keys in another order": (one(b"b", 0, 1, 0) + one(b"a", 0, 1, 0) + LAST, 0, "the key 'a' is there twice, or after one"),
    "shares more than there is": (one(b"a", 5, 1, 0) + LAST, 0, f"{FIRST}an entry before byte 3 is longer than what is there"),
    "a longer value": (one(b"a", 0, 1, 1 << 40) + LAST, 0, f"{FIRST}an entry before byte 8 is longer than what is there"),
    "a longer key": (one(b"a", 0, 1 << 62, 0) + LAST, 0, f"{FIRST}an entry before byte 11 is longer than what is there"),
    "many restarts": (struct.pack("<I", 1 << 31), 0, f"{FIRST}it says that it has 2147483648 restarts, but has 4 bytes"),
    "no restarts": (b"ab", 0, f"{FIRST}it has 2 bytes"),
    "no varint": (b"\xff" * 3 + LAST, 0, f"{FIRST}a number has no end before byte 3 of 3"),
    "keys that grow": (
        one(b"x" * 2000, 0, 2000, 0) + b"".join(one(b"y", 2000 + i, 1, 0) for i in range(3000)) + LAST,
        0,
        rf"{FIRST}an entry before byte \d+ is longer than what is there",
    ),
    "other compression": (LAST, 2, r"the block at byte 0 has the compression 2, but there are only 0 \(none\) and 1 \(Snappy\)"),
    "snappy, huge": (
        tf.varint(1 << 40) + b"\x00a",
        1,
        "a compressed block of 8 bytes says that it holds 1099511627776, more than Snappy can put there",
    ),
    "snappy, no size": (b"\xff", 1, "a compressed block is cut off, a number has no end"),
    "snappy, other": (tf.varint(9) + b"\x00a", 1, "a compressed block cannot be decompressed"),
}


@pytest.mark.parametrize(("contents", "compression", "message"), BLOCKS.values(), ids=BLOCKS)
def test_a_block_that_cannot_be_true(tmp_path, contents, compression, message):
    if compression == 1:
        pytest.importorskip("cramjam")
    data = tf.sealed(contents, compression)
    (tmp_path / "ckpt.index").write_bytes(tf.ended(data, [(b"\xff", tf.varint(0) + tf.varint(len(data) - 5))]))
    with pytest.raises(errors.DamagedCheckpointError, match=rf"ckpt\.index is damaged: {message}"):
        replicant.load_checkpoint(tmp_path / "ckpt")


INDICES = {
    "a block past the end": (
        [(b"z", tf.varint(0) + tf.varint(1 << 50))],
        r"a block should be bytes 0 to 1125899906842629 of it, but the",
    ),
    "no handle": ([(b"z", b"\x80")], "the index of its blocks cannot be parsed, a number has no end before byte 1 of 1"),
    "another last key": (None, "the key 'b' is in another block than the index of the blocks says"),
    "the same block again": ("twice", "the key '' is there twice"),
}


@pytest.mark.parametrize(("index", "message"), INDICES.values(), ids=INDICES)
def test_an_index_of_blocks_that_cannot_be_true(tmp_path, index, message):
    data = tf.block(entries())
    handle = tf.varint(0) + tf.varint(len(data) - 5)
    index = [(b"a", handle)] if index is None else [(b"b", handle), (b"c", handle)] if index == "twice" else index
    (tmp_path / "ckpt.index").write_bytes(tf.ended(data, index))
    with pytest.raises(errors.DamagedCheckpointError, match=rf"ckpt\.index is damaged: {message}"):
        replicant.load_checkpoint(tmp_path / "ckpt")


def test_no_table(tmp_path):
    for data, message in (
        (b"", "it has 0 bytes, fewer than the end of a table alone"),
        (bytes(48), "it does not end with the number that marks the end of a table"),
        (b"\xff" * 40 + tf.MAGIC, "the index of its blocks cannot be parsed"),
    ):
        (tmp_path / "ckpt.index").write_bytes(data)
        with pytest.raises(errors.DamagedCheckpointError, match=rf"ckpt\.index is damaged: {message}"):
            replicant.load_checkpoint(tmp_path / "ckpt")
