"""Records a profile of some batches of a fit."""

import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax

from ...errors import ArgumentError


class Profile:
    """Records the batches from first to last, counted from 1, of every fit with JAX's profiler; 0 records none."""

    def __init__(self, batches: int | tuple[int, int], folder: Path):
        self._first, self._last = _first_and_last(batches)
        self._folder = folder
        self._pending = False
        self._running = False

    def rewind(self) -> None:
        """Begin a new fit."""
        self._pending = self._first > 0

    def step(self, num_done: int, num_next: int) -> AbstractContextManager[Any]:
        """Return a context to enter around the next `num_next` batches, after `num_done` others."""
        if self._pending and num_done + num_next >= self._first:
            self._start()
        return jax.profiler.StepTraceAnnotation("train", step_num=num_done + 1) if self._running else nullcontext()

    def done(self, num_done: int, state: Any) -> None:
        """Note that `num_done` batches have been given to the devices, which compute `state`."""
        if self._running and num_done >= self._last:
            jax.block_until_ready(state)
            self.stop()

    def stop(self) -> None:
        """Write the profile, if one is being recorded."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()

    def _start(self) -> None:
        self._pending = False
        options = jax.profiler.ProfileOptions()
        if sys.version_info < (3, 12):
            options.python_tracer_level = 0  # before Python 3.12, this tracer may crash the process
        try:
            jax.profiler.start_trace(self._folder, profiler_options=options)
        except RuntimeError as error:  # another profile is being recorded, which is no reason to stop training
            warnings.warn(f"No profile of batch {self._first}: JAX's profiler did not start ({error}).", stacklevel=2)
        else:
            self._running = True


def _first_and_last(batches: Any) -> tuple[int, int]:
    match batches:
        case bool():
            pass
        case 0:
            return 0, 0
        case int() if batches > 0:
            return batches, batches
        case (int(first), int(last)) if 1 <= first <= last:
            return first, last
    raise ArgumentError(
        "profile_batch must be 0 (no profile), the number of a batch counted from 1, or a pair (first, last) with "
        f"1 <= first <= last, as in profile_batch=(10, 20); got {batches!r}."
    )
