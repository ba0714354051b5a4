"""Cuts a long program into segments, which are compiled by themselves and run one after the other.

XLA's time and memory to compile a program for the CPU grow with the square of its length. Segments grow in proportion. Moreover, a
model of many variables repeats itself, and segments that are alike are compiled once. So the cuts follow what the equations do, and
not their numbers: each is made where a checksum of the last few equations is least. Then all repetitions are cut at the same place.
"""

import dataclasses
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import jax.extend.core as jex

_WINDOW = 8  # equations that are seen at once


@dataclasses.dataclass(frozen=True)
class Segment:
    """A run of equations.

    Args:
        eqns: The equations.
        inputs: The variables that they read and do not compute, in the order of their first use.
        outputs: The variables that they compute and that later equations or the results of the whole program need.
    """

    eqns: tuple[jex.JaxprEqn, ...]
    inputs: tuple[jex.Var, ...]
    outputs: tuple[jex.Var, ...]


def cut(jaxpr: jex.Jaxpr, least: int, most: int) -> list[Segment]:
    """Cut a program without effects into segments of `least` to `most` equations; the last one may be shorter.

    Equations on which no result depends are left out.
    """
    eqns = _needed(jaxpr)
    ends = _ends([_mark(eqn) for eqn in eqns], least, most)
    last_use = {v: i for i, eqn in enumerate(eqns) for v in _variables(eqn.invars)}
    last_use |= dict.fromkeys(_variables(jaxpr.outvars), len(eqns))
    segments = []
    for begin, end in zip([0, *ends], ends, strict=False):
        part = tuple(eqns[begin:end])
        made = {v: None for eqn in part for v in eqn.outvars}
        inputs = dict.fromkeys(v for eqn in part for v in _variables(eqn.invars) if v not in made)
        segments.append(Segment(part, tuple(inputs), tuple(v for v in made if last_use.get(v, -1) >= end)))
    return segments


def _variables(atoms: Iterable[Any]) -> list[jex.Var]:
    return [atom for atom in atoms if not isinstance(atom, jex.Literal)]


def _needed(jaxpr: jex.Jaxpr) -> list[jex.JaxprEqn]:
    needed = set(_variables(jaxpr.outvars))
    found = []
    for eqn in reversed(jaxpr.eqns):
        if needed.isdisjoint(eqn.outvars):
            continue
        found.append(eqn)
        needed.update(_variables(eqn.invars))
    return found[::-1]


def _mark(eqn: jex.JaxprEqn) -> int:
    """Return a checksum, which is the same in each process, of an operation and the shapes of its results."""
    shapes = [getattr(v.aval, "shape", ()) for v in eqn.outvars]
    return zlib.crc32(f"{eqn.primitive.name} {shapes}".encode())


def _ends(marks: Sequence[int], least: int, most: int) -> list[int]:
    """Return where the segments end: after the least checksum of a window between `least` and `most`, the last of equal ones."""
    seen: deque[int] = deque(maxlen=_WINDOW)
    sums = []
    for mark in marks:
        seen.append(mark)
        sums.append(zlib.crc32(b"".join(m.to_bytes(4, "little") for m in seen)))
    ends, end = [], 0
    while len(marks) - end > most:
        end = min(range(end + least, end + most + 1), key=lambda i: (sums[i - 1], -i))
        ends.append(end)
    return [*ends, len(marks)] if len(marks) > end else ends
