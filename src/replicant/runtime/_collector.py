"""Keeps Python's garbage collector from running while very many objects are made that stay."""

import gc

_PAUSED = (1 << 30) + 7  # a threshold that nobody else sets
_OF_PYTHON = 1_000  # more than the objects that Python 3.12 itself has frozen from the beginning, and less than a program freezes


class CollectionPaused:
    """Pauses the search for garbage while modules are imported or a program is traced.

    Both make many objects, almost all of which stay, and the collector would go over them again and again. Blocks may be nested and
    may overlap on several threads: the first to begin also ends the pause.

    Args:
        stays: Whether what is made meanwhile stays until the process ends, as modules do. Then it counts as old when the pause
            ends, and only a full collection goes over it.
    """

    __slots__ = ("_before", "_stays")

    def __init__(self, *, stays: bool = False):
        self._stays = stays

    def __enter__(self) -> None:
        self._before = gc.get_threshold()
        gc.set_threshold(_PAUSED, *self._before[1:])

    def __exit__(self, *exc_info: object) -> None:
        if gc.get_threshold()[0] == _PAUSED != self._before[0]:  # nobody else has changed it, nor paused it before
            if self._stays:
                _make_old()
            gc.set_threshold(*self._before)


def _make_old() -> None:
    """Move all objects to the oldest generation, where a full collection still finds them. This does not go over them."""
    if gc.get_freeze_count() < _OF_PYTHON:  # what the program has frozen must stay frozen
        gc.freeze()
        gc.unfreeze()
