"""Metrics: what a compiled function adds to them is summed, also where it is written as an assignment of old + new."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import jax.numpy as jnp
import numpy as np

from .._state import current_recorder
from ._refs import ServerRef, record_output


@contextmanager
def summed(refs: Sequence[ServerRef]) -> Iterator[None]:
    """In a trace: let code inside see zeros in these variables, and push what it leaves in them as changes to be added.

    So whatever others push meanwhile is kept, and nobody need read the sums.
    """
    recorder = current_recorder()
    assert recorder is not None
    for ref in refs:
        recorder.values[ref] = jnp.zeros(ref.shape, ref.dtype)
    yield
    for ref in refs:
        mine = [change for change in (ref, *ref.changes.values()) if change in recorder.written]
        for change in mine:
            del recorder.written[change]
        if mine:
            record_output(ref, "sum", recorder.values[ref], _adder(ref))


def _adder(ref: ServerRef) -> Callable[[np.ndarray], None]:
    return lambda value: ref.site.client.change(ref.spec, "add", value)
