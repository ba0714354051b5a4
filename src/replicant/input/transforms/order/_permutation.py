"""Pseudorandom permutations of 0 to n - 1, of which any part can be computed without the rest.

Up to `_TABLE` numbers are sorted by keyed random numbers, which makes all orders equally likely. Beyond that, a Feistel network
permutes the numbers below the next power of two: two halves of the bits take turns in changing each other. What it moves to n or
above is permuted again, until it is below n.
"""

import functools
import hashlib

import numpy as np

_TABLE = 1 << 16
_CHUNK = 4096  # numbers that are permuted at once
_ROUNDS = 8
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of SplitMix64
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


class Permutation:
    """A permutation of the numbers below ``size``, which ``key`` determines.

    Args:
        size: How many numbers there are, at most 2**63.
        key: Whole numbers of any size.

    >>> order = Permutation(5, (1, 2))
    >>> sorted(order.at(np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    >>> far = Permutation(2**40, (1, 2)).at(np.arange(2**40 - 2, 2**40))
    >>> far.shape, bool((far < 2**40).all())
    ((2,), True)
    """

    def __init__(self, size: int, key: tuple[int, ...]) -> None:
        self.size = size
        digest = hashlib.blake2b(" ".join(map(str, key)).encode(), digest_size=8 * _ROUNDS).digest()
        self.keys = np.frombuffer(digest, "<u8").astype(np.uint64)
        bits = max(2, (size - 1).bit_length())
        self.low_bits = np.uint64(bits // 2)
        self.low, self.high = (np.uint64((1 << count) - 1) for count in (bits // 2, bits - bits // 2))

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers at these places, as int64."""
        if self.size <= _TABLE:
            return self._table[places]
        numbers = self._permuted(places.astype(np.uint64))
        limit = np.uint64(self.size)
        while len(outside := np.flatnonzero(numbers >= limit)):
            numbers[outside] = self._permuted(numbers[outside])
        return numbers.astype(np.int64)

    def all(self) -> np.ndarray:
        """Return the numbers at all places."""
        return self.at(np.arange(self.size))

    @functools.cached_property
    def _table(self) -> np.ndarray:
        numbers = np.arange(self.size, dtype=np.uint64)
        for key in self.keys[:2]:
            numbers = _mixed(numbers + key)
        return np.argsort(numbers, kind="stable")

    def _permuted(self, numbers: np.ndarray) -> np.ndarray:
        low, high = numbers & self.low, numbers >> self.low_bits
        for i in range(0, _ROUNDS, 2):
            low ^= _mixed(high + self.keys[i]) & self.low
            high ^= _mixed(low + self.keys[i + 1]) & self.high
        return high << self.low_bits | low


class Chunks:
    """Reads a permutation in order. It is computed in aligned chunks, when they are reached."""

    def __init__(self, size: int, key: tuple[int, ...]) -> None:
        self.permutation = Permutation(size, key)
        self._chunk = -1
        self._numbers = np.empty(0, np.int64)

    def after(self, place: int, limit: int) -> np.ndarray:
        """Return the numbers from a place on: at least one, at most ``limit``. The place is below the size."""
        chunk, start = divmod(place, _CHUNK)
        if chunk != self._chunk:
            first = chunk * _CHUNK
            self._numbers = self.permutation.at(np.arange(first, min(first + _CHUNK, self.permutation.size)))
            self._chunk = chunk
        return self._numbers[start : start + limit]


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Random numbers that belong to these, which are overwritten. Different numbers stay different."""
    numbers ^= numbers >> _SHIFTS[0]
    numbers *= _FACTORS[0]
    numbers ^= numbers >> _SHIFTS[1]
    numbers *= _FACTORS[1]
    numbers ^= numbers >> _SHIFTS[2]
    return numbers
