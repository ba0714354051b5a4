"""How large one record of a file may be. A small file can hold a huge one: compressed, or in what its header says."""

from typing import Any

from ...errors import DatasetError
from .._arguments import whole

MAX_RECORD_BYTES = 1 << 28  # of one record, uncompressed; it is in memory as a whole, and a few copies of it may be
MAX_SHARD_BYTES = 1 << 30  # of one shard of MDS, uncompressed, likewise


def checked_limit(method: str, limit: Any, name: str = "max_record_bytes") -> int:
    """Return the limit that a user gives.

    Raises:
        ArgumentError: If it is below 1.
        ArgumentTypeError: If it is not a whole number.
    """
    return whole(method, name, limit, 1)


def too_large(
    method: str,
    path: str,
    offset: int,
    most: int,
    *,
    size: int | None = None,
    what: str = "record",
    argument: str = "max_record_bytes",
) -> DatasetError:
    """Return the error of a record with more than ``most`` bytes, or with ``size`` bytes, if it says so."""
    has = f"has more than {most:,} bytes" if size is None else f"has {size:,} bytes, more than {most:,}"
    return DatasetError(
        f"{method}: the {what} at byte {offset} of {path!r} {has}, the most that {argument} allows. "
        f"If the file is sound, give a larger {argument}; otherwise copy or write it again, or check compression_type."
    )
