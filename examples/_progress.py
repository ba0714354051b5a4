"""A progress line on stderr: redrawn in place on a terminal and in a notebook, an occasional plain line in a log file."""

from __future__ import annotations

import sys
import time
from typing import Any, Self, TextIO

BAR_WIDTH = 24


class Progress:
    """Shows how far a loop is, its rate, the time left and the latest loss.

    ``update`` is cheap: the loss, which may still be on its way on a device, is only looked at when a line is drawn.
    """

    def __init__(self, title: str, num_steps: int, examples_per_step: int, stream: TextIO | None = None) -> None:
        self._title, self._num_steps, self._examples_per_step = title, num_steps, examples_per_step
        self._stream = sys.stderr if stream is None else stream
        self._redraws = self._stream.isatty() or type(self._stream).__module__.startswith("ipykernel.")  # a notebook's
        self._seconds_between = 0.2 if self._redraws else 10.0
        self._step = 0
        self._started = self._drawn = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._redraws:
            self._stream.write("\r\033[K")  # the epoch's own line takes this one's place
            self._stream.flush()

    def update(self, loss: Any) -> None:
        """Count one more step, whose loss is ``loss`` (anything that ``float`` takes)."""
        self._step += 1
        now = time.monotonic()
        if now - self._drawn >= self._seconds_between:
            self._drawn = now
            line = self.line(float(loss), now - self._started)
            self._stream.write(f"\r\033[K{line}" if self._redraws else f"{line}\n")
            self._stream.flush()

    def line(self, loss: float, seconds: float) -> str:
        """Say where the loop is after ``seconds``."""
        done = self._step / self._num_steps
        filled = int(BAR_WIDTH * done)
        rate = self._step * self._examples_per_step / seconds
        left = seconds / self._step * (self._num_steps - self._step)
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        place = f"{self._title} [{bar}] {self._step}/{self._num_steps}"
        return f"{place}, {rate:,.0f} examples/s, {left:.0f} s left, loss {loss:.4f}"
