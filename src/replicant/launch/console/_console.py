"""Copies new lines of the workers' logs to the console, with the rank in front. The workers write to their logs themselves.

So a worker never waits for the console, the logs are complete whatever happens to the supervisor, and processes that workers leave
behind keep nothing open.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

_CHUNK = 1 << 20  # bytes of one log that are read at a time
_MAX_LINE = 1 << 16  # bytes of an unfinished line; a longer one is shown in pieces
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")


class LogTail:
    """Reads what is added to a log from now on."""

    def __init__(self, path: Path):
        self._file = path.open("rb")
        self._rest = b""
        self._left_out: list[tuple[int, int]] = []
        self._at = self._file.seek(0, os.SEEK_END)

    def leave_out(self, begin: int, end: int) -> None:
        """Leave out a part of the log that was just added to it, and nothing of what others add before and after it."""
        self._left_out.append((begin, end))

    def lines(self) -> Iterator[bytes]:
        """Yield the new complete lines of one chunk, without their line ends."""
        size = os.fstat(self._file.fileno()).st_size
        if size == self._at:  # the usual case costs one system call
            return
        if size < self._at:  # somebody has truncated the log
            self._at = self._file.seek(0)
            self._left_out.clear()
        *whole, self._rest = (self._rest + self._read()).split(b"\n")
        yield from whole
        while len(self._rest) > _MAX_LINE:
            yield self._rest[:_MAX_LINE]
            self._rest = self._rest[_MAX_LINE:]

    def _read(self) -> bytes:
        """Read a chunk without what is to be left out."""
        start = at = self._at
        chunk, kept = self._file.read(_CHUNK), b""
        self._at += len(chunk)
        for begin, end in self._left_out:
            kept += chunk[at - start : max(at, begin) - start]
            at = max(at, end)
        kept += chunk[at - start :]
        self._left_out = [part for part in self._left_out if part[1] > self._at]
        return kept

    def all_lines(self) -> Iterator[bytes]:
        """Yield everything that is new, including an unfinished line."""
        while True:
            before = self._file.tell()
            yield from self.lines()
            if self._file.tell() == before:
                break
        if self._rest:
            yield self._rest
            self._rest = b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def shown(line: bytes) -> str:
    r"""A line as a terminal would show it, without what a carriage return has overwritten and without control characters.

    >>> shown(b"10%\r20%\r"), shown(b"\x00\xff")
    ('20%', '\ufffd\ufffd')
    """
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def plain(text: str) -> str:
    r"""A text on one line, in which what a terminal would obey or hide is replaced.

    >>> plain("a\n\x1b[2Jb")
    'a\ufffd\ufffd[2Jb'
    """
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


class Console:
    """What the user sees.

    Args:
        out: The stream for the workers' lines.
        err: The stream for the supervisor's lines and, if it is a terminal, for a status line below everything.
    """

    def __init__(self, out: TextIO, err: TextIO):
        self._out, self._err = out, err
        self._has_status = err.isatty()
        self._status = ""
        self._is_broken = False

    def line(self, rank: int, text: bytes) -> None:
        """Write a line of a worker."""
        self._clear()
        self._write(f"[{rank}] {shown(text)}\n")

    def flush(self) -> None:
        """Flush what was written."""
        if not self._is_broken:
            try:
                self._out.flush()
            except BrokenPipeError:
                self._give_up()

    def say(self, text: str) -> None:
        """Write a line of the supervisor."""
        self._clear()
        with contextlib.suppress(OSError):
            self._err.write(f"replicant launch: {text}\n")
            self._err.flush()

    def status(self, text: str) -> None:
        """Replace the status line, or remove it with "". Nothing happens unless the stream is a terminal."""
        if not self._has_status or text == self._status:
            return
        self._clear()
        width = shutil.get_terminal_size().columns - 1
        with contextlib.suppress(OSError):
            self._err.write(text[:width])
            self._err.flush()
        self._status = text

    def _clear(self) -> None:
        if self._status:
            self._status = ""
            with contextlib.suppress(OSError):
                self._err.write("\r\x1b[K")
                self._err.flush()

    def _write(self, text: str) -> None:
        if self._is_broken:
            return
        try:
            self._out.write(text)
        except UnicodeEncodeError:
            self._out.write(text.encode("ascii", "replace").decode())
        except BrokenPipeError:
            self._give_up()

    def _give_up(self) -> None:
        self._is_broken = True
        self.say("nobody reads the output any more. The job goes on and writes its logs.")
        with contextlib.suppress(OSError, ValueError):  # otherwise the buffered rest would fail again when the program ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())
