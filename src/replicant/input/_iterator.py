"""Iterators: what `iter` returns for a dataset, distributed or not.

An error passes over nothing. The position stays behind the last element that was returned, and whoever asks again gets the error
again, or goes on there once the cause is gone.
"""

import abc
import os
from types import TracebackType
from typing import Any, Self

from ..errors import DatasetError, OutOfRangeError
from ..runtime import _steps
from ..variables._recorder import NotTraceable, current_recorder
from .graph._background import END, check_process
from .graph._graph import Node, State, describe

_STATE_VERSION = 1
_NOWHERE: State = {}  # instead of a position that cannot be saved
_NOTED_EVERY = 1000  # elements: noting a position takes some microseconds


class Optional:
    """The next element of an iterator, if there is one.

    >>> from replicant.data import Dataset
    >>> iterator = iter(Dataset.range(1))
    >>> iterator.get_next_as_optional().get_value()
    np.int64(0)
    >>> iterator.get_next_as_optional().has_value()
    False
    """

    def __init__(self, value: Any = END) -> None:
        self._value = value

    def has_value(self) -> bool:
        """Return whether there was another element."""
        return self._value is not END

    def get_value(self) -> Any:
        """Return the element.

        Raises:
            OutOfRangeError: If there was none.
        """
        if self._value is END:
            raise OutOfRangeError("This optional is empty: the iterator was at its end. Ask `has_value()` first.")
        return self._value


class ElementIterator(abc.ABC):
    """One pass over a dataset. Its position can be saved and restored, and ``with`` or `close` ends it early.

    >>> from replicant.data import Dataset
    >>> dataset = Dataset.range(10).shuffle(10, seed=1).batch(4)
    >>> iterator = iter(dataset)
    >>> first = next(iterator)
    >>> position = iterator.state()
    >>> second = next(iterator)
    >>> again = iter(dataset)
    >>> again.restore(position)
    >>> bool((next(again) == second).all())
    True
    """

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline

    @abc.abstractmethod
    def _take(self) -> Any:
        """The next element, or END."""

    @abc.abstractmethod
    def _position(self) -> State:
        """The position after the last element that was returned."""

    @abc.abstractmethod
    def _go_to(self, position: State | None) -> None:
        """Continue from this position, or begin another pass if it is None."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop reading; the iterator is then at its end. This happens by itself at the end and at garbage collection."""

    @property
    @abc.abstractmethod
    def element_spec(self) -> Any:
        """The structure of the elements' specs."""

    def _read(self) -> Any:
        """Call `_take`, but not while a function is being compiled: the elements would become constants of the program."""
        if current_recorder() is not None:
            raise NotTraceable(
                "A dataset was read while a function was being compiled, which would make its elements part of the program. Read "
                "it outside of `strategy.run`, and give each element to the function as an argument."
            )
        if _steps.recorder is None:
            return self._take()
        with _steps.waiting_for_input(_steps.recorder):
            return self._take()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        element = self._read()
        if element is END:
            raise StopIteration
        return element

    def get_next(self) -> Any:
        """Return the next element.

        Raises:
            OutOfRangeError: If there is none.
        """
        element = self._read()
        if element is END:
            raise OutOfRangeError("The iterator is at its end. Make another with `iter(dataset)`, or add `.repeat()`.")
        return element

    def get_next_as_optional(self) -> Optional:
        """Return the next element, or an empty `Optional` at the end."""
        return Optional(self._read())

    def state(self) -> State:
        """Return the exact position, as integers and strings that JSON can hold."""
        return {"version": _STATE_VERSION, "pipeline": self._pipeline, "position": self._position()}

    def restore(self, state: State) -> None:
        """Continue after the last element that was returned before ``state`` was taken.

        Raises:
            DatasetError: If the state belongs to another pipeline.
        """
        if state.get("version") != _STATE_VERSION or state.get("pipeline") != self._pipeline:
            raise DatasetError(
                "This position belongs to another pipeline, so it means nothing here. "
                f"It was saved from: {state.get('pipeline')!r}. This one is: {self._pipeline!r}. "
                "Build the same pipeline again."
            )
        self.close()
        self._go_to(state["position"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Pass:
    """The elements of a graph from a position on. After an error, they go on behind the last one that was returned."""

    def __init__(self, node: Node, position: State | None) -> None:
        self._node = node
        self.cursor = node.open(position)
        self._failed = False  # nobody knows where the cursor is then
        self._noted = position  # the position of some time before, from which one can go back to that of the last element
        self._since = 0  # elements returned since then
        self._skipped_before = 0  # by cursors that failed
        self._is_new = True
        self._process = os.getpid()

    def next(self) -> Any:
        """Return the next element, or `END`."""
        if self._failed:
            self._go_back()
        try:
            one = self.cursor.pull_one()
        except BaseException:
            self._failed = True
            raise
        if one is None:
            return END
        self._since += 1
        if self._is_new or self._since >= _NOTED_EVERY:  # before the first element, random orders may not be drawn
            self._note()
        return one[0]

    def _note(self) -> None:
        try:
            self._noted = self.cursor.state()
        except DatasetError:
            self._noted = _NOWHERE
        self._since, self._is_new = 0, False

    def _go_back(self) -> None:
        """Go to the position after the last element that was returned.

        Raises:
            DatasetError: If there is none, or the data have changed.
        """
        check_process(self._process)
        if self._noted is _NOWHERE:
            raise DatasetError("An iterator whose position cannot be saved does not go on after an error. Make a new one.")
        self._skipped_before += self.cursor.num_skipped
        self.cursor.close()
        self.cursor = self._node.open(self._noted)
        if (found := self.cursor.skip(self._since)) != self._since:
            raise DatasetError(
                f"The iterator cannot go on after an error: of the {self._since} elements before it, only {found} are there now. "
                "Put the data back as they were, or make a new iterator."
            )
        self._failed = False

    @property
    def last(self) -> State:
        """The position after the last element that was returned."""
        if self._failed:
            self._go_back()
        self._noted, self._since, self._is_new = self.cursor.state(), 0, False
        return self._noted

    def close(self) -> None:
        """Stop everything that runs in the background."""
        self.cursor.close()

    @property
    def num_skipped(self) -> int:
        """The number of records that were left out."""
        return self._skipped_before + self.cursor.num_skipped


class NotOpened:
    """Stands for what could not be opened at a position. Its error comes once the other workers can be told.

    Args:
        error: Why it could not be opened.
    """

    num_ready = num_skipped = 0

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def last(self) -> State:
        """Raise the error."""
        raise self._error

    def next(self) -> Any:
        """Raise the error."""
        raise self._error

    def close(self) -> None:
        """Do nothing."""


class DatasetIterator(ElementIterator):
    """Iterates over a dataset in this process, as NumPy."""

    def __init__(self, node: Node) -> None:
        super().__init__(describe(node))
        self._node, self._closed = node, False
        self._pass = self._opened(None)

    def _opened(self, position: State | None) -> Pass | NotOpened:
        return Pass(self._node, position)

    def _go_to(self, position: State | None) -> None:
        self._pass, self._closed = self._opened(position), False

    def _take(self) -> Any:
        if self._closed:
            return END
        element = self._pass.next()
        if element is END:
            self.close()
        return element

    def _position(self) -> State:
        return self._pass.last

    def close(self) -> None:
        self._closed = True
        self._pass.close()

    @property
    def num_skipped(self) -> int:
        """The number of records and elements that were left out.

        A reader with ``on_error="skip"`` could not read them, they were too long for ``pack_sequences(policy="drop")``, they are
        members of tar files that belong to no sample, or their making raised an error in front of ``ignore_errors``.
        """
        return self._pass.num_skipped

    @property
    def element_spec(self) -> Any:
        return self._node.spec
