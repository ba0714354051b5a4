"""``OverWorkers``: programs that all workers start, and that wait for each other in their exchanges."""

import math
from typing import Any

import jax

from ...kernels.xla._heap import FirstRuns
from ...runtime import _in_flight


class OverWorkers:
    """Starts programs of several workers (a ``Launch``).

    Nobody waits for their first runs, because others must run them, too. And JAX would compile a program once more to tell the size
    of its temporary arrays, so that of its results stands for what each run takes.

    Args:
        jitted: What ``jax.jit`` has returned.
        bounded: Whether to limit the number of such programs in flight.
    """

    def __init__(self, jitted: Any, *, bounded: bool):
        self._jitted, self._bounded = jitted, bounded
        self._size_of_results: int | None = None  # once a program has run
        self._first_runs = FirstRuns(None, lambda *_: self._size_of_results or 0)

    def __call__(self, inputs: tuple[Any, ...], keeper: _in_flight.State | None, /) -> Any:
        outputs = self._first_runs.run(_in_flight.call, self._jitted, *inputs, bounded=self._bounded, state=keeper)
        if self._size_of_results is None:
            self._size_of_results = _bytes_on_device(outputs[-2])
        return outputs


def _bytes_on_device(results: Any) -> int:
    """Return the bytes that results take on one device."""
    arrays = [x for x in jax.tree.leaves(results) if isinstance(x, jax.Array)]
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in arrays)
