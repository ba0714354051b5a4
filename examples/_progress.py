"""A progress line on stderr. It is redrawn in place on a terminal and in a notebook, and is an occasional plain line in a log."""

from __future__ import annotations

import sys
import time
from typing import Any, Self, TextIO

BAR_WIDTH = 24


class Progress:
    """Shows how far a loop is, its rate, the time left and the latest loss.

    ``update`` is cheap, because it reads the loss, which a device may still compute, only when it draws a line.
    """

    def __init__(self, title: str, num_steps: int, examples_per_step: int, stream: TextIO | None = None) -> None:
        self._title, self._num_steps, self._examples_per_step = title, num_steps, examples_per_step
        self._stream = sys.stderr if stream is None else stream
        self._redraws = self._stream.isatty() or type(self._stream).__module__.startswith("ipykernel.")  # a notebook
        self._seconds_between = 0.2 if self._redraws else 10.0
        self._step = self._width = 0
        self._started = self._drawn = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._redraws:
            self._stream.write(f"\r{' ' * self._width}\r")  # the line of the epoch replaces this one
            self._stream.flush()

    def update(self, loss: Any) -> None:
        """Count one more step. Its ``loss`` is anything that ``float`` accepts."""
        self._step += 1
        now = time.monotonic()
        if now - self._drawn >= self._seconds_between:
            self._drawn = now
            line = self.line(float(loss), now - self._started)
            # Notebooks know no code that clears a line, so blanks hide what was longer.
            self._stream.write(f"\r{line:{self._width}}" if self._redraws else f"{line}\n")
            self._width = len(line)
            self._stream.flush()

    def line(self, loss: float, seconds: float) -> str:
        """Return the line after ``seconds``."""
        done = self._step / self._num_steps
        filled = int(BAR_WIDTH * done)
        rate = self._step * self._examples_per_step / seconds
        left = seconds / self._step * (self._num_steps - self._step)
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        place = f"{self._title} [{bar}] {self._step}/{self._num_steps}"
        return f"{place}, {rate:,.0f} examples/s, {left:.0f} s left, loss {loss:.4f}"
