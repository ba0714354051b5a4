"""Blocks as bytes: a JSON description and raw arrays. Reading them executes nothing."""

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...errors import ElementError
from ..graph._blocks import Block, Boxed, Column, Dense
from ..graph._structure import STRING, spec_of

_SIZE = struct.Struct("<Q")
_STRICT = "surrogateescape"  # file names need not be UTF-8


def encode_block(block: Block) -> bytes:
    """Encode a block without its structure."""
    described, payload = [], []
    for column in block.columns:
        rows = list(column.rows())
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
    """Decode a block.

    Raises:
        LookupError, TypeError, ValueError, struct.error: If these bytes are not a block of this structure.
    """
    (size,) = _SIZE.unpack_from(data)
    head = json.loads(data[_SIZE.size : _SIZE.size + size])
    payload = memoryview(data)[_SIZE.size + size :]
    at = 0
    columns: list[Column] = []
    for column in head["columns"]:
        arrays = []
        for description in column["arrays"]:
            stop = at + description["bytes"]
            arrays.append(_decode_array(description, payload[at:stop].tobytes()))  # a copy is aligned
            at = stop
        numbers = column["stacked"] and arrays[0].dtype != STRING
        columns.append(Dense(arrays[0]) if numbers else Boxed.of([row for array in arrays for row in array]))
    if len(columns) != structure.num_leaves or any(len(column.refs) != head["size"] for column in columns):
        raise ValueError(f"a block of {head['size']} elements has other columns")
    return Block(structure, columns, head["size"])


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
    shape = tuple(description["shape"])
    if "dtype" in description:
        return np.frombuffer(data, np.dtype(description["dtype"])).reshape(shape)
    out = np.empty(len(description["sizes"]), object)
    out[:] = list(_texts(data, description["sizes"], description["is_text"]))
    return out.reshape(shape)


def _texts(data: bytes, sizes: list[int], is_text: str) -> Iterator[str | bytes]:
    at = 0
    for size, text in zip(sizes, is_text, strict=True):
        piece = data[at : at + size]
        yield piece.decode(errors=_STRICT) if text == "1" else piece
        at += size
