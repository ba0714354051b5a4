"""Blocks that Snappy has compressed, with the optional package cramjam."""

import importlib
from typing import Any

from ...._protobuf import MessageError, varint
from ....errors import ConfigurationError
from ._damage import damaged

_MOST_FOR_A_BYTE = 32  # bytes that one byte can stand for: 64 in a copy of three, 11 in one of two


def decompressed(file: Any, data: memoryview) -> bytes:
    """Return what a block of a file holds.

    Raises:
        ConfigurationError: If cramjam is not installed.
        DamagedCheckpointError: If the block is damaged. What it says of its size is checked first.
    """
    try:
        size, _ = varint(data, 0)
    except MessageError as error:
        raise damaged(file, f"a compressed block is cut off, {error}") from error
    if size > _MOST_FOR_A_BYTE * len(data):
        raise damaged(file, f"a compressed block of {len(data)} bytes says that it holds {size}, more than Snappy can put there")
    try:
        found = bytes(_cramjam(file).snappy.decompress_raw(bytes(data)))
    except ConfigurationError:
        raise
    except Exception as error:
        raise damaged(file, f"a compressed block cannot be decompressed, {error}") from error
    return found


def _cramjam(file: Any) -> Any:
    try:
        return importlib.import_module("cramjam")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{file} has blocks that Snappy has compressed. They are read with cramjam, which cannot be imported ({error}). Run: "
            "pip install 'replicant-jax[snappy]'."
        ) from error
