"""Metrics: what compiled functions add to them is summed, even if the code assigns old + new."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import numpy as np

from ...variables._recorder import current_recorder
from ._refs import ServerRef, record_output


@contextmanager
def summed(refs: Sequence[ServerRef]) -> Iterator[None]:
    """In a trace: show zeros in these variables to the code inside, and push what it leaves in them as additions.

    So additions of other closures are kept, and nobody needs to read the sums.
    """
    reset(refs)
    yield
    recorder = current_recorder()
    assert recorder is not None
    for ref in refs:
        mine = [change for change in (ref, *ref.changes.values()) if change in recorder.written]
        for change in mine:
            recorder.without_output(change)
        if mine:
            record_output(ref, "sum", recorder.read(ref), _adder(ref, None))


@contextmanager
def unchanged(refs: Sequence[ServerRef]) -> Iterator[None]:
    """In a trace: forget what the code inside adds to these variables, which are being summed."""
    before = taken(refs)
    yield
    put(refs, before)


def reset(refs: Sequence[ServerRef]) -> None:
    """Show zeros in them to the code that follows."""
    put(refs, [jnp.zeros(ref.shape, ref.dtype) for ref in refs])


def taken(refs: Sequence[ServerRef]) -> list[Any]:
    """What has been added to them so far."""
    recorder = current_recorder()
    assert recorder is not None
    return [recorder.read(ref) for ref in refs]


def put(refs: Sequence[ServerRef], values: Sequence[Any]) -> None:
    """Set what has been added to them so far."""
    recorder = current_recorder()
    assert recorder is not None
    for ref, value in zip(refs, values, strict=True):
        recorder.replace(ref, value)


def add_share(ref: ServerRef, value: Any, share: str) -> None:
    """In a trace: push a part of a sum, which is divided once those of all closures are known."""
    record_output(ref, ("share", share), value, _adder(ref, share))


def _adder(ref: ServerRef, share: str | None) -> Callable[[np.ndarray], None]:
    return lambda value: ref.site.client.change(ref.spec, "add", value, share=share)
