"""Tensors of strings in a bundle: the lengths as varints, a checksum of them, and the bytes of all strings.

The checksum of the lengths is over numbers of 32 bits (64 for those that need it) in the order of bytes of the machine that wrote
them. The tensor's own checksum goes on with the four bytes of that one as they are in the file, and with the bytes of the strings.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...._crc32c import crc32c, masked
from ...._protobuf import varint
from ._damage import require

_LARGEST_WORD = (1 << 32) - 1


def strings_of(file: Any, data: np.ndarray, count: int, big_endian: bool, of: str) -> tuple[np.ndarray, int]:
    """Return the strings of a tensor as an array of bytes objects, and their checksum.

    Args:
        file: The file that they are of, for messages.
        data: All bytes of the tensor.
        count: How many strings there are.
        big_endian: The order of bytes of the machine that wrote them.
        of: Whose they are, as ``" of 'key'"``.

    Raises:
        MessageError: If a length is none.
        DamagedCheckpointError: If the strings do not fill the bytes, or the checksum of the lengths is wrong.
    """
    view, lengths, at = data.data, [], 0
    for _ in range(count):
        length, at = varint(view, at)
        lengths.append(length)
    stop = at + 4 + sum(lengths)
    require(stop == len(data), file, f"the bytes{of} are {len(data)}, but its strings need {stop}")
    order = ">" if big_endian else "<"
    checksum = crc32c(_packed(lengths, order))
    (stored,) = struct.unpack_from(f"{order}I", view, at)
    require(
        stored == masked(checksum),
        file,
        f"the lengths of the strings{of} should have the checksum 0x{stored:08x}, but they give 0x{masked(checksum):08x}",
    )
    return _cut(view, lengths, at + 4), crc32c(data[at:], checksum)


def _packed(lengths: Sequence[int], order: str) -> bytes:
    if all(length <= _LARGEST_WORD for length in lengths):
        return np.array(lengths, f"{order}u4").tobytes()
    return b"".join(struct.pack(f"{order}{'I' if length <= _LARGEST_WORD else 'Q'}", length) for length in lengths)


def _cut(view: memoryview, lengths: Sequence[int], at: int) -> np.ndarray:
    found = np.empty(len(lengths), object)
    for i, length in enumerate(lengths):
        found[i] = bytes(view[at : at + length])
        at += length
    return found
