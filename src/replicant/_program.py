"""Compiles cross-replica code: find its state, trace it with that state as inputs and outputs, start it, write the state back.

``Compiled`` is behind ``replicant.function`` and behind ``strategy.run`` outside of a function. The first call rehearses: it
traces the code abstractly to see which variables it uses and on which devices. Then the code is traced for good by ``jax.jit``.
"""

import collections
import dataclasses
import enum
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _inflight, _planning, _state
from ._adopt import adopt, check_same_program
from ._context import get_strategy
from ._interpret import run_alone
from ._placement import Placement
from ._slices import connected_sources
from ._state import CrossRecorder, Facts, Recorder, Ref, Refs, UnknownState, recording, require_eager, tracing
from ._values import HostArray, PerReplica, is_array, is_distributed, is_host_array
from .errors import ArgumentError, ReplicantError

_MAX_PROGRAMS = 256  # of one function; the oldest are forgotten
_MANY_PROGRAMS = 16  # that differ in nothing but a Python argument: worth a warning
_MAX_TRACES = 16  # of one program; each must learn something new, so this is never reached by code that is deterministic


@dataclasses.dataclass
class Shape:
    """The results of a traced function: their tree, and its leaves that are not arrays."""

    tree: Any
    static: list[Any]  # _ARRAY where the leaf is an array

    @classmethod
    def of(cls, result: Any) -> "tuple[Shape, list[Any]]":
        """The shape of `result`, and its arrays."""
        leaves, tree = jax.tree.flatten(result)
        arrays = [jnp.asarray(leaf) for leaf in leaves if is_array(leaf)]
        return cls(tree, [_ARRAY if is_array(leaf) else leaf for leaf in leaves]), arrays

    def fill(self, arrays: Sequence[Any], on_host: Sequence[Any]) -> Any:
        """The result with these arrays, and those on the host that were handed through."""
        rest = iter(arrays)
        leaves = [next(rest) if leaf is _ARRAY else leaf for leaf in self.static]
        return jax.tree.unflatten(self.tree, [on_host[leaf.position] if isinstance(leaf, HostArray) else leaf for leaf in leaves])


class _Array:
    def __repr__(self) -> str:
        return "<array>"


_ARRAY = _Array()


def learn(facts: Facts, jaxprs: Sequence[Any]) -> bool:
    """Note which gradients have no path to a source in any of the finished traces (one, or those of replicas of different sizes).

    True if there was one that was not known, so that the traces must be repeated.
    """
    missing: dict[int, frozenset[int]] = {}
    for jaxpr in jaxprs:
        for call, connected in connected_sources(jaxpr).items():
            mine = frozenset(source for source, linked in connected.items() if not linked)
            missing[call] = missing.get(call, mine) & mine
    for call, sources in missing.items():
        facts.unconnected[call] = facts.unconnected.get(call, frozenset()) | sources
    return any(missing.values())


def trace_until_learned(fn: Callable[..., Any], args: tuple[Any, ...], facts: Facts) -> Any:
    """The jaxpr of ``fn(*args)``, traced again while that teaches something."""
    while True:
        closed = jax.make_jaxpr(partial(fn))(*args)  # partial: a new object each time, because JAX remembers traces
        if not learn(facts, [closed.jaxpr]):
            return closed


@dataclasses.dataclass
class _Needs:
    """What a rehearsal found out: the variables that a program reads and writes, where it computes, whether it has a tape."""

    refs: dict[Ref, None]
    written: dict[Ref, None]
    placement: Placement
    uses_tape: bool


class _Program:
    """One signature of a ``Compiled``, ready to run."""

    def __init__(self, name: str, call: Callable[[Recorder, Sequence[Any]], Any], needs: _Needs, facts: Facts | None = None):
        self._name = name
        self._call_function = call
        self._uses_tape = needs.uses_tape
        self.facts = facts or Facts()
        self._run_facts: list[Facts] = []
        self.written: list[Ref] = [ref for ref in needs.refs if ref in needs.written]
        self.kept: list[Ref] = [ref for ref in needs.refs if ref not in needs.written]
        self.idle: list[Ref] = []  # of those in `written`, what the last trace did not write
        self.placement = needs.placement
        self._overwritten = Refs(self.written, self.placement)
        self._bounded = self.placement.deadlocks
        self._shape: Shape | None = None
        self._stacked: list[bool] = []
        # One device needs no constraints inside the program, only to be told which.
        home = self.placement.mirrored if self.placement.on_one_device else None
        self._jitted = jax.jit(self._traced, donate_argnums=0, out_shardings=home)

    def _traced(self, written: list[Any], kept: list[Any], arrays: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        known = dict(zip(self.written, written, strict=True)) | dict(zip(self.kept, kept, strict=True))
        if self._uses_tape:
            results, state = self._with_tape(known, arrays)
        else:
            self._shape, results, state = self._call(known, arrays)
        placement = self.placement
        results = [placement.constrain(x, stacked=s) for x, s in zip(results, self._stacked, strict=True)]
        state = [
            placement.constrain(x, stacked=ref.copies(placement.num_replicas), slice_axis=ref.slice_axis(placement))
            for ref, x in zip(self.written, state, strict=True)
        ]
        token = placement.constrain(jnp.zeros((placement.num_replicas,), jnp.int8), stacked=True)
        return token, results, state

    def _call(self, known: dict[Ref, Any], arrays: list[Any]) -> tuple[Shape, list[Any], list[Any]]:
        recorder = CrossRecorder(known, self.placement, rehearsing=False, facts=self.facts)
        recorder.run_facts = self._run_facts
        with tracing():  # here too, because JAX may trace again by itself
            result = self._call_function(recorder, arrays)
        unknown_writes = [ref for ref in recorder.written if ref not in self.written]
        if recorder.missing or unknown_writes:
            raise UnknownState([*recorder.missing, *unknown_writes])
        self.idle = [ref for ref in self.written if ref not in recorder.written]
        self._stacked = [isinstance(leaf, PerReplica) and leaf.stacked is not None for leaf in _array_homes(result)]
        shape, results = Shape.of(result)
        return shape, results, [recorder.values[ref] for ref in self.written]

    def _with_tape(self, known: dict[Ref, Any], arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        refs = list(known)

        def flat(state: list[Any], inputs: list[Any]) -> list[Any]:
            self._shape, results, new = self._call(dict(zip(refs, state, strict=True)), inputs)
            return [*results, *new]

        closed = trace_until_learned(flat, (list(known.values()), arrays), self.facts)
        inputs = [*known.values(), *arrays]
        values = run_alone(closed, inputs, [False] * len(inputs), lambda exchange: exchange.values)
        cut = len(values) - len(self.written)
        return values[:cut], values[cut:]

    def trace(self, arrays: list[Any]) -> None:
        """Trace and remember the trace, so that errors in the user's code come before anything is computed."""
        planned = _planning.current() is not None  # then nothing needs to be where it would be computed
        with _inflight.lock:
            traced = self._jitted.trace(*(self._shapes(arrays) if planned else self._inputs(arrays)))
        if self.placement.world is not None:
            check_same_program(self._name, traced.jaxpr, self.placement.world)

    def lower(self, arrays: Sequence[jax.ShapeDtypeStruct]) -> Any:
        """The program as JAX lowers it for its devices, which need not be there."""
        with tracing():
            return self._jitted.lower(*self._shapes(arrays))

    def _shapes(self, arrays: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """What `_inputs` gives, as shapes and places alone."""
        placement, n = self.placement, self.placement.num_replicas

        def abstract(ref: Ref) -> jax.ShapeDtypeStruct:
            shape = (n, *ref.shape) if ref.copies(n) else tuple(ref.shape)
            return jax.ShapeDtypeStruct(shape, ref.dtype, sharding=ref.home(placement))

        return [abstract(ref) for ref in self.written], [abstract(ref) for ref in self.kept], list(arrays)

    def _inputs(self, arrays: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        placement = self.placement
        if placement.world is not None:
            adopt([*self.written, *self.kept], placement)
        return (
            self._overwritten.load(),
            [ref.load(placement, donated=False) for ref in self.kept],
            arrays,
        )

    def run(self, arrays: list[Any], on_host: list[Any]) -> Any:
        """Run on `arrays`; variables are read before and written after. Arrays on the host are only handed through."""
        box: list[Any] = []
        with _inflight.lock:
            try:
                _inflight.start(self._jitted, self._inputs(arrays), box, bounded=self._bounded)
            finally:
                if box:
                    try:
                        self._overwritten.store(box[0][2])
                    except KeyboardInterrupt:  # in the midst of it
                        self._overwritten.store(box[0][2])
                        raise
        assert self._shape is not None
        return self._shape.fill(box[0][1], on_host)


def _array_homes(result: Any) -> list[Any]:
    """For every array leaf of `result`, the distributed value that it belongs to, or itself."""
    homes = []
    for leaf in jax.tree.leaves(result, is_leaf=is_distributed):
        inner = jax.tree.leaves(leaf) if is_distributed(leaf) else [leaf]
        homes += [leaf for x in inner if is_array(x)]
    return homes


class Compiled:
    """A function of cross-replica code, compiled once per structure, shapes and dtypes of its arguments.

    Arrays are inputs of the compiled program; those that stay on the host (strings) travel beside it, by position. Everything else
    among the arguments is part of the signature.
    """

    def __init__(self, fn: Callable[..., Any]):
        self._fn = fn
        self._programs: collections.OrderedDict[Any, _Program] = collections.OrderedDict()
        self._warned = False

    @property
    def num_programs(self) -> int:
        """How many signatures have been compiled."""
        return len(self._programs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        require_eager(self._name)
        if _state.before_use:
            _state.settle(in_step=True)
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [leaf for leaf in leaves if is_array(leaf)]
        on_host: list[Any] = []
        static = tuple(_ARRAY if is_array(leaf) else _Static(_stand_in(leaf, on_host)) for leaf in leaves)
        placement = get_strategy().placement
        key = (tree, static, tuple((x.shape, x.dtype, getattr(x, "weak_type", False)) for x in arrays), placement)
        program = self._programs.get(key)
        if program is None:
            program = self._compile(key, arrays, placement)
        return program.run(_placed(arrays, program.placement), on_host)

    @property
    def _name(self) -> str:
        return getattr(self._fn, "__qualname__", None) or repr(self._fn)

    def _compile(self, key: Any, arrays: list[Any], placement: Placement) -> _Program:
        tree, static = key[:2]
        avals = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False)) for x in arrays]

        def call(recorder: Recorder, inputs: Sequence[Any]) -> Any:
            rest = iter(inputs)
            args, kwargs = jax.tree.unflatten(tree, [next(rest) if s is _ARRAY else s.value for s in static])
            with recording(recorder):
                return self._fn(*args, **kwargs)

        extra: dict[Ref, None] = {}
        idle: set[Ref] = set()
        facts: Facts | None = None
        for _ in range(_MAX_TRACES):
            with tracing():
                needs = _rehearse(call, avals, placement)
            # Variables that were made during the rehearsal have their values now that `tracing` has ended.
            needs.refs.update(extra)
            needs.written.update(extra)
            for ref in idle:
                needs.written.pop(ref, None)
            program = _Program(self._name, call, needs, facts)
            try:
                with tracing():
                    program.trace(_placed(arrays, program.placement))
            except UnknownState as unknown:
                extra.update(dict.fromkeys(unknown.refs))
                idle.difference_update(unknown.refs)
                continue
            if program.idle:  # a rehearsal takes every gradient to exist; what it wrote by that must not be stored for ever
                idle.update(program.idle)
                facts = program.facts
                continue
            if _planning.current() is not None and any(ref.trainable for ref in program.written):
                raise _found(partial(_Program, self._name, call), needs, arrays, tree, static)
            self._remember(key, program)
            return program
        raise ReplicantError(
            f"{self._name!r} used other variables each of the {_MAX_TRACES} times it was traced. Create variables once, outside of "
            "the compiled function."
        )

    def _remember(self, key: Any, program: _Program) -> None:
        self._programs[key] = program
        if len(self._programs) > _MAX_PROGRAMS:
            self._programs.popitem(last=False)
        alike = [other for other in self._programs if (other[0], other[2], other[3]) == (key[0], key[2], key[3])]
        if len(alike) >= _MANY_PROGRAMS and not self._warned:
            self._warned = True
            changing = next(i for i, s in enumerate(key[1]) if any(other[1][i] != s for other in alike))
            warnings.warn(
                f"{self._name!r} has been compiled {len(alike)} times, once for each value of a Python argument (now "
                f"{key[1][changing].value!r}). Pass it as an array, jnp.asarray(value), to compile once.",
                stacklevel=4,
            )


def _found(
    make: Callable[[_Needs], _Program], needs: _Needs, arrays: list[Any], tree: Any, static: Sequence[Any]
) -> _planning.StepFound | ArgumentError:
    """A training step, for whoever plans it."""
    numbers = iter(range(len(arrays)))
    marked = jax.tree.unflatten(tree, [next(numbers) if s is _ARRAY else None for s in static])
    by_replica = [leaf for leaf in jax.tree.leaves(marked, is_leaf=is_distributed) if isinstance(leaf, PerReplica)]
    n = needs.placement.num_replicas
    if any(leaf.stacked is None and any(v is not None for v in leaf.values) for leaf in by_replica):
        return ArgumentError(
            f"The first batch gives the {n} replicas different numbers of rows. Plan with a first batch of a multiple of {n} "
            "rows: `dataset.repeat().batch(global_batch_size)`."
        )
    stacked = {leaf.stacked for leaf in by_replica}
    shapes = [(tuple(x.shape), x.dtype) for x in arrays]

    def held(placement: Placement) -> list[_planning.Held]:
        state = [_planning.Held(ref.name, _kind(ref), tuple(ref.shape), ref.dtype, _layout(ref, placement)) for ref in needs.refs]
        batch = [
            _planning.Held(f"input {i}", "batch", shape, dtype, "stacked" if i in stacked else "mirrored")
            for i, (shape, dtype) in enumerate(shapes)
        ]
        return [*state, *batch]

    def lower(placement: Placement) -> Any:
        homes = [placement.stacked if i in stacked else placement.mirrored for i in range(len(arrays))]
        inputs = [jax.ShapeDtypeStruct(*x, sharding=home) for x, home in zip(shapes, homes, strict=True)]
        return make(dataclasses.replace(needs, placement=placement)).lower(inputs)

    return _planning.StepFound(lower, held, slices_slots=needs.placement.slices_slots)


def _kind(ref: Ref) -> str:
    return "weights" if ref.trainable else "optimizer state" if ref.slot else "other state"


def _layout(ref: Ref, placement: Placement) -> str:
    return "stacked" if ref.on_read else "mirrored" if ref.slice_axis(placement) is None else "sliced"


def _rehearse(call: Callable[[Recorder, Sequence[Any]], Any], avals: list[Any], placement: Placement) -> _Needs:
    """Trace abstractly, to see what the code needs."""
    recorder = CrossRecorder({}, placement, rehearsing=True, facts=Facts())
    jax.eval_shape(lambda inputs: Shape.of(call(recorder, inputs))[1], avals)
    return _Needs(dict(recorder.missing), dict(recorder.written), recorder.placement or placement, recorder.uses_tape)


def _placed(arrays: list[Any], placement: Placement) -> list[Any]:
    """`arrays` without any that are committed to other devices than the program's."""
    home = placement.mirrored
    if home is None:
        return arrays
    devices = home.device_set
    return [
        placement.put(x, home) if isinstance(x, jax.Array) and x.committed and x.sharding.device_set != devices else x
        for x in arrays
    ]


_BY_VALUE = (bool, int, float, complex, str, bytes, type(None), enum.Enum, np.dtype)


def _stand_in(leaf: Any, on_host: list[Any]) -> Any:
    """What the signature has instead of an array on the host, which is added to `on_host`; any other leaf as it is."""
    if not is_host_array(leaf):
        return leaf
    on_host.append(leaf)
    return HostArray(len(on_host) - 1, leaf.shape, leaf.dtype)


class _Static:
    """An argument that is part of the signature: plain Python values compare by value and type, objects by identity."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any):
        self.value = value
        self._key = (
            type(value),
            value.key if isinstance(value, HostArray) else value if isinstance(value, _BY_VALUE) else id(value),
        )

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._key == other._key
