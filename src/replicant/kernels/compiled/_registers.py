"""How wide the vectors are that numba's functions compute with."""

import functools
import os
from pathlib import Path

from ...errors import ConfigurationError

VARIABLE = "REPLICANT_VECTOR_BITS"
_NEEDED = {16: {"avx512vl"}, 8: {"avx2", "fma"}}  # numbers in a vector, and the features of processors that have such registers


def width() -> int | None:
    """Return how many float32 numbers are in a vector, or None if the processor has neither AVX-512 nor AVX2.

    Raises:
        ConfigurationError: If the environment variable REPLICANT_VECTOR_BITS is set to something else than 256.
    """
    text = os.environ.get(VARIABLE, "")
    if text not in {"", "256"}:
        raise ConfigurationError(
            f"{VARIABLE} is {text!r}. Write 256 to compute with AVX2 on a processor with AVX-512, or leave it out."
        )
    return next((numbers for numbers, needed in _NEEDED.items() if needed <= _features() and not (text and numbers == 16)), None)


@functools.cache
def _features() -> frozenset[str]:
    """Return the features of the processor that Linux names."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # no Linux
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
