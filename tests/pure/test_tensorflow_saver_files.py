"""Checkpoints of TensorFlow before 0.12, written here byte by byte: their tables, slices, and values of TensorProto."""

import numpy as np
import pytest

import replicant
from replicant import errors
from replicant._protobuf import MessageError
from replicant.checkpoint.tensorflow import open_checkpoint
from replicant.checkpoint.tensorflow.files._tensor_proto import values_of

from . import _tensorflow_files as tf


def same(found, expected):
    assert (found.dtype, found.shape, found.tolist()) == (expected.dtype, expected.shape, expected.tolist())


def index_of(own):
    return tuple(slice(start, None if length is None else start + length) for start, length in own)


# The number of a dtype, the number of the field and its bytes, and the values.
PROTOS = {
    "float32": (1, (5, np.array([1.5, -2, 0], "<f4").tobytes()), [1.5, -2, 0]),
    "float64": (2, (6, np.array([1.5, -2, 0], "<f8").tobytes()), [1.5, -2, 0]),
    "int32": (3, (7, tf.varint(1) + tf.varint(-1) + tf.varint(1 << 30)), [1, -1, 1 << 30]),
    "uint8": (4, (7, tf.varint(1) + tf.varint(255) + tf.varint(0)), [1, 255, 0]),
    "int16": (5, (7, tf.varint(-300) + tf.varint(5) + tf.varint(0)), [-300, 5, 0]),
    "int8": (6, (7, tf.varint(-128) + tf.varint(127) + tf.varint(0)), [-128, 127, 0]),
    "complex64": (8, (9, np.array([1, 2, 3, 4, 5, 6], "<f4").tobytes()), [1 + 2j, 3 + 4j, 5 + 6j]),
    "int64": (9, (10, tf.varint(-1) + tf.varint(1 << 62) + tf.varint(-(1 << 63))), [-1, 1 << 62, -(1 << 63)]),
    "bool": (10, (11, bytes([1, 0, 1])), [True, False, True]),
    "bfloat16": (14, (13, tf.varint(0x3F80) + tf.varint(0xC060) + tf.varint(0)), [1.0, -3.5, 0.0]),
    "complex128": (18, (12, np.array([1, 2, 3, 4, 5, 6], "<f8").tobytes()), [1 + 2j, 3 + 4j, 5 + 6j]),
    "float16": (19, (13, tf.varint(0x3C00) + tf.varint(0xC000) + tf.varint(0)), [1.0, -2.0, 0.0]),
    "uint32": (22, (16, tf.varint(1) + tf.varint((1 << 32) - 1) + tf.varint(0)), [1, (1 << 32) - 1, 0]),
    "uint64": (23, (17, tf.varint(1) + tf.varint((1 << 64) - 1) + tf.varint(0)), [1, (1 << 64) - 1, 0]),
    "float8_e5m2": (24, (18, bytes([0x3C, 0xC0, 0])), [1.0, -2.0, 0.0]),
    "float8_e4m3fn": (25, (18, bytes([0x38, 0xC0, 0])), [1.0, -2.0, 0.0]),
    "int4": (29, (7, tf.varint(-8) + tf.varint(7) + tf.varint(0)), [-8, 7, 0]),
}


@pytest.mark.parametrize("name", PROTOS)
def test_fields_of_a_tensor_proto(name):
    number, field, values = PROTOS[name]
    dtype = np.dtype(name)
    found = values_of(memoryview(tf.message(field)), number, dtype, 3)
    assert found.dtype == dtype
    assert found.tolist() == values
    content = np.array([dtype.type(value) for value in values], dtype).tobytes()
    assert values_of(memoryview(tf.message((4, content))), number, dtype, 3).tolist() == values
    with pytest.raises(MessageError, match="it has 3 values in place of 4"):
        values_of(memoryview(tf.message(field)), number, dtype, 4)


def test_values_of_a_tensor_proto_that_are_not_packed():
    one_by_one = tf.message((7, 3), (7, 2), (7, -1))
    assert values_of(memoryview(one_by_one), 3, np.dtype(np.int32), 3).tolist() == [3, 2, -1]
    floats = tf.message((5, tf.Fixed32(0x3F800000)), (5, np.array([2.0, 3.0], "<f4").tobytes()))
    assert values_of(memoryview(floats), 1, np.dtype(np.float32), 3).tolist() == [1.0, 2.0, 3.0]
    strings = tf.message((8, b"a"), (8, b""))
    assert values_of(memoryview(strings), 7, np.dtype(object), 2).tolist() == [b"a", b""]
    assert values_of(memoryview(b""), 1, np.dtype(np.float32), 0).tolist() == []


BAD_PROTOS = [
    ((5, b"abc"), 1, "float32", "its 3 bytes are not a whole number of values of dtype float32"),
    ((5, 7), 1, "float32", "a field has the integer 7 in place of bytes"),
    ((7, tf.varint(300)), 6, "int8", "one of its values does not fit into dtype int8"),
    ((13, tf.varint(1 << 20)), 19, "float16", "one of its values does not fit into dtype uint16"),
    ((7, b"\x80"), 3, "int32", "a packed integer has no end, or more than 64 bits"),
    ((7, b"\xff" * 9 + b"\x02"), 3, "int32", "a packed integer has no end, or more than 64 bits"),
    ((8, 5), 7, "object", "a field has the integer 5 in place of bytes"),
]


@pytest.mark.parametrize(("field", "number", "dtype", "message"), BAD_PROTOS)
def test_a_tensor_proto_with_other_values(field, number, dtype, message):
    with pytest.raises(MessageError, match=message):
        values_of(memoryview(tf.message(field)), number, np.dtype(dtype), 1)


def saver_file(path, tensors, **how):
    """Write a file of the first Saver: of each tensor its array and its slices."""
    metas, records = [], []
    for name, (array, cuts) in tensors.items():
        number = tf.NUMBERS[array.dtype]
        metas.append((name, number, array.shape, cuts))
        for own in cuts:
            part = array[index_of(own)] if own else array
            field = {1: 5, 9: 10}[number]
            packed = part.tobytes() if number == 1 else b"".join(map(tf.varint, part.reshape(-1).tolist()))
            records.append(tf.saver_slice(name, own, tf.message((field, packed))))
    path.write_bytes(tf.table(sorted([(b"", tf.saver_meta(*metas)), *records]), **how))
    return path


def test_a_file_of_the_first_saver(tmp_path):
    kernel = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = saver_file(
        tmp_path / "model.ckpt",
        {
            "step": (np.array(5), [()]),
            "kernel": (kernel, [((0, 1), (0, None)), ((1, 2), (0, None))]),
            "b": (np.arange(3), [((0, None),)]),
        },
        per_block=2,
    )
    assert replicant.list_variables(path) == [("b", (3,)), ("kernel", (3, 4)), ("step", ())]
    checkpoint = open_checkpoint(path)
    same(checkpoint.read("kernel"), kernel)
    same(checkpoint.read_part("kernel", (slice(2, 3), slice(1, 3))), kernel[2:3, 1:3])
    assert replicant.load_variable(path, "step") == 5
    assert checkpoint.read("b").tolist() == [0, 1, 2]


def test_several_files_of_the_first_saver(tmp_path):
    kernel = np.arange(12, dtype=np.float32).reshape(3, 4)
    cuts = [((0, 1), (0, None)), ((1, 2), (0, None))]
    for i, own in enumerate(cuts):
        saver_file(tmp_path / f"model.ckpt-0000{i}-of-00002", {"kernel": (kernel, [own])})
    same(open_checkpoint(tmp_path / "model.ckpt").read("kernel"), kernel)
    (tmp_path / "model.ckpt-00000-of-00002").unlink()
    with pytest.raises(errors.CheckpointError, match=r"in several files, .* -00000-of-00002 and so on\. 1 of them are there"):
        open_checkpoint(tmp_path / "model.ckpt")
