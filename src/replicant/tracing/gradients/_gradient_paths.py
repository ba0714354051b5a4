"""Finds the paths of gradients: the equations between a tape's sources and its target.

``tape.gradient`` leaves one mark in the jaxpr. Its *path* consists of the recorded equations through which a source reaches a
target. If paths do not overlap, each is evaluated once, as a whole, under ``jax.vjp``, and the rest of the function uses its inner
values. A path that overlaps with another one is evaluated again for its gradient alone, and XLA merges the copies.
"""

import dataclasses
import heapq
from collections.abc import Sequence

import jax.extend.core as jex
import numpy as np

from ...errors import GradientError
from ..jaxprs._marks import gradient_p, own_p, region_p


@dataclasses.dataclass(frozen=True)
class GradientPath:
    """One gradient mark, and the equations that its answer depends on."""

    mark: jex.JaxprEqn
    eqns: tuple[jex.JaxprEqn, ...]
    targets: tuple[jex.Var | jex.Literal, ...]
    cotangents: tuple[jex.Var | jex.Literal, ...]
    sources: tuple[jex.Var, ...]
    connected: tuple[bool, ...]  # for each source, whether there is a path to a target

    @property
    def call(self) -> int:
        """The index of the ``gradient`` call in its trace."""
        return self.mark.params["call"]


def find_paths(jaxpr: jex.Jaxpr) -> dict[int, GradientPath]:
    """Find the path of every gradient mark among the equations of `jaxpr`, by the position of the mark."""
    return {i: _path(jaxpr, i) for i, eqn in enumerate(jaxpr.eqns) if eqn.primitive is gradient_p}


def _recorded(jaxpr: jex.Jaxpr, tape: int, end: int) -> list[int]:
    """Return the positions before `end` at which `tape` was recording. A tape opened outside this jaxpr records from the start."""
    marks = [(i, e.params["opens"]) for i, e in enumerate(jaxpr.eqns[:end]) if e.primitive is region_p and e.params["tape"] == tape]
    recording = not marks or not marks[0][1]
    positions, changes = [], dict(marks)
    for i in range(end):
        recording = changes.get(i, recording)
        if recording and jaxpr.eqns[i].primitive is not region_p:
            positions.append(i)
    return positions


def _path(jaxpr: jex.Jaxpr, position: int) -> GradientPath:
    mark = jaxpr.eqns[position]
    k = mark.params["num_targets"]
    slices = len(mark.invars) - len(mark.params["gathered"])
    targets, cotangents, sources = mark.invars[:k], mark.invars[k : 2 * k], _named(mark.invars[2 * k : slices])
    recorded = _recorded(jaxpr, mark.params["tape"], position)
    reached = set(sources)
    forward = []
    for i in recorded:
        eqn = jaxpr.eqns[i]
        if eqn.primitive is not own_p and any(not isinstance(v, jex.Literal) and v in reached for v in eqn.invars):
            reached.update(eqn.outvars)
            forward.append(i)
    needed = {v for v in targets if not isinstance(v, jex.Literal)}
    inside = []
    for i in reversed(forward):
        eqn = jaxpr.eqns[i]
        if any(v in needed for v in eqn.outvars):
            needed.update(v for v in eqn.invars if not isinstance(v, jex.Literal))
            inside.append(eqn)
    connected = tuple(v in needed for v in sources)
    return GradientPath(mark, tuple(reversed(inside)), tuple(targets), tuple(cotangents), tuple(sources), connected)


def _named(sources: Sequence[jex.Var | jex.Literal]) -> list[jex.Var]:
    """Return the sources.

    Raises:
        GradientError: For a scalar constant. JAX writes it into the equations that use it, where it cannot be told from others.
    """
    for source in sources:
        if isinstance(source, jex.Literal):
            raise GradientError(
                f"A source of tape.gradient is the scalar constant {np.asarray(source.val)}, which was made inside the function "
                "and which the tape does not watch. Call `tape.watch(x)` before you compute anything from it, or make it an "
                "argument of the function or a Variable."
            )
    return [source for source in sources if isinstance(source, jex.Var)]


Entry = jex.JaxprEqn | GradientPath


def in_order(jaxpr: jex.Jaxpr, paths: dict[int, GradientPath]) -> list[Entry]:
    """Order the equations of `jaxpr` so that as many paths as possible are one entry each."""
    fused = _disjoint(paths)
    while fused:
        entries = _ordered(jaxpr, fused)
        if entries is not None:
            return entries
        fused.pop()  # the paths depend on each other, so one of them is evaluated twice instead
    return [eqn for eqn in jaxpr.eqns if eqn.primitive is not region_p]


def _disjoint(paths: dict[int, GradientPath]) -> list[GradientPath]:
    """Choose paths without common equations. Outer paths (later marks) come first, because they contain the inner ones."""
    taken: set[int] = set()
    chosen = []
    for _, candidate in sorted(paths.items(), reverse=True):
        ids = {id(eqn) for eqn in candidate.eqns}
        if ids and not ids & taken and id(candidate.mark) not in taken:
            taken |= ids
            chosen.append(candidate)
    return chosen


def _ordered(jaxpr: jex.Jaxpr, fused: Sequence[GradientPath]) -> list[Entry] | None:
    """Return a topological order close to the original one; None if the paths depend on each other in a circle."""
    home = {id(eqn): path for path in fused for eqn in path.eqns}
    entries: list[Entry] = []
    seen: set[int] = set()
    for eqn in jaxpr.eqns:
        entry = home.get(id(eqn), eqn)
        if eqn.primitive is not region_p and id(entry) not in seen:
            seen.add(id(entry))
            entries.append(entry)
    maker = {v: i for i, entry in enumerate(entries) for eqn in _eqns(entry) for v in eqn.outvars}
    path_of_mark = {id(path.mark): i for i, entry in enumerate(entries) if isinstance(entry, GradientPath) for path in (entry,)}
    waits: list[set[int]] = []
    for i, entry in enumerate(entries):
        before = {maker[v] for eqn in _eqns(entry) for v in eqn.invars if not isinstance(v, jex.Literal) and v in maker}
        if not isinstance(entry, GradientPath) and id(entry) in path_of_mark:
            before.add(path_of_mark[id(entry)])
        waits.append(before - {i})
    followers: list[list[int]] = [[] for _ in entries]
    for i, before in enumerate(waits):
        for j in before:
            followers[j].append(i)
    ready = [i for i, before in enumerate(waits) if not before]
    heapq.heapify(ready)
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(entries[i])
        for j in followers[i]:
            waits[j].discard(i)
            if not waits[j]:
                heapq.heappush(ready, j)
    return order if len(order) == len(entries) else None


def _eqns(entry: Entry) -> Sequence[jex.JaxprEqn]:
    return entry.eqns if isinstance(entry, GradientPath) else (entry,)


def connected_sources(jaxpr: jex.Jaxpr) -> dict[int, dict[int, bool]]:
    """Say for every gradient call which of its sources have a path to its target."""
    found = {}
    for path in find_paths(jaxpr).values():
        found[path.call] = linked = dict.fromkeys(path.mark.params["absent"], False)
        for owner, connected in zip(path.mark.params["owners"], path.connected, strict=True):
            linked[owner] = linked.get(owner, False) or connected
    return found
