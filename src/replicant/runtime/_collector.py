"""Keeps Python's garbage collector from running while very many objects are made that stay."""

import gc

_PAUSED = (1 << 30) + 7  # a threshold that nobody else sets


class CollectionPaused:
    """Pauses the search for garbage while modules are imported or a program is traced.

    Both make many objects, almost all of which stay, and the collector would go over them again and again. Blocks may be nested and
    may overlap on several threads: the first to begin also ends the pause.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = gc.get_threshold()
        gc.set_threshold(_PAUSED, *self._before[1:])

    def __exit__(self, *exc_info: object) -> None:
        if gc.get_threshold()[0] == _PAUSED != self._before[0]:  # nobody else has changed it, nor paused it before
            gc.set_threshold(*self._before)
