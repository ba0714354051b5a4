"""``Segmented``: a long program in segments, each compiled by itself, which run one after the other (see ``tracing/segments``)."""

import collections
import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.sharding import Sharding

from ...tracing.jaxprs._bind import bind
from ...tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from ...tracing.segments._identical_segments import Alike
from ...tracing.segments._segments import Segment, cut

# Equations: those of some 5,000 variables with SGD. What crosses a cut becomes an array. So with tiny layers,
# a step in segments takes twice the processor time of a whole one, and shorter programs stay whole.
LONG = 50_000
LEAST, MOST = 200, 600  # equations of a segment


def can_be_cut(jaxpr: ClosedJaxpr, inputs: Sequence[Any], home: Sharding | None) -> bool:
    """Whether a program is long, and segments would do the same: without effects, whose order would be lost, and on one device."""
    if len(jaxpr.eqns) <= LONG or jaxpr.effects:
        return False
    arrays = [x for x in jax.tree.leaves(inputs) if isinstance(x, jax.Array)]
    return home is not None or not any(x.committed for x in arrays)


class Segmented:
    """A program in segments. It is called with the inputs of the whole program, and returns its outputs.

    Args:
        traced: The whole program (``jax.jit(f).trace(...)``).
        inputs: Inputs as those that it will be called with: arrays on `home`, or not committed to a device, and numbers.
        num_donated: So many of the first leaves of the inputs may be overwritten.
        home: The device on which everything is computed; None if JAX decides.
    """

    def __init__(self, traced: Any, inputs: Sequence[Any], num_donated: int, home: Sharding | None):
        self._kinds, self._options = _kinds(jax.tree.leaves(inputs)), trace_options()
        self._tree = jax.tree.structure(traced.out_info)
        self._consts = [jax.device_put(x, home) for x in traced.jaxpr.consts]
        plan = _Plan(traced.jaxpr, num_donated, home)
        self._steps, self._results, self._num_slots = plan.steps, plan.results, plan.num_slots
        self.num_segments, self.num_compiled = len(plan.steps), len(plan.compiled)

    def takes(self, inputs: Sequence[Any]) -> bool:
        """Whether it was made for inputs of these shapes, dtypes and places, and with JAX's present options."""
        return trace_options() is self._options and _kinds(jax.tree.leaves(inputs)) == self._kinds

    def __call__(self, *inputs: Any) -> Any:
        slots: list[Any] = [*jax.tree.leaves(inputs), *self._consts]
        slots += [None] * (self._num_slots - len(slots))
        for step in self._steps:
            results = step.program(*[slots[i] for i in step.taken])
            for i, result in zip(step.made, results, strict=True):
                slots[i] = result
            for i in step.unused:  # so that its memory is free
                slots[i] = None
        return jax.tree.unflatten(self._tree, [slots[i] for i in self._results])


@dataclasses.dataclass(frozen=True)
class _Step:
    """A compiled segment, and the slots that it reads, fills, and leaves for nobody."""

    program: Callable[..., Any]
    taken: list[int]
    made: list[int]
    unused: list[int]


class _Plan:
    """Compiles all segments, before anything is overwritten, and gives each value a slot."""

    def __init__(self, closed: ClosedJaxpr, num_donated: int, home: Sharding | None):
        jaxpr = closed.jaxpr
        self._home = home
        self._given: dict[jex.Var, int] = {v: i for i, v in enumerate([*jaxpr.invars, *jaxpr.constvars])}
        self._slots = dict(self._given)
        self._overwritten = set(jaxpr.invars[:num_donated])
        self._alike = Alike()
        self.compiled: dict[Hashable, Callable[..., Any]] = {}
        segments = cut(jaxpr, LEAST, MOST)
        self._last_use: dict[Any, int] = {v: i for i, segment in enumerate(segments) for v in segment.inputs}
        self._last_use |= {v: len(segments) for v in jaxpr.outvars if not isinstance(v, jex.Literal)}
        self.steps = [self._step(i, segment) for i, segment in enumerate(segments)]
        self.num_slots = len(self._slots)
        self.results = self._gather_results(jaxpr.outvars)

    def _step(self, index: int, segment: Segment) -> _Step:
        unused = [v for v in segment.inputs if self._last_use[v] == index]
        program = self._program(segment, self._donated(segment, self._overwritten.intersection(unused)))
        taken = [self._slots[v] for v in segment.inputs]
        made = [self._slots.setdefault(v, len(self._slots)) for v in segment.outputs]
        return _Step(program, taken, made, [self._slots[v] for v in unused])

    def _donated(self, segment: Segment, free: set[jex.Var]) -> tuple[int, ...]:
        """Return which of the `free` inputs a segment may overwrite: one for each output of the same type."""
        room = collections.Counter(_type_of(v) for v in segment.outputs)
        found = []
        for i, v in enumerate(segment.inputs):
            if v in free and room[_type_of(v)]:
                room[_type_of(v)] -= 1
                found.append(i)
        return tuple(found)

    def _program(self, segment: Segment, donated: tuple[int, ...]) -> Callable[..., Any]:
        key = (self._alike.key(segment), donated)
        if key not in self.compiled:
            self.compiled[key] = self._compile(_function(segment), segment.inputs, donated)
        return self.compiled[key]

    def _compile(self, fn: Callable[..., Any], inputs: Sequence[jex.Var], donated: tuple[int, ...] = ()) -> Callable[..., Any]:
        jitted = jax.jit(fn, donate_argnums=donated, out_shardings=self._home)
        avals: list[Any] = [v.aval for v in inputs]
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type, sharding=self._home) for x in avals]
        return jitted.lower(*shapes).compile()

    def _gather_results(self, outvars: Sequence[Any]) -> list[int]:
        """Return the slots of the results. A last step copies those that are an input, or another result, or constants.

        Otherwise, a later call could overwrite two variables, or an array of the user, in one.
        """
        count = collections.Counter(v for v in outvars if not isinstance(v, jex.Literal))
        own = [not isinstance(v, jex.Literal) and count[v] == 1 and v not in self._given for v in outvars]
        copied = [v for v, is_own in zip(outvars, own, strict=True) if not is_own]
        made = list(range(self.num_slots, self.num_slots + len(copied)))
        if copied:
            read = list(dict.fromkeys(v for v in copied if not isinstance(v, jex.Literal)))
            self.steps.append(_Step(self._compile(_copies(read, copied), read), [self._slots[v] for v in read], made, []))
            self.num_slots += len(made)
        copies = iter(made)
        return [self._slots[v] if is_own else next(copies) for v, is_own in zip(outvars, own, strict=True)]


def _copies(read: list[jex.Var], wanted: list[Any]) -> Callable[..., list[Any]]:
    def copies(*values: Any) -> list[Any]:
        known = dict(zip(read, values, strict=True))
        return [jnp.array(v.val, _type_of(v)[1]) if isinstance(v, jex.Literal) else jnp.copy(known[v]) for v in wanted]

    return copies


def _type_of(v: Any) -> tuple[Any, Any]:
    return v.aval.shape, v.aval.dtype


def _function(segment: Segment) -> Callable[..., list[Any]]:
    def compute(*values: Any) -> list[Any]:
        known: dict[Any, Any] = dict(zip(segment.inputs, values, strict=True))
        for eqn in segment.eqns:
            operands = [v.val if isinstance(v, jex.Literal) else known[v] for v in eqn.invars]
            known.update(zip(eqn.outvars, bind(eqn, operands), strict=True))
        return [known[v] for v in segment.outputs]

    return compute


def trace_options() -> object:
    """Return an object that stands for the options with which JAX traces: the precision of products, the default device and others.

    JAX keeps one trace of an empty program for each set of them.
    """
    return _nothing.trace().jaxpr


_nothing = jax.jit(lambda: ())


def _kinds(leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the types and places of inputs. In a loop, they are the same objects each time, and quickly compared."""
    arrays = [isinstance(x, jax.Array) for x in leaves]
    return (
        [x.aval if known else jax.typeof(x) for x, known in zip(leaves, arrays, strict=True)],
        [x.sharding if known else None for x, known in zip(leaves, arrays, strict=True)],
    )
