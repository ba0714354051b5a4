"""Where the gradients of a traced function live: the equations between a tape's sources and its target.

``tape.gradient`` leaves one mark in the jaxpr. Its *slice* is every recorded equation that lies on a path from a source to a
target. Where slices do not overlap, each becomes one step of the plan, evaluated once under ``jax.vjp``; its inner values serve
the rest of the function too. An overlapping slice is evaluated again for its gradient alone (XLA merges the copies).
"""

import dataclasses
import heapq
from collections.abc import Sequence

import jax.extend.core as jex
import numpy as np

from ..errors import GradientError
from ._marks import gradient_p, own_p, region_p


@dataclasses.dataclass(frozen=True)
class Slice:
    """One gradient mark and the equations that its answer depends on."""

    mark: jex.JaxprEqn
    eqns: tuple[jex.JaxprEqn, ...]
    targets: tuple[jex.Var | jex.Literal, ...]
    cotangents: tuple[jex.Var | jex.Literal, ...]
    sources: tuple[jex.Var, ...]
    connected: tuple[bool, ...]  # per source: is there a path to a target

    @property
    def call(self) -> int:
        """The number of the ``gradient`` call in its trace."""
        return self.mark.params["call"]


def find_slices(jaxpr: jex.Jaxpr) -> dict[int, Slice]:
    """The slice of every gradient mark among the equations of `jaxpr`, by position of the mark."""
    return {i: _slice(jaxpr, i) for i, eqn in enumerate(jaxpr.eqns) if eqn.primitive is gradient_p}


def _recorded(jaxpr: jex.Jaxpr, tape: int, end: int) -> list[int]:
    """Positions before `end` at which `tape` was recording. A tape opened outside of this jaxpr records from its start."""
    marks = [(i, e.params["opens"]) for i, e in enumerate(jaxpr.eqns[:end]) if e.primitive is region_p and e.params["tape"] == tape]
    recording = not marks or not marks[0][1]
    positions, changes = [], dict(marks)
    for i in range(end):
        recording = changes.get(i, recording)
        if recording and jaxpr.eqns[i].primitive is not region_p:
            positions.append(i)
    return positions


def _slice(jaxpr: jex.Jaxpr, position: int) -> Slice:
    mark = jaxpr.eqns[position]
    k = mark.params["num_targets"]
    targets, cotangents, sources = mark.invars[:k], mark.invars[k : 2 * k], _named(mark.invars[2 * k :])
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
    return Slice(mark, tuple(reversed(inside)), tuple(targets), tuple(cotangents), tuple(sources), connected)


def _named(sources: Sequence[jex.Var | jex.Literal]) -> list[jex.Var]:
    """The sources, or an error: JAX writes scalar constants into the equations that use them, and none can be told from others."""
    for source in sources:
        if isinstance(source, jex.Literal):
            raise GradientError(
                f"A source of tape.gradient is the scalar constant {np.asarray(source.val)}, which was made inside the function "
                "and which the tape does not watch. Call `tape.watch(x)` before anything is computed from it, or make it an "
                "argument of the function or a Variable."
            )
    return [source for source in sources if isinstance(source, jex.Var)]


Step = jex.JaxprEqn | Slice


def plan(jaxpr: jex.Jaxpr, slices: dict[int, Slice]) -> list[Step]:
    """The equations of `jaxpr` in an order in which every slice that can be is one step."""
    fused = _disjoint(slices)
    while fused:
        steps = _ordered(jaxpr, fused)
        if steps is not None:
            return steps
        fused.pop()  # slices that feed each other: evaluate one of them twice instead
    return [eqn for eqn in jaxpr.eqns if eqn.primitive is not region_p]


def _disjoint(slices: dict[int, Slice]) -> list[Slice]:
    """Slices without a common equation; outer ones (later marks) first, since they contain the inner ones."""
    taken: set[int] = set()
    chosen = []
    for _, candidate in sorted(slices.items(), reverse=True):
        ids = {id(eqn) for eqn in candidate.eqns}
        if ids and not ids & taken and id(candidate.mark) not in taken:
            taken |= ids
            chosen.append(candidate)
    return chosen


def _ordered(jaxpr: jex.Jaxpr, fused: Sequence[Slice]) -> list[Step] | None:
    """A topological order close to the original one, None if the slices feed each other in a circle."""
    home = {id(eqn): piece for piece in fused for eqn in piece.eqns}
    steps: list[Step] = []
    seen: set[int] = set()
    for eqn in jaxpr.eqns:
        step = home.get(id(eqn), eqn)
        if eqn.primitive is not region_p and id(step) not in seen:
            seen.add(id(step))
            steps.append(step)
    maker = {v: i for i, step in enumerate(steps) for eqn in _eqns(step) for v in eqn.outvars}
    slice_of_mark = {id(piece.mark): i for i, step in enumerate(steps) if isinstance(step, Slice) for piece in (step,)}
    waits: list[set[int]] = []
    for i, step in enumerate(steps):
        before = {maker[v] for eqn in _eqns(step) for v in eqn.invars if not isinstance(v, jex.Literal) and v in maker}
        if not isinstance(step, Slice) and id(step) in slice_of_mark:
            before.add(slice_of_mark[id(step)])
        waits.append(before - {i})
    followers: list[list[int]] = [[] for _ in steps]
    for i, before in enumerate(waits):
        for j in before:
            followers[j].append(i)
    ready = [i for i, before in enumerate(waits) if not before]
    heapq.heapify(ready)
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(steps[i])
        for j in followers[i]:
            waits[j].discard(i)
            if not waits[j]:
                heapq.heappush(ready, j)
    return order if len(order) == len(steps) else None


def _eqns(step: Step) -> Sequence[jex.JaxprEqn]:
    return step.eqns if isinstance(step, Slice) else (step,)


def connected_sources(jaxpr: jex.Jaxpr) -> dict[int, dict[int, bool]]:
    """For every gradient call: which of the sources that it asks for have a path to its target."""
    found = {}
    for piece in find_slices(jaxpr).values():
        found[piece.call] = linked = dict.fromkeys(piece.mark.params["absent"], False)
        for owner, connected in zip(piece.mark.params["owners"], piece.connected, strict=True):
            linked[owner] = linked.get(owner, False) or connected
    return found
