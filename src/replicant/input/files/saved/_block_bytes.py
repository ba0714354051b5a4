"""Blocks as bytes: a JSON description and raw arrays. Reading them executes nothing."""

import functools
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...._untrusted_json import read_json
from ....errors import ElementError
from ...graph._blocks import Block, Boxed, Column, Dense, check_no_lists
from ...graph._structure import STRING, spec_of

_SIZE = struct.Struct("<Q")
_USUAL = 4096  # bytes of a description that is kept for the next block
_LARGE = 32 << 20  # bytes of a block, of which one is in memory when it is read
_STRICT = "surrogateescape"  # file names need not be UTF-8


def encoded_blocks(block: Block, most: int) -> Iterator[tuple[int, bytes]]:
    """Yield the elements in blocks of ``most`` at most, encoded, with their numbers. If they are large, of fewer."""
    for start in range(0, block.size, most):
        part = block.take(slice(start, start + most))
        data = encode_block(part)
        if part.size > 1 and len(data) > _LARGE:
            del data
            yield from encoded_blocks(part, -(-part.size // 2))
        else:
            yield part.size, data


def encode_block(block: Block) -> bytes:
    """Encode a block without its structure."""
    described, payload = [], []
    for column in block.columns:
        rows = list(column.rows())
        check_no_lists(lambda: "A component that is to be written to a file", set(map(type, rows)))
        if not all(isinstance(row, str | bytes) or hasattr(row, "dtype") for row in rows):
            raise ElementError(
                "Elements that hold datasets, as `window` makes them, cannot be written to a file. Make elements of them first, as "
                "`window(3).flat_map(lambda window: window.batch(3))` does."
            )
        same = len({(spec_of(row).shape, spec_of(row).dtype) for row in rows}) == 1
        arrays = [_together(rows)] if same else [_together([row]) for row in rows]
        parts = [_encode_array(array) for array in arrays]
        described.append({"stacked": same, "arrays": [description for description, _ in parts]})
        payload += [data for _, data in parts]
    head = json.dumps({"size": block.size, "columns": described}).encode()
    return b"".join([_SIZE.pack(len(head)), head, *payload])


def decode_block(data: bytes, structure: Any) -> Block:
    """Decode a block. Whoever wrote these bytes is not trusted: all of them are used once, and nothing else is.

    Raises:
        ValueError: If they are not a block of this structure.
    """
    try:
        return _decoded(data, structure)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, struct.error) as error:
        raise ValueError(f"it holds no block ({error})") from error


def _decoded(data: bytes, structure: Any) -> Block:
    (size,) = _SIZE.unpack_from(data)
    text = data[_SIZE.size : _SIZE.size + size]
    head = _usual_head(text) if size <= _USUAL else read_json(text, len(text))
    payload = memoryview(data)[_SIZE.size + size :]
    at = 0
    columns: list[Column] = []
    for column in head["columns"]:
        arrays = []
        for description in column["arrays"]:
            stop = at + _count(description["bytes"])
            if stop > len(payload):
                raise ValueError(f"an array ends at byte {stop} of {len(payload)}")
            arrays.append(_decode_array(description, payload[at:stop].tobytes()))  # a copy is aligned
            at = stop
        if len(arrays) != (1 if column["stacked"] else _count(head["size"])):
            raise ValueError(f"a column of {head['size']} elements has {len(arrays)} arrays")
        numbers = column["stacked"] and arrays[0].dtype != STRING
        columns.append(Dense(arrays[0]) if numbers else Boxed.of([row for array in arrays for row in array]))
    if at != len(payload):
        raise ValueError(f"its arrays have {at} bytes, and it has {len(payload)}")
    if len(columns) != structure.num_leaves or any(len(column.refs) != head["size"] for column in columns):
        raise ValueError(f"a block of {head['size']} elements has other columns")
    return Block(structure, columns, head["size"])


@functools.lru_cache(maxsize=16)
def _usual_head(text: bytes) -> Any:
    """What a description says, which is mostly that of the block before. Nobody writes to it."""
    return read_json(text, len(text))


@functools.lru_cache(maxsize=64)
def _dtype(name: str) -> np.dtype:
    dtype = np.dtype(name)
    if dtype.hasobject or not dtype.itemsize or dtype.name != name:
        raise ValueError(f"no array here has the dtype {name!r}")
    return dtype


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of bytes or elements")
    return value


def _together(rows: list[Any]) -> np.ndarray:
    """Rows of one shape and dtype in one array."""
    out = np.empty((len(rows), *np.shape(rows[0])), spec_of(rows[0]).dtype)
    for i, row in enumerate(rows):
        out[i] = row
    return out


def _encode_array(array: np.ndarray) -> tuple[dict[str, Any], bytes]:
    description: dict[str, Any] = {"shape": array.shape}
    if array.dtype == STRING:
        texts = array.ravel().tolist()
        pieces = [text.encode(errors=_STRICT) if isinstance(text, str) else text for text in texts]
        description["sizes"] = [len(piece) for piece in pieces]
        description["is_text"] = "".join("1" if isinstance(text, str) else "0" for text in texts)
        data = b"".join(pieces)
    else:
        description["dtype"] = array.dtype.name  # extended types such as bfloat16 have no other code than the name
        data = array.astype(array.dtype.newbyteorder("=")).tobytes()
    description["bytes"] = len(data)
    return description, data


def _decode_array(description: dict[str, Any], data: bytes) -> np.ndarray:
    shape = tuple(map(_count, description["shape"]))
    if "dtype" in description:
        dtype = _dtype(description["dtype"])
        array = np.frombuffer(data, dtype)
        if dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:
            raise ValueError("a bool is neither 0 nor 1")
        return array.reshape(shape)
    out = np.empty(len(description["sizes"]), object)
    out[:] = list(_texts(data, description["sizes"], description["is_text"]))
    return out.reshape(shape)


def _texts(data: bytes, sizes: list[int], is_text: str) -> Iterator[str | bytes]:
    at = 0
    for size, text in zip(sizes, is_text, strict=True):
        piece = data[at : at + _count(size)]
        yield piece.decode(errors=_STRICT) if text == "1" else piece
        at += size
    if at != len(data):
        raise ValueError(f"its texts have {at} bytes, and there are {len(data)}")
