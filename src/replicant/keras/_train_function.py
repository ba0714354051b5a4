"""The one thing that is put in the place of a model's train function while a ``fit`` runs, with all that acts on its steps.

Keras calls ``model.train_function(state, iterator)`` for each step and has no hook around that: those for batches come before and
after it, and cost waiting for the step. Whoever acts on steps is a link of one chain, whose order does not depend on who came
first. A chain without links leaves the model as it was.
"""

import enum
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
Step = Callable[[Any, Iterator[Any]], tuple[Any, Any]]  # (state, iterator) -> (logs, state)
Link = Callable[[Step, Any, Iterator[Any]], tuple[Any, Any]]  # the same, with what it is around


class Rank(enum.IntEnum):
    """Where a link is, from the innermost out."""

    GUARD = 0  # decides what a step may write
    WATCH = 1  # sees what it reads, and how long it takes
    NOTE = 2  # keeps what it reports
    SKIP = 3  # takes its place


class TrainFunction:
    """A model's train function, and the links around it.

    Args:
        model: whose it is.
        plain: what the model made; None if it is to be made when it is first needed.
    """

    def __init__(self, model: Any, plain: Step | None):
        self._model = model
        self._plain = plain
        self._links: list[tuple[Rank, Link]] = []
        self._whole = self._connected()

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        """As Keras calls it."""
        return self._whole(state, iterator)

    def put(self, rank: Rank, link: Link) -> None:
        """Add a link, outside of others of its rank; nothing happens if it is one already."""
        if (rank, link) not in self._links:
            self._links = sorted([*self._links, (rank, link)], key=lambda each: each[0])
            self._whole = self._connected()

    def take(self, link: Link) -> None:
        """Remove a link, if it is one."""
        self._links = [each for each in self._links if each[1] != link]
        self._whole = self._connected()
        if not self._links and self._model.train_function is self:
            self._model.train_function = self._plain

    def find(self, kind: type[T]) -> T | None:
        """The link of this class."""
        links: list[Any] = [link for _, link in self._links]
        return next((link for link in links if isinstance(link, kind)), None)

    def _connected(self) -> Step:
        step: Step = self._make_and_call if self._plain is None else self._plain
        for _, link in self._links:
            step = functools.partial(link, step)
        return step

    def _make_and_call(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        if self._plain is None:
            self._plain = made(self._model)
        return self._plain(state, iterator)


def train_function_of(model: Any) -> TrainFunction:
    """The chain in the place of the model's train function; there is one from now on."""
    if not isinstance(model.train_function, TrainFunction):
        model.train_function = TrainFunction(model, model.train_function)
    return model.train_function


def made(model: Any, step: Callable[..., Any] | None = None) -> Any:
    """The train function that a model makes, of `step` if that is given, instead of its own."""
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
