"""Writes the files of TensorFlow's checkpoints byte by byte, so that tests can put into them what TensorFlow would not."""

import struct

import google_crc32c
import ml_dtypes
import numpy as np

from replicant.checkpoint.tensorflow.files._slice_key import slice_key

NUMBERS = {
    np.dtype(name): number
    for number, name in [
        (1, "float32"),
        (2, "float64"),
        (3, "int32"),
        (4, "uint8"),
        (5, "int16"),
        (6, "int8"),
        (7, "object"),
        (8, "complex64"),
        (9, "int64"),
        (10, "bool"),
        (14, ml_dtypes.bfloat16),
        (18, "complex128"),
        (19, "float16"),
        (23, "uint64"),
    ]
}
MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)


class Fixed32(int):
    """A number that is written in four bytes."""


def masked(checksum):
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(*fields):
    """A message of (number, value): an integer, four bytes, or bytes."""
    out = b""
    for number, value in fields:
        if isinstance(value, Fixed32):
            out += varint(number << 3 | 5) + struct.pack("<I", value)
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def shape(*sizes):
    return message(*((2, message((1, size))) for size in sizes))


def extents(*pairs):
    """A TensorSliceProto; a length of None is the whole axis."""
    return message(*((1, message(*([(1, a)] if a else []), *([(2, n)] if n is not None else []))) for a, n in pairs))


def header(num_shards=1, endianness=0, version=((1, 1),)):
    return message((1, num_shards), (2, endianness), (3, message(*version)))


def entry(number, sizes, size, *, shard=0, offset=0, checksum=0, slices=()):
    return message(
        (1, number), (2, shape(*sizes)), (3, shard), (4, offset), (5, size), (6, Fixed32(checksum)), *((7, each) for each in slices)
    )


def block(entries, *, interval=16, compress=None):
    """A block with its trailer: keys are written in full every so many entries."""
    out, restarts, before = b"", [], b""
    for i, (key, value) in enumerate(entries):
        shared = 0
        if i % interval == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    out += b"".join(struct.pack("<I", at) for at in restarts or [0]) + struct.pack("<I", len(restarts) or 1)
    return sealed(compress(out) if compress else out, 1 if compress else 0)


def sealed(contents, compression=0):
    data = contents + bytes([compression])
    return data + struct.pack("<I", masked(google_crc32c.value(data)))


def table(entries, *, per_block=1 << 30, interval=16, compress=None):
    """A table of keys and values, in the order in which they are given."""
    entries, out, index = list(entries), b"", []
    for i in range(0, len(entries), per_block):
        part = entries[i : i + per_block]
        data = block(part, interval=interval, compress=compress)
        index.append((part[-1][0], varint(len(out)) + varint(len(data) - 5)))
        out += data
    return ended(out, index)


def ended(blocks, index):
    """Blocks, with an index and a footer behind them."""
    nothing, found = block([]), block(index)
    handles = varint(len(blocks)) + varint(len(nothing) - 5) + varint(len(blocks) + len(nothing)) + varint(len(found) - 5)
    return blocks + nothing + found + handles.ljust(40, b"\0") + MAGIC


def raw(array, big_endian=False):
    """The bytes of a tensor, and its checksum without the mask."""
    order = ">" if big_endian else "<"
    if array.dtype.hasobject:
        texts = array.reshape(-1).tolist()
        lengths = b"".join(struct.pack(f"{order}I", len(text)) for text in texts)
        checksum = struct.pack(f"{order}I", masked(google_crc32c.value(lengths)))
        joined = b"".join(texts)
        return b"".join(varint(len(text)) for text in texts) + checksum + joined, google_crc32c.value(lengths + checksum + joined)
    data = array.byteswap().tobytes() if big_endian else array.tobytes()
    return data, google_crc32c.value(data)


def encoded(name):
    return name.encode("utf-8", "surrogateescape")


def write_bundle(prefix, tensors, *, shards=1, big_endian=False, changes=None, **how):
    """Write a bundle.

    Args:
        tensors: By name an array, or (shape, dtype, [(slice, array)]) for one in slices.
        changes: A function of the records by their keys, before they are written.
        how: Arguments of `table`.
    """
    records, data = {b"": header(shards, int(big_endian))}, [b""] * shards

    def add(key, array, at):
        bytes_of, checksum = raw(array, big_endian)
        records[key] = entry(
            NUMBERS[array.dtype], array.shape, len(bytes_of), shard=at, offset=len(data[at]), checksum=masked(checksum)
        )
        data[at] += bytes_of

    for i, (name, value) in enumerate(tensors.items()):
        if isinstance(value, np.ndarray):
            add(encoded(name), value, i % shards)
            continue
        sizes, dtype, slices = value
        records[encoded(name)] = entry(NUMBERS[np.dtype(dtype)], sizes, 0, slices=[extents(*own) for own, _ in slices])
        for j, (own, array) in enumerate(slices):
            add(slice_key(encoded(name), tuple((a, -1 if n is None else n) for a, n in own)), array, j % shards)
    if changes:
        changes(records)
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(sorted(records.items()), **how))
    for i, each in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{i:05d}-of-{shards:05d}").write_bytes(each)
    return prefix


def saver_meta(*tensors, version=((1, 1),)):
    """The record with the empty key in a file of the first Saver: of each tensor its name, dtype number, sizes and slices."""
    metas = [
        message((1, name.encode()), (2, shape(*sizes)), (3, number), *((4, extents(*own)) for own in slices))
        for name, number, sizes, slices in tensors
    ]
    return message((1, message(*((1, each) for each in metas), (2, message(*version)))))


def saver_slice(name, own, tensor):
    """The key and the record of a slice in a file of the first Saver; `tensor` is a TensorProto."""
    key = slice_key(name.encode(), tuple((a, -1 if n is None else n) for a, n in own))
    return key, message((2, message((1, name.encode()), (2, extents(*own)), (3, tensor))))
