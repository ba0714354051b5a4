"""``fit`` under a LocalSGDStrategy: each worker trains on its rows of each batch, and takes outer steps with the others.

A link of the train function cuts the batches and counts the steps. The round ends with the epoch, before validation begins.
"""

import contextvars
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import ArgumentError
from ..input.sharding._rebatch import worker_chunk
from ..strategies._local_sgd import LocalSGDStrategy
from ..strategies._rounds import Rounds, rows_of
from ..variables._known import ref_of
from ._fit import note_state, strategy_of
from ._train_function import Rank, Step, train_function_of
from ._worker_datasets import has_own_rows

_ROUNDS = "_replicant_rounds"
_EPOCHS = "_replicant_local_epochs"
_TRAINED, _OTHERS = 0, 1  # the parts of the state that hold the weights

_fitting: contextvars.ContextVar["_Fit | None"] = contextvars.ContextVar("replicant_local_fit", default=None)


def rounds_of(model: Any) -> Rounds | None:
    """Return the rounds in which a model is trained, which are made when its variables are there; None under other strategies."""
    strategy = strategy_of(model)
    if not isinstance(strategy, LocalSGDStrategy) or not model.built:
        return None
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    key = [(id(each), ref_of(each).trainable) for each in variables]
    known = model.__dict__.get(_ROUNDS)
    if known is None or known[0] != key:  # layers have been frozen, or added
        known = model.__dict__[_ROUNDS] = key, strategy.rounds(variables)
    return known[1]


def fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``fit``, and end the last round if Keras has left an epoch before its end."""
    strategy = strategy_of(model)
    if not isinstance(strategy, LocalSGDStrategy):
        return original(model, *args, **kwargs)
    if model.steps_per_execution != 1:
        raise ArgumentError(
            f"fit under LocalSGDStrategy counts single steps, but the model was compiled with steps_per_execution="
            f"{model.steps_per_execution}. Compile it with steps_per_execution=1."
        )
    given = inspect.signature(original).bind(model, *args, **kwargs).arguments.get("x")
    own = _Fit(model, strategy, has_own_rows(given))
    token = _fitting.set(own)
    try:
        result = original(model, *args, **kwargs)
        own.finish()
        return result
    finally:
        _fitting.reset(token)
        own.close()


def make_epochs(original: Callable[..., Any], epochs: Any, *args: Any, **kwargs: Any) -> None:
    """Make an epoch iterator. The first one of a fit reads the training data."""
    original(epochs, *args, **kwargs)
    own = _fitting.get()
    if own is not None and own.epochs is None:
        own.epochs = epochs
        epochs.__dict__[_EPOCHS] = own


def enumerate_steps(original: Callable[..., Any], epochs: Any) -> Any:
    """Return the steps of an epoch. The round of a fit ends after them."""
    own: _Fit | None = epochs.__dict__.get(_EPOCHS)
    return original(epochs) if own is None else own.steps(original(epochs))


class _Fit:
    """One call of ``fit``.

    Args:
        model: The model.
        strategy: Its strategy.
        has_own_rows: Whether the data are this worker's own rows already.
    """

    def __init__(self, model: Any, strategy: LocalSGDStrategy, has_own_rows: bool):
        self.epochs: Any = None
        self._model, self._strategy, self._has_own_rows = model, strategy, has_own_rows
        self._function: Any = None
        self._logs: Any = {}
        self._in_epoch = False

    def steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Yield the steps of an epoch, and end the round after them."""
        self._in_epoch = True
        if self._model.train_function is not None:  # Keras looks at the data before it makes its train function
            self._function = train_function_of(self._model)
            self._function.add(Rank.SHARE, self._take)
        yield from steps
        self.finish()

    def close(self) -> None:
        """Give the model its own train function back."""
        if self._function is not None:
            self._function.remove(self._take)

    def finish(self) -> None:
        """End the round, if an epoch has not ended it. The variables have the newest values afterwards."""
        if not self._in_epoch:
            return
        self._in_epoch = False
        self._model.jax_state_sync()
        rounds = self._rounds
        rounds.begin(rounds.values, rounds.assign)
        rounds.finish(rounds.values, rounds.assign)

    def _take(self, inner: Step, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        """Take one step of this worker, and count it."""
        try:
            batch = next(iterator)
        except StopIteration:
            note_state(self._model, state)
            self._model._jax_state_synced = False
            self.finish()
            raise
        holder = _State(self._model, self._rounds, state)
        self._rounds.begin(holder.read, holder.write)
        batch, num_rows = self._own(batch)
        if num_rows:
            self._logs, holder.state = inner(holder.state, iter([batch]))
        self._rounds.count(num_rows)
        self._rounds.end_if_complete(holder.read, holder.write)
        return self._logs, holder.state

    @property
    def _rounds(self) -> Rounds:
        found = rounds_of(self._model)
        assert found is not None, "the model is built and belongs to a LocalSGDStrategy"
        return found

    def _own(self, batch: Any) -> tuple[Any, int]:
        """Return this worker's rows of a batch, and their number."""
        num_rows = rows_of(batch)
        if self._has_own_rows:
            return batch, num_rows
        first, sizes = worker_chunk(num_rows, self._strategy.topology)
        own = slice(first, first + sum(sizes))
        return jax.tree.map(lambda x: x[own] if np.ndim(x) and np.shape(x)[0] == num_rows else x, batch), sum(sizes)


class _State:
    """The state of Keras's loop, as the rounds read and write it."""

    def __init__(self, model: Any, rounds: Rounds, state: Any):
        self.state = state
        parts = (model.trainable_variables, model.non_trainable_variables)
        at = {ref_of(each): (p, i) for p, part in enumerate(parts) for i, each in enumerate(part)}
        self._places: Sequence[tuple[int, int]] = [at[ref_of(each)] for each in (*rounds.trained, *rounds.averaged)]

    def read(self) -> list[np.ndarray]:
        return [np.array(self.state[p][i], copy=True) for p, i in self._places]

    def write(self, values: list[np.ndarray]) -> None:
        parts: list[Any] = list(self.state)
        for part in (_TRAINED, _OTHERS):
            parts[part] = list(parts[part])
        for (p, i), value in zip(self._places, values, strict=True):
            parts[p][i] = value
        self.state = tuple(parts)
