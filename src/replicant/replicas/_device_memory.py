"""How much memory a device has: what it says itself, and what a user says."""

import math
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError


def memory_of_device(device: Any) -> int | None:
    """Return the bytes of a device's memory, if it says them. CPU devices share the machine's."""
    return (device.memory_stats() or {}).get("bytes_limit") if device.platform != "cpu" else None


def check_limit(limit: Any, what: str) -> int | None:
    """Return the bytes of a device's memory that a user has passed to the method `what`; None if it was none.

    Raises:
        ArgumentError: If it is not positive, or not finite.
        ArgumentTypeError: If it is not a number.
    """
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise ArgumentTypeError(f"{what}: limit must be a number of bytes; got {limit!r} of type {type(limit).__name__}.")
    if not limit > 0 or not math.isfinite(limit):
        raise ArgumentError(f"{what}: limit must be a positive number of bytes, such as 16e9; got {limit}.")
    return int(limit)
