"""Replaces a model's train function while a ``fit`` runs, by a chain of everything that acts on its steps.

Keras calls ``model.train_function(state, iterator)`` for each step and has no hook around that call. Its batch hooks run before and
after it, and wait for the step. Everything that acts on steps is a link of one chain, ordered by rank. When the last link is taken
out, the model gets its own train function back.
"""

import enum
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
Step = Callable[[Any, Iterator[Any]], tuple[Any, Any]]  # (state, iterator) -> (logs, state)
Link = Callable[[Step, Any, Iterator[Any]], tuple[Any, Any]]  # (inner step, state, iterator) -> (logs, state)


class Rank(enum.IntEnum):
    """The place of a link, from the innermost out."""

    GUARD = 0  # decides what a step may write
    WATCH = 1  # sees what a step reads, and how long it takes
    NOTE = 2  # keeps what a step reports
    SKIP = 3  # replaces a step


class TrainFunction:
    """A model's train function, and the links around it.

    Args:
        model: The model.
        plain: The train function that the model made; None to make it at the first call.
    """

    def __init__(self, model: Any, plain: Step | None):
        self._model = model
        self._plain = plain
        self._links: list[tuple[Rank, Link]] = []
        self._whole = self._connected()

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        """Take a step through all links, as Keras calls it."""
        return self._whole(state, iterator)

    def add(self, rank: Rank, link: Link) -> None:
        """Add a link outside the others of its rank, unless it is in the chain already."""
        if (rank, link) not in self._links:
            self._links = sorted([*self._links, (rank, link)], key=lambda each: each[0])
            self._whole = self._connected()

    def remove(self, link: Link) -> None:
        """Remove a link, if it is in the chain."""
        self._links = [each for each in self._links if each[1] != link]
        self._whole = self._connected()
        if not self._links and self._model.train_function is self:
            self._model.train_function = self._plain

    def find(self, kind: type[T]) -> T | None:
        """Return the link of this class; None if there is none."""
        links: list[Any] = [link for _, link in self._links]
        return next((link for link in links if isinstance(link, kind)), None)

    def _connected(self) -> Step:
        step: Step = self._make_and_call if self._plain is None else self._plain
        for _, link in self._links:
            step = functools.partial(link, step)
        return step

    def _make_and_call(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        if self._plain is None:
            self._plain = make_train_function(self._model)
        return self._plain(state, iterator)


def train_function_of(model: Any) -> TrainFunction:
    """Return the chain that replaces the model's train function, and make it if there is none."""
    if not isinstance(model.train_function, TrainFunction):
        model.train_function = TrainFunction(model, model.train_function)
    return model.train_function


def make_train_function(model: Any, step: Callable[..., Any] | None = None) -> Any:
    """Return the train function that a model makes from its own train_step, or from `step` if that is given."""
    attributes = model.__dict__
    before, own = model.train_function, attributes.get("train_step")
    model.train_function = None
    if step is not None:
        attributes["train_step"] = step  # not an attribute of the layer: Keras would try to track it
    try:
        model.make_train_function()
        return model.train_function
    finally:
        model.train_function = before
        attributes.pop("train_step", None)
        if own is not None:
            attributes["train_step"] = own
