"""Refuses what Keras's loops cannot train on, before Keras says so in other words: a dataset without batches, labels of strings."""

import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from ...errors import ArgumentTypeError, DatasetError
from ...input.graph._graph import Node
from ...input.graph._structure import component_names, flatten
from ...input.sources._sources import Counted
from ...input.transforms.batches._batch import Batch

_ADVICE = (
    "fit, evaluate and predict take batches, whose components all have the rows of the batch as their leading dimension. Call "
    "`batch(batch_size)` on the dataset."
)


@dataclasses.dataclass
class _Loop:
    """A loop of Keras that reads datasets: the shapes of the model's inputs, if they are known, and what may explain an error."""

    inputs: Sequence[tuple[int | None, ...]]
    suspect: str | None = None


_loop: contextvars.ContextVar[_Loop | None] = contextvars.ContextVar("replicant_loop", default=None)


@contextmanager
def reading_for(inputs: Sequence[Any]) -> Iterator[None]:
    """Compare the datasets that are read in the block with the inputs of the model, as far as these are known.

    A model that takes anything may fail with one example instead of a batch. Its error gets a note then.
    """
    loop = _Loop([tuple(each.shape) for each in inputs])
    token = _loop.set(loop)
    try:
        yield
    except Exception as error:
        if loop.suspect is not None and loop.suspect not in getattr(error, "__notes__", ()):
            error.add_note(loop.suspect)
        raise
    finally:
        _loop.reset(token)


def check_batch(batch: tuple[Any, ...], node: Node, what: str) -> None:
    """Check the first batch of a dataset.

    Args:
        batch: The tuple (x,), (x, y) or (x, y, sample_weight).
        node: The root of the dataset's graph.
        what: Names the dataset in the message.

    Raises:
        DatasetError: If it is one example instead of a batch.
        ArgumentTypeError: If its labels are strings.
    """
    leaves, structure = flatten(batch)
    shapes = [np.shape(leaf) for leaf in leaves]
    differ = len({shape[:1] for shape in shapes}) > 1
    loop = _loop.get()
    x = batch[0]
    names = component_names(structure if len(batch) > 1 else flatten(x)[1])
    found = ", ".join(f"{name} has shape {shape}" for name, shape in zip(names, shapes, strict=True))
    if any(not shape for shape in shapes) or (differ and _never_batched(node)):
        raise DatasetError(f"{what} yields no batches: {found}. {_ADVICE}")
    if loop is not None and not _has_batches(node):
        wanted = [shape for leaf in flatten(x)[0] for shape in loop.inputs if _is_row(np.shape(leaf), shape)]
        if wanted:
            raise DatasetError(f"{what} yields no batches: {found}, and the model takes shape {wanted[0]}. {_ADVICE}")
        if not loop.inputs and _never_batched(node):
            loop.suspect = (
                f"{what} has no `batch`, so a step got an element of its source as if it were a batch: {found}. {_ADVICE}"
            )
    for part in batch[1:]:
        check_labels(part)


def no_suspicion() -> None:
    """Note that steps have computed with what the dataset yields, so that nothing is wrong with it."""
    loop = _loop.get()
    if loop is not None:
        loop.suspect = None


def _is_row(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    """Return whether an array fits an input without its batch dimension, and would not fit after Keras has added a last one."""
    return _fits(shape, wanted[1:]) and not _fits((*shape, 1), wanted)


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(size in (None, found) for found, size in zip(shape, wanted, strict=True))


def _has_batches(node: Node) -> bool:
    """Whether anything in a graph makes batches."""
    return isinstance(node, Batch) or any(map(_has_batches, node.inputs))


def _never_batched(node: Node) -> bool:
    """Whether a graph reads rows of arrays and nothing makes batches of them."""
    if not node.inputs:
        return isinstance(node, Counted) and node.size > 1
    return not isinstance(node, Batch) and all(map(_never_batched, node.inputs))


def check_labels(labels: Any) -> None:
    """Raise ArgumentTypeError for labels or weights that are strings. Other arrays of objects are left to Keras."""
    for leaf in jax.tree.leaves(labels):
        first = leaf.ravel()[:1].tolist() if isinstance(leaf, np.ndarray) else []
        if first and isinstance(first[0], str | bytes):
            raise ArgumentTypeError(
                f"The labels are strings (such as {first[0]!r}), but a loss needs numbers. Convert them first: "
                "`names, y = np.unique(labels, return_inverse=True)`, or in a dataset `map` with a dict of the names."
            )
