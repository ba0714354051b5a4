"""Tells listeners what a plan is waiting for, because a compiler can take minutes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[str], None]] = []


def stage(text: str) -> None:
    """Tell all listeners, in a few words, what begins now."""
    for listener in _listeners:
        listener(text)


def heard() -> bool:
    """Whether there are listeners."""
    return bool(_listeners)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call `listener` with the text of each stage that begins in the ``with`` block.

    >>> with listening(print):
    ...     stage("compiling")
    compiling
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
