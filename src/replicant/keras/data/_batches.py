"""One pass of ``fit`` over a Replicant dataset. It remembers its position after each of the last few batches."""

import contextlib
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from ...errors import DatasetError
from ...input._dataset import Dataset
from ...input._iterator import ElementIterator
from ...input.distributed._distributed import DistributedDataset, DistributedIterator
from ...input.graph._graph import State
from ...input.sources._begun import looking
from ...replicas._values import PerReplica, map_replicas
from ._batch_dtypes import in_dtypes_of_jax

MAX_AHEAD = 2  # batches that Keras reads before the step that needs them

# Whether anything will ask for the position of a pass: taking a state costs some microseconds.
wants_states: contextvars.ContextVar[bool] = contextvars.ContextVar("replicant_wants_states", default=False)


class Batches:
    """Batches as Keras has them: x, (x, y) or (x, y, sample_weight). The pass begins when the first one is read.

    An element that is not a tuple is x alone, and steps of models get it as it is. Keras would take a list apart, so it gets (x,).

    Args:
        dataset: The dataset to read.
        finish: Turns each tuple into what Keras gets.
        when_empty: Makes the error to raise if the dataset yields no batch.
        only_looks: Whether what is read is to be left for the next pass, as far as it cannot be read again.
    """

    def __init__(
        self,
        dataset: Dataset | DistributedDataset,
        finish: Callable[[tuple[Any, ...]], tuple[Any, ...]],
        when_empty: Callable[[], Exception],
        *,
        only_looks: bool = False,
    ):
        self._dataset = dataset
        self._finish = finish
        self._when_empty = when_empty
        self.only_looks = only_looks
        self._iterator: ElementIterator | None = None
        self._num_batches = 0
        self._states: deque[tuple[int, State]] = deque(maxlen=MAX_AHEAD + 1)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            with looking() if self.only_looks else contextlib.nullcontext():
                self._iterator = iter(self._dataset)
        try:
            element = next(self._iterator)
        except StopIteration:
            if self._num_batches == 0:
                raise self._when_empty() from None
            raise
        self._num_batches += 1
        if wants_states.get():
            self._states.append((self._num_batches, self._iterator.state()))
        batch = in_dtypes_of_jax(map_replicas(_global_batch, element))
        if isinstance(batch, tuple):
            return self._finish(batch)
        x, *rest = self._finish((batch,))
        return (x, *rest) if rest or isinstance(batch, list) else x

    def state_after(self, num_batches: int) -> State:
        """Return the position after `num_batches` batches, which may be at most two fewer than were read."""
        return dict(self._states)[num_batches]

    def go_to(self, state: State, num_batches: int) -> None:
        """Continue from the state of another pass, which had read `num_batches` batches.

        Raises:
            DatasetError: If Keras expects another number of batches than are left.
        """
        self._iterator = iter(self._dataset)
        self._iterator.restore(state)
        size = self._dataset.cardinality()
        if size >= 0 and isinstance(self._iterator, DistributedIterator) and self._iterator.has_other_steps:
            raise DatasetError(
                f"`fit` expects the {size} steps of this dataset's cardinality, but other workers began this pass with files of "
                "their own, so it has another number of steps. Use as many workers as before, or AutoShardPolicy.DATA throughout, "
                "with which the number does not matter. Or go on with a loop of your own."
            )
        self._num_batches = num_batches
        self._states.append((num_batches, state))

    def close(self) -> None:
        """Stop reading."""
        if self._iterator is not None:
            self._iterator.close()


def _global_batch(leaf: Any) -> Any:
    """Join the replicas' rows of a distributed component, in replica order."""
    if not isinstance(leaf, PerReplica):
        return leaf
    if leaf.stacked is None:
        return np.concatenate([np.asarray(value) for value in leaf.values])
    return leaf.stacked.reshape(-1, *leaf.stacked.shape[2:])
