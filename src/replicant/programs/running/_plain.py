"""``Plain``: programs that run where and when JAX has them run."""

from typing import Any

from ...runtime import _in_flight
from ._launch import start_of_programs


class Plain:
    """Starts programs (a ``Launch``).

    Args:
        jitted: What ``jax.jit`` has returned.
        bounded: Whether to limit the number of such programs in flight.
        watched: Whether somebody may wait for their first runs, to tell how much memory they need.
    """

    def __init__(self, jitted: Any, *, bounded: bool, watched: bool):
        self._jitted, self._bounded = jitted, bounded
        self._start = start_of_programs(watched=watched)

    def __call__(self, inputs: tuple[Any, ...], keeper: _in_flight.State | None, /) -> Any:
        return self._start(self._jitted, *inputs, bounded=self._bounded, state=keeper)
