"""Micro-batches: the rows of a batch, computed in parts, one after the other, whose results are added up."""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

Rows = Sequence[Any]  # arrays with the same number of rows
Add = Callable[[Any, Rows], tuple[Any, Sequence[Any]]]  # (state, rows) -> (state, outputs that have the rows)


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """One of the micro-batches of a batch.

    Args:
        rows: The number of its rows.
        total: The number of rows of the batch.
        number: The number of micro-batches in each of which a penalty without rows is added; 1 in ``fit``, which adds it once.
        replica: The number of the replica in ``fit``, where there is no replica context; None if there is only one.
    """

    rows: int
    total: int
    number: int
    replica: Any = None


@dataclasses.dataclass(frozen=True)
class Parts:
    """Rows in parts of equal size, and a last part with what is left.

    Args:
        rows: The number of rows.
        size: The number of rows of a part.

    >>> Parts(7, 3).number
    3
    """

    rows: int
    size: int

    @property
    def number(self) -> int:
        """The number of parts."""
        return -(-self.rows // self.size)

    def each(self, add: Add, state: Any, arrays: Rows, in_loop: Add | None = None) -> tuple[Any, list[Any]]:
        """Call `add` for one part after the other. The equal ones are a loop on the device.

        Args:
            add: ``add(state, rows) -> (state, outputs)``. It adds to the state what a part makes.
            state: The state before the first part.
            arrays: All rows.
            in_loop: What to call instead of `add` in the loop.

        Returns:
            The last state, and the outputs of all parts, joined along their rows; no outputs if there are no rows.

        >>> total, (doubles,) = Parts(3, 2).each(lambda total, rows: (total + rows[0].sum(), [2 * rows[0]]), 0, [jnp.arange(3)])
        >>> print(total, doubles)
        3 [0 2 4]
        """
        num_full, rest = divmod(self.rows, self.size)
        whole, outputs = num_full * self.size, list[Any]()
        if num_full:
            stacked = [x[:whole].reshape(num_full, self.size, *x.shape[1:]) for x in arrays]
            state, found = jax.lax.scan(in_loop or add, state, stacked)
            outputs = [x.reshape(num_full * x.shape[1], *x.shape[2:]) for x in found]
        if rest:
            state, last = add(state, [x[whole:] for x in arrays])
            outputs = [jnp.concatenate(each) for each in zip(outputs, last, strict=True)] if num_full else list(last)
        return state, outputs


def shapes_of(arrays: Rows, num_rows: int) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes that arrays have with another number of rows."""
    return [jax.ShapeDtypeStruct((num_rows, *x.shape[1:]), x.dtype) for x in arrays]


def wide(dtype: Any) -> Any:
    """Return the dtype in which parts are added up: at least 32 bits."""
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.floating) else dtype


def added(totals: Sequence[Any], parts: Sequence[Any]) -> list[Any]:
    """Return totals with those of one more part added."""
    return [total + part.astype(total.dtype) for total, part in zip(totals, parts, strict=True)]


class _Active(threading.local):
    micro_batch: MicroBatch | None = None


_active = _Active()


def active_micro_batch() -> MicroBatch | None:
    """Return the micro-batch that is being traced; None outside of micro-batches."""
    return _active.micro_batch


@contextmanager
def in_micro_batch(micro_batch: MicroBatch | None) -> Iterator[None]:
    """Trace a part of a batch in the ``with`` block."""
    before, _active.micro_batch = _active.micro_batch, micro_batch
    try:
        yield
    finally:
        _active.micro_batch = before
