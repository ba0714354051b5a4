"""The programs of one compiled function, by signature; of too many the least recently used are forgotten."""

import collections
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from ._program import Program
from ._signature import Signature

_MAX_PROGRAMS = 256  # of one function
MAX_ALIKE = 64  # that differ in nothing but Python arguments
_MAX_STATES = 16  # that differ in nothing but what was watched

_ordering = threading.Lock()  # of programs of one signature; not an attribute, for functions are sent to other processes


class Programs:
    """Those of one signature are a chain, the last used first: ``watch`` says which one is good now."""

    def __init__(self) -> None:
        self._newest: collections.OrderedDict[Any, Program] = collections.OrderedDict()  # the last used of each signature
        self._last: Program | None = None

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Program]:
        for newest in self._newest.values():
            yield from newest.and_older()

    def find(self, signature: Signature) -> Program | None:
        """The program for these arguments under which everything that was watched is as it was."""
        newest = program = self._newest.get(signature.key)
        newer: Program | None = None
        while program is not None and not program.watch.holds():
            newer, program = program, program.older
        if program is None:
            return None
        if newer is not None:
            self._put_first(signature.key, newest, newer, program)
        if program is not self._last:  # mostly it is, and the key need not be hashed once more
            self._last = program
            with contextlib.suppress(KeyError):  # another thread has forgotten it meanwhile
                self._newest.move_to_end(signature.key)
        return program

    def _put_first(self, key: Any, newest: Program | None, newer: Program, program: Program) -> None:
        with _ordering:
            if self._newest.get(key) is newest and newer.older is program:  # else another thread has changed the order
                newer.older, program.older = program.older, newest
                self._newest[key] = program

    def add(self, signature: Signature, program: Program) -> list[Program]:
        """Keep a program; returns all programs of its signature, itself first."""
        with _ordering:
            program.older = self._newest.get(signature.key)
            self._newest[signature.key] = program
            chain = list(program.and_older())
            if len(chain) >= _MAX_STATES:
                chain[_MAX_STATES - 1].older = None
        self._newest.move_to_end(signature.key)
        self._last = program
        return chain

    def alike(self, signature: Signature) -> list[Any]:
        """The keys that differ from a signature at most in Python objects."""
        return [key for key in list(self._newest) if signature.is_like(key)]

    def forget(self, alike: list[Any]) -> None:
        """Forget what is too much, now that these are alike."""
        if len(alike) > MAX_ALIKE:
            self._newest.pop(alike[0], None)
        elif len(self._newest) > _MAX_PROGRAMS:
            self._newest.popitem(last=False)
