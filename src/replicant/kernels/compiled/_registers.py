"""How wide the vectors are that numba's functions compute with, and for which kind of processor there is code in the package."""

import functools
import os
from pathlib import Path

from ...errors import ConfigurationError

VARIABLE = "REPLICANT_VECTOR_BITS"
_NEEDED = {16: {"avx512vl"}, 8: {"avx2", "fma"}}  # numbers in a vector, and the features of processors that have such registers

# The kinds of processors, as compilers name them, by the numbers in a vector, and what they have more than the kind before.
KINDS = {8: "x86-64-v3", 16: "x86-64-v4"}
_OF_KINDS = {
    8: {"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    16: {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"},
}


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


def kind() -> str | None:
    """Return the kind of this processor, as far as the vectors in use need it; None if it has not all of a kind's features."""
    numbers = width()
    needed = set().union(*(features for each, features in _OF_KINDS.items() if numbers is not None and each <= numbers))
    return KINDS[numbers] if numbers is not None and needed <= _features() else None


@functools.cache
def _features() -> frozenset[str]:
    """Return the features of the processor that Linux names."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # no Linux
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
