"""An open file on an object store of which ranges are read, exactly as asked for: several at once if they are announced."""

import threading
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from ._read_ahead import read_range
from ._retry import RemoteError, Started
from ._seekable import Seekable
from ._store import Store

_HOLE = 1 << 16  # bytes between two ranges that are read rather than asked for separately,
_LARGEST_HOLE = 1 << 20  # and these, if what follows is as large: a request takes as long as many bytes
_PIECE = 8 << 20  # bytes of one request at most
_AHEAD_BYTES = 4 * _PIECE  # that are asked for before they are needed
_MOST_AHEAD = 15  # requests for them


class RangedFile(Seekable):
    """Reads an object like a file that is open for reading. It is for formats that say where they will read.

    ``announce`` names ranges. They are asked for in pieces, some of which are on their way at a time. A piece is dropped once all
    of it was read. So what is held is at most what was announced.

    The object must stay the same while it is read.

    Raises:
        RemoteError: If it cannot be read, has changed, or the store does not answer within the deadline.
        ConfigurationError: If a package is missing.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._pieces: list[_Piece] = []
        self._starts: list[int] = []
        self._unwanted = threading.Event()  # set once nobody waits for the pieces any more
        self.store = Store(url)
        self.facts = self.store.facts()
        self._stopped = False

    @property
    def _size(self) -> int:
        return self.facts.size

    def announce(self, ranges: Iterable[tuple[int, int]], then: Iterable[tuple[int, int]] = ()) -> None:
        """Say which bytes will be read next, each range as where it begins and ends, and which ones probably after that.

        What was announced before, and is not announced again, is forgotten.
        """
        before = {(piece.start, piece.stop): piece for piece in self._pieces if piece.left == piece.stop - piece.start}
        wanted = _pieces_of(ranges, self.facts.size)
        end = max((stop for _, stop in wanted), default=0)
        wanted += [each for each in _pieces_of(then, self.facts.size) if each[0] >= end]
        self._pieces = [before.get(each) or _Piece(*each) for each in wanted]
        self._starts = [piece.start for piece in self._pieces]
        if not any(piece.begun for piece in self._pieces):
            self._leave_requests()
        self._begin_from(0)

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, unless the file ends before."""
        if self._stopped:
            raise RemoteError(f"reading {self.store.url} was interrupted")
        view = memoryview(buffer).cast("B")
        stop = min(self._at + len(view), self.facts.size)
        filled = 0
        while self._at < stop:
            data = self._next(stop)
            view[filled : filled + len(data)] = data
            filled += len(data)
            self._at += len(data)
        return filled

    def stop(self) -> None:
        """End all reading soon, with errors, until `resume` is called."""
        self._stopped = True
        self._forget()

    def resume(self) -> None:
        """Allow reading again."""
        self._stopped = False

    def close(self) -> None:
        self._forget()
        super().close()

    def _forget(self) -> None:
        self._pieces, self._starts = [], []
        self._leave_requests()

    def _leave_requests(self) -> None:
        self._unwanted.set()
        self._unwanted = threading.Event()

    def _next(self, stop: int) -> bytes | memoryview:
        """Some bytes from here on, up to ``stop`` at most."""
        i = bisect_right(self._starts, self._at) - 1
        piece = self._pieces[i] if i >= 0 else None
        if piece is None or self._at >= piece.stop:  # not announced
            after = self._starts[i + 1] if i + 1 < len(self._starts) else stop
            return self._begun(_Piece(self._at, min(stop, after))).result(self._unwanted)
        self._begin_from(i)
        if piece.begun is not None and piece.begun.has_failed:  # before anybody needed it; the store may answer now
            piece.begun = None
        try:
            data = self._begun(piece).result(self._unwanted)
        except BaseException:
            piece.begun = None  # so that reading again asks again
            raise
        part = memoryview(data)[self._at - piece.start : stop - piece.start]
        piece.left -= len(part)
        if piece.left <= 0:
            piece.begun = None
        return part

    def _begin_from(self, first: int) -> None:
        """Ask for a piece and the next ones, of which a few are on their way at a time."""
        ahead = 0
        for piece in self._pieces[first : first + 1 + _MOST_AHEAD]:
            if ahead > _AHEAD_BYTES - (piece.stop - piece.start):
                return
            if piece.left > 0:
                self._begun(piece)
                ahead += piece.stop - piece.start if piece is not self._pieces[first] else 0

    def _begun(self, piece: "_Piece") -> Started:
        if piece.begun is None:
            store, facts, unwanted = self.store, self.facts, self._unwanted
            piece.begun = Started(lambda: read_range(store, facts, piece.start, piece.stop, unwanted))
        return piece.begun


class _Piece:
    """A part of the object that one request asks for."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.left = stop - start  # bytes that were not read yet
        self.begun: Started | None = None


def _pieces_of(ranges: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Ranges that do not overlap, sorted, without small holes between them, and none too large. At most about twice as many bytes.

    >>> _pieces_of([(0, 10), (20, 30), (900_000, 900_010), (5, 12)], 900_005)
    [(0, 30), (900000, 900005)]
    """
    whole: list[list[int]] = []
    for start, stop in sorted((max(0, start), min(stop, size)) for start, stop in ranges):
        if stop <= start:
            continue
        if whole and start - whole[-1][1] <= max(_HOLE, min(_LARGEST_HOLE, stop - start)):
            whole[-1][1] = max(whole[-1][1], stop)
        else:
            whole.append([start, stop])
    return [(at, min(at + _PIECE, stop)) for start, stop in whole for at in range(start, stop, _PIECE)]
