"""The function of a model that Keras's loops call for each step: it reads batches, and takes the steps that they are enough for.

The state of the model travels from step to step. Whatever interrupts a step, the newest state finds its way into the variables.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..data._array_batches import Several, several
from ..state import _loop_state, _loop_values
from ..state._loop_state import PARTS
from ..state._variables import as_they_lie
from ..steps import _stateful_step
from ..steps._stateful_step import StatefulStep
from ..steps._step_function import StepFunction, signature


def get_state(original: Callable[..., Any], model: Any, *, purge_model_variables: bool = False, **parts: bool) -> Any:
    """Return the state of a loop, for which the variables may give up their values. Ctrl-C must not lose them."""
    with as_they_lie():
        if not purge_model_variables:
            return original(model, **parts)
        return _purged(model, parts)


def _purged(model: Any, parts: dict[str, bool]) -> Any:
    names = [name for name in PARTS["train_step"] if parts.get(name)]
    before = model.__dict__.get(_loop_state.STATE) or {}
    variables = _loop_values.found(model, names)
    state = tuple(map(_loop_values.values_of, variables.values()))
    _loop_state.note(model, names, map(list, state))
    model._jax_state_synced = False
    for each in variables.values():
        _loop_values.empty(each)
    return _loop_state.unshared(state, [before.get(name, ()) for name in names])


class _Newest:
    """The newest state in a call of a step, which must not be lost: a program has consumed the one before.

    Attributes:
        found: The state, and whether it has the values of a stateful step's other variables, too. One object, because Ctrl-C may
            come between two assignments.
    """

    def __init__(self, model: Any, names: Sequence[str], state: Any):
        self._model, self._names = model, names
        self.found: tuple[Any, bool] = state, False

    def store(self, values: Any) -> None:
        """Note the new state of a program, as a `State` of programs in flight, where other threads find it."""
        self.found = values, self.found[1]
        _loop_state.note(self._model, self._names, values)

    def put_back(self, before: Any, _: Any) -> None:
        """Note the state from before a program that has failed."""
        self.store(before)

    def take_back(self) -> None:
        """Do nothing: `store` is a single assignment."""


class StepLoop:
    """A model's ``train_function``, ``test_function`` or ``predict_function``: ``(state, iterator) -> (outputs, state)``.

    Args:
        make_step: Makes the compiled step.
        stateful: The stateful step in it, if it is one.
        model: The model.
        name: The name of the step, such as "train_step".
        is_bare: Whether nothing, such as micro-batches, is around the step: then its first trace is kept.
    """

    def __init__(
        self, make_step: Callable[[], StepFunction], stateful: StatefulStep | None, model: Any, name: str, *, is_bare: bool
    ):
        self._make_step = make_step
        self._is_bare = is_bare
        self._step = make_step()
        self._stateful = stateful
        self._version = 0 if stateful is None else stateful.version()
        self._model = model
        self._state_names = PARTS[name]
        self._steps = model.steps_per_execution
        self._concatenate = name == "predict_step"

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        newest = _Newest(self._model, self._state_names, state)
        try:
            outputs, state = self._advance(newest, iterator)
            _loop_state.note(self._model, self._state_names, state)  # so that Ctrl-C loses nothing before Keras does the same
        except BaseException:
            self._give_back(newest)
            raise
        return outputs, state

    def _give_back(self, newest: "_Newest") -> None:
        """Give the variables their values back: Keras empties them during its loop, and an error would leave them empty."""
        state, has_others = newest.found
        if any(map(_loop_state.is_gone, jax.tree.leaves(state))):
            return
        if has_others and self._stateful is not None:
            state = self._stateful.keras_part(state)
        _loop_state.note(self._model, self._state_names, state)
        self._model._jax_state_synced = False
        self._model.jax_state_sync()

    def _advance(self, newest: "_Newest", iterator: Iterator[Any]) -> tuple[Any, Any]:
        batches = [next(iterator)] if self._steps == 1 else several(iterator, self._steps)
        if not batches:
            raise StopIteration
        if self._stateful is not None:
            batches = [_stateful_step.without_none(batch) for batch in batches]
        outputs, (state, _) = list[Any](), newest.found
        for group in _groups(batches):
            traced = None if self._model.run_eagerly else self._stateful
            if traced is not None:
                if traced.version() != self._version:
                    self._step, self._version = self._make_step(), traced.version()
                traced.trace(_first_of(group), self._step.around if self._is_bare else None)
                state = traced.complete(state)
                newest.found = state, True
            parts, state = self._step(state, group, all_outputs=self._concatenate, keeper=newest)
            if traced is not None:
                state = traced.keras_part(state)
            newest.found = state, False
            outputs += parts
        if not self._concatenate:
            return outputs[-1], state
        return outputs[0] if len(outputs) == 1 else jax.tree.map(lambda *parts: np.concatenate(parts), *outputs), state


def _groups(batches: list[Any]) -> Iterator[list[Any] | Several]:
    """Group consecutive batches of equal structure and shapes: only such batches fit into one loop."""
    group: list[Any] = []
    for batch in batches:
        gathered = isinstance(batch, Several)  # grouped by the reader already
        if group and (gathered or signature(batch) != signature(group[0])):
            yield group
            group = []
        if gathered:
            yield batch
        else:
            group.append(batch)
    if group:
        yield group


def _first_of(group: list[Any] | Several) -> Any:
    return group[0] if isinstance(group, list) else jax.tree.map(lambda x: x[0], group.stacked)
