"""Reports a batch that does not fit in memory before it is built; the system would kill the process without a message."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ...errors import DatasetError

_WORTH_A_LOOK = 1 << 30  # bytes; smaller batches are not checked, because the check takes longer than building them
_GROUP = Path("/sys/fs/cgroup")


def check_room(name: Callable[[], str], shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Check that there is room for an array.

    Raises:
        DatasetError: If it needs more memory than is available.
    """
    needed = math.prod(shape) * dtype.itemsize
    if needed < _WORTH_A_LOOK:
        return
    available = available_bytes()
    if available is not None and needed > available:
        raise DatasetError(
            f"A batch in which {name()} has shape {shape} and dtype {dtype} needs {needed / 2**30:,.1f} GiB, but "
            f"{available / 2**30:,.1f} GiB of memory are available. Use a smaller batch size or a smaller dtype."
        )


def available_bytes() -> int | None:
    """Return the memory that this process can still take, or None if the system does not say."""
    found = [each for each in (_of_machine(), _of_group()) if each is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux: free memory is unknown, so all memory is the upper bound
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    kibibytes = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    return kibibytes["MemAvailable"] * 1024


def _of_group() -> int | None:
    """The memory that the container may still take."""
    try:
        limit, used = ((_GROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return None
    return None if limit == "max" else int(limit) - int(used)
