"""A pass over a generator that is begun to learn what its elements are, and given to whoever reads it first.

What a generator has yielded cannot be read again if it comes from a queue or a socket. So what a look at it reads is kept, and is
the beginning of the next pass.
"""

import contextlib
import contextvars
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Self

import jax

from ...runtime._own_memory import own
from ..graph._structure import is_leaf

_looking: contextvars.ContextVar[bool] = contextvars.ContextVar("replicant_looking", default=False)


def is_looking() -> bool:
    """Whether what is opened now only looks at elements."""
    return _looking.get()


@contextlib.contextmanager
def looking() -> Iterator[None]:
    """Only look at the elements of the datasets that are opened in the block: generators keep them for the next pass."""
    token = _looking.set(True)
    try:
        yield
    finally:
        _looking.reset(token)


@dataclasses.dataclass(frozen=True)
class _Failed:
    """Stands for an element that the generator raised an error for."""

    error: Exception


class Begun:
    """A pass that has begun, and what was read of it. Looks and the pass itself may read at the same time, in several threads."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._lock = threading.RLock()
        self._items: list[Any] = []
        self._at_end = self._broken = False
        self.num_looks = 0  # that may read any item again

    @property
    def ends_in_error(self) -> bool:
        """Whether the last thing that was read was an error, which another pass may not meet."""
        return self._broken or (not self._at_end and bool(self._items) and isinstance(self._items[-1], _Failed))

    def item(self, number: int) -> Any:
        """Return an element, which is kept for others.

        Raises:
            StopIteration: If there are not so many.
            Exception: If the generator raised it in the place of the element.
        """
        with self._lock:
            while number >= len(self._items):
                self._read(keep=True)
            return _given(self._items[number])

    def next_item(self, number: int) -> Any:
        """Return an element, whose number is one more than the last time, as `item` does. It is kept only if others need it."""
        with self._lock:
            if number < len(self._items):
                item = self._items[number]
                if not self.num_looks:
                    self._items[number] = None
                return _given(item)
            return _given(self._read(keep=self.num_looks > 0))

    def _read(self, *, keep: bool) -> Any:
        if self._at_end:
            raise StopIteration
        item: Any
        try:
            item = next(self._iterator)
        except StopIteration:
            self._at_end = True
            raise
        except Exception as error:  # noqa: BLE001 - raised where the element is asked for
            item = _Failed(error)
        except BaseException:
            self._broken = True
            raise
        if keep:  # the generator may write to its arrays again
            item = jax.tree.map(own, item, is_leaf=lambda each: is_leaf(each) or isinstance(each, _Failed))
            self._items.append(item)
        return item


def _given(item: Any) -> Any:
    if isinstance(item, _Failed):
        raise item.error
    return item


class Whole:
    """The pass, from its first element on."""

    def __init__(self, begun: Begun) -> None:
        self._begun, self._number = begun, 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        number, self._number = self._number, self._number + 1
        return self._begun.next_item(number)


class Look:
    """Reads the beginning of the next pass, and leaves it there.

    Args:
        passes: Whose next pass.
        make: Begins a pass.
    """

    def __init__(self, passes: "Passes", make: Callable[[], Iterator[Any]]) -> None:
        self._number = 0
        self._begun = passes.looked_at(make)
        self.close = weakref.finalize(self, passes.leave, self._begun)  # also if whoever looks is dropped

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        number, self._number = self._number, self._number + 1
        return self._begun.item(number)


class Passes:
    """The passes over one generator."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._begun: Begun | None = None  # the next pass, if somebody has looked at it
        self.spec: Any = None  # of the elements, once one has been read

    def __reduce__(self) -> Any:  # a lock cannot travel to other processes, nor can an iterator
        return Passes, ()

    def begin(self, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Return the next pass, from its beginning on."""
        with self._lock:
            begun, self._begun = self._begun, None
        return make() if begun is None else Whole(begun)

    def looked_at(self, make: Callable[[], Iterator[Any]]) -> Begun:
        """Return the next pass, to look at it. `leave` must be called afterwards."""
        with self._lock:
            if self._begun is None:
                self._begun = Begun(make())
            self._begun.num_looks += 1
            return self._begun

    def leave(self, begun: Begun) -> None:
        """Note that a look at a pass has ended. If it has failed, the next pass begins anew, and may not."""
        with self._lock:
            begun.num_looks -= 1
            if begun is self._begun and begun.ends_in_error:
                self._begun = None
