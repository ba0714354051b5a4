"""What a plan is waiting for just now: told to those who listen, because a compiler can take minutes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[str], None]] = []


def stage(text: str) -> None:
    """What begins now, in a few words."""
    for listener in _listeners:
        listener(text)


def heard() -> bool:
    """Whether anybody listens."""
    return bool(_listeners)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Within the ``with`` block, `listener` is called with each stage's words, at its beginning.

    >>> with listening(print):
    ...     stage("compiling")
    compiling
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
