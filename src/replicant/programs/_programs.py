"""The programs of one compiled function, by signature. If there are too many, the least recently used are dropped."""

import collections
import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from ..replicas._placement import Placement
from ._program import Program
from .arguments._signature import Signature

_MAX_PROGRAMS = 256  # programs of one function
MAX_ALIKE = 64  # programs that differ only in Python arguments
_MAX_STATES = 16  # programs that differ only in what is watched; with numbers among the arguments, MAX_ALIKE

_ordering = threading.Lock()  # guards the order of programs; not an attribute, because functions are sent to other processes


class _Form(NamedTuple):
    """What tells one call's signature from others if all of its arguments are arrays of JAX."""

    tree: Any
    placement: Placement
    leaves: list[tuple[type, Any, tuple[int, ...], Any, bool]]
    program: Program


class Programs:
    """The programs of one function. Those of one signature form a chain, the last used first. The first that suits a call runs."""

    def __init__(self) -> None:
        self._newest: collections.OrderedDict[Any, Program] = collections.OrderedDict()  # signature -> its last used program
        self._last: Program | None = None
        self._form: _Form | None = None  # of the last call, if all of its arguments were arrays of JAX

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Program]:
        for newest in self._newest.values():
            yield from newest.and_older()

    def same_again(self, leaves: Sequence[Any], tree: Any, placement: Placement) -> Program | None:
        """Return the program of the last call if this one is like it, without the signature, as it is in a loop; else None."""
        form = self._form
        if form is None or form.program is not self._last or form.placement is not placement or form.tree != tree:
            return None
        for leaf, (kind, aval, shape, dtype, weak_type) in zip(leaves, form.leaves, strict=True):
            if type(leaf) is not kind:
                return None
            if leaf.aval is not aval and (leaf.shape != shape or leaf.dtype != dtype or leaf.weak_type is not weak_type):
                return None
        return form.program if form.program.watch.holds() else None

    def _note(self, signature: Signature, program: Program) -> None:
        """Note the form of a call, so that the next one may be found by it."""
        arrays = signature.arrays
        if signature.tree.num_leaves == len(arrays) and all(isinstance(x, jax.Array) and hasattr(x, "weak_type") for x in arrays):
            kinds = [(type(x), x.aval, x.shape, x.dtype, x.weak_type) for x in arrays]  # of a dataset, all have the same aval
            self._form = _Form(signature.tree, signature.placement, kinds, program)
        else:
            self._form = None

    def find(self, signature: Signature) -> Program | None:
        """Return the program for these arguments, if everything that it watches is unchanged; None if there is none."""
        newest = program = self._newest.get(signature.key)
        newer: Program | None = None
        while program is not None and not program.suits(signature):
            newer, program = program, program.older
        if program is None:
            return None
        if newer is not None:
            self._put_first(signature.key, newest, newer, program)
        if program is not self._last:  # usually it is the last one, and the key need not be hashed again
            self._last = program
            with contextlib.suppress(KeyError):  # another thread may have dropped it meanwhile
                self._newest.move_to_end(signature.key)
        self._note(signature, program)
        return program

    def _put_first(self, key: Any, newest: Program | None, newer: Program, program: Program) -> None:
        with _ordering:
            if self._newest.get(key) is newest and newer.older is program:  # otherwise another thread has changed the order
                newer.older, program.older = program.older, newest
                self._newest[key] = program

    def add(self, signature: Signature, program: Program) -> list[Program]:
        """Keep a program. Return all programs of its signature, the new one first."""
        with _ordering:
            program.older = self._newest.get(signature.key)
            self._newest[signature.key] = program
            chain = list(program.and_older())
            limit = MAX_ALIKE if signature.numbers else _MAX_STATES
            if len(chain) >= limit:
                chain[limit - 1].older = None
        self._newest.move_to_end(signature.key)
        self._last = program
        return chain

    def alike(self, signature: Signature) -> list[Any]:
        """Return the keys that differ from a signature at most in Python objects."""
        return [key for key in list(self._newest) if signature.is_like(key)]

    def forget(self, alike: list[Any]) -> None:
        """Drop a program if there are too many of the keys in `alike`, or too many in all."""
        if len(alike) > MAX_ALIKE:
            self._newest.pop(alike[0], None)
        elif len(self._newest) > _MAX_PROGRAMS:
            self._newest.popitem(last=False)
