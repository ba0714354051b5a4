"""Compiles cross-replica code: find its state, trace it with that state as inputs and outputs, start it, write the state back.

``Compiled`` is behind ``replicant.function`` and behind ``strategy.run`` outside of a function. The first call rehearses: it
traces the code abstractly to see which variables it uses and on which devices. Then the code is traced for good by ``jax.jit``.
"""

import dataclasses
import enum
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _inflight
from ._context import get_strategy
from ._interpret import run_alone
from ._placement import Placement
from ._slices import unconnected_sources
from ._state import CrossRecorder, Facts, Recorder, Ref, UnknownState, recording, tracing
from ._values import PerReplica, is_array, is_distributed
from .errors import ReplicantError

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

    def fill(self, arrays: Sequence[Any]) -> Any:
        """The result with these arrays."""
        rest = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(rest) if leaf is _ARRAY else leaf for leaf in self.static])


class _Array:
    def __repr__(self) -> str:
        return "<array>"


_ARRAY = _Array()


def learn(facts: Facts, jaxpr: Any) -> bool:
    """Note which gradients of a finished trace have no path to a source; True if there was one, so the trace must be repeated."""
    news = unconnected_sources(jaxpr)
    for call, connected in news.items():
        known = facts.unconnected.get(call, frozenset())
        asked = [j for j in range(len(connected) + len(known)) if j not in known]
        facts.unconnected[call] = known | {j for j, linked in zip(asked, connected, strict=True) if not linked}
    return bool(news)


def trace_until_learned(fn: Callable[..., Any], args: tuple[Any, ...], facts: Facts) -> Any:
    """The jaxpr of ``fn(*args)``, traced again while that teaches something."""
    while True:
        closed = jax.make_jaxpr(partial(fn))(*args)  # partial: a new object each time, because JAX remembers traces
        if not learn(facts, closed.jaxpr):
            return closed


class _Program:
    """One signature of a ``Compiled``, ready to run."""

    def __init__(self, owner: "Compiled", tree: Any, static: Sequence[Any]):
        self._owner = owner
        self._tree = tree
        self._static = list(static)
        self.refs: list[Ref] = list(owner.refs)
        self.written: list[Ref] = [ref for ref in self.refs if ref in owner.written]
        self.kept: list[Ref] = [ref for ref in self.refs if ref not in owner.written]
        self.placement: Placement = owner.placement
        self._shape: Shape | None = None
        # One device needs no constraints inside the program, only to be told which.
        home = self.placement.mirrored if len(self.placement.devices) == 1 else None
        self._jitted = jax.jit(self._traced, donate_argnums=0, out_shardings=home)

    def _traced(self, written: list[Any], kept: list[Any], arrays: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        known = dict(zip(self.written, written, strict=True)) | dict(zip(self.kept, kept, strict=True))
        if self._owner.uses_tape:
            results, state = self._with_tape(known, arrays)
        else:
            self._shape, results, state = self._call(known, arrays)
        placement = self.placement
        results = [placement.constrain(x, stacked=s) for x, s in zip(results, self._stacked, strict=True)]
        state = [
            placement.constrain(x, stacked=ref.copies(placement.num_replicas)) for ref, x in zip(self.written, state, strict=True)
        ]
        token = placement.constrain(jnp.zeros((placement.num_replicas,), jnp.int8), stacked=True)
        return token, results, state

    def _call(self, known: dict[Ref, Any], arrays: list[Any]) -> tuple[Shape, list[Any], list[Any]]:
        recorder = CrossRecorder(known, self.placement, rehearsing=False, facts=self._owner.facts)
        recorder.run_facts = self._owner.run_facts
        result = self._owner.call(recorder, self._tree, self._static, arrays)
        unknown_writes = [ref for ref in recorder.written if ref not in self.written]
        if recorder.missing or unknown_writes:
            raise UnknownState([*recorder.missing, *unknown_writes])
        self._stacked = [isinstance(leaf, PerReplica) and leaf.stacked is not None for leaf in _array_homes(result)]
        shape, results = Shape.of(result)
        return shape, results, [recorder.values[ref] for ref in self.written]

    def _with_tape(self, known: dict[Ref, Any], arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        refs = list(known)

        def flat(state: list[Any], inputs: list[Any]) -> list[Any]:
            self._shape, results, new = self._call(dict(zip(refs, state, strict=True)), inputs)
            return [*results, *new]

        closed = trace_until_learned(flat, (list(known.values()), arrays), self._owner.facts)
        inputs = [*known.values(), *arrays]
        values = run_alone(closed, inputs, [False] * len(inputs), lambda exchange: exchange.values)
        cut = len(values) - len(self.written)
        return values[:cut], values[cut:]

    def run(self, arrays: list[Any]) -> Any:
        """Run on `arrays`; variables are read before and written after."""
        placement = self.placement
        box: list[Any] = []
        with _inflight.lock:
            inputs = (
                [ref.load(placement, donated=True) for ref in self.written],
                [ref.load(placement, donated=False) for ref in self.kept],
                arrays,
            )
            try:
                _inflight.start(self._jitted, inputs, box, bounded=placement.num_replicas > 1 and placement.on_cpu)
            finally:
                if box:
                    try:
                        self._keep(box[0][2])
                    except KeyboardInterrupt:  # in the midst of it
                        self._keep(box[0][2])
                        raise
        assert self._shape is not None
        return self._shape.fill(box[0][1])

    def _keep(self, state: Sequence[Any]) -> None:
        for ref, value in zip(self.written, state, strict=True):
            ref.store(value, self.placement)


def _array_homes(result: Any) -> list[Any]:
    """For every array leaf of `result`, the distributed value that it belongs to, or itself."""
    homes = []
    for leaf in jax.tree.leaves(result, is_leaf=is_distributed):
        inner = jax.tree.leaves(leaf) if is_distributed(leaf) else [leaf]
        homes += [leaf for x in inner if is_array(x)]
    return homes


class Compiled:
    """A function of cross-replica code, compiled once per structure, shapes and dtypes of its arguments.

    Arrays are inputs of the compiled program; everything else among the arguments is part of the signature.
    """

    def __init__(self, fn: Callable[..., Any]):
        self._fn = fn
        self._programs: dict[Any, _Program] = {}
        self.refs: dict[Ref, None] = {}
        self.written: dict[Ref, None] = {}
        self.facts = Facts()
        self.run_facts: list[Facts] = []
        self.placement = Placement()
        self.uses_tape = False

    @property
    def num_programs(self) -> int:
        """How many signatures have been compiled."""
        return len(self._programs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        static = tuple(_ARRAY if is_array(leaf) else _Static(leaf) for leaf in leaves)
        arrays = [leaf for leaf in leaves if is_array(leaf)]
        strategy = get_strategy()
        key = (tree, static, tuple((x.shape, x.dtype) for x in arrays), id(strategy))
        program = self._programs.get(key)
        if program is not None:
            return program.run(self._placed(arrays))
        return self._first_call(key, tree, static, arrays, strategy.placement)

    def _first_call(self, key: Any, tree: Any, static: Sequence[Any], arrays: list[Any], placement: Placement) -> Any:
        for _ in range(_MAX_TRACES):
            with tracing():
                self._rehearse(tree, static, arrays, placement)
            # Variables that were made during the rehearsal have their values now that `tracing` has ended.
            program = _Program(self, tree, static)
            try:
                with tracing():
                    result = program.run(self._placed(arrays))
            except UnknownState as unknown:
                self.refs.update(dict.fromkeys(unknown.refs))
                self.written.update(dict.fromkeys(unknown.refs))
                continue
            self._programs[key] = program
            return result
        raise ReplicantError(
            f"{getattr(self._fn, '__qualname__', self._fn)!r} used other variables each of the {_MAX_TRACES} times it was traced. "
            "Create variables once, outside of the compiled function."
        )

    def _rehearse(self, tree: Any, static: Sequence[Any], arrays: list[Any], placement: Placement) -> None:
        recorder = CrossRecorder({}, placement, rehearsing=True, facts=Facts())
        jax.eval_shape(lambda inputs: Shape.of(self.call(recorder, tree, static, inputs))[1], [_aval(x) for x in arrays])
        self.refs.update(recorder.missing)
        self.written.update(recorder.written)
        self.placement = recorder.placement or placement
        self.uses_tape = recorder.uses_tape

    def call(self, recorder: Recorder, tree: Any, static: Sequence[Any], arrays: Sequence[Any]) -> Any:
        """The function itself, under `recorder`."""
        rest = iter(arrays)
        args, kwargs = jax.tree.unflatten(tree, [next(rest) if s is _ARRAY else s.value for s in static])
        with recording(recorder):
            return self._fn(*args, **kwargs)

    def _placed(self, arrays: list[Any]) -> list[Any]:
        """`arrays` without any that are committed to other devices than the program's."""
        placement = self.placement
        if not placement.devices:
            return arrays
        home = placement.mirrored
        assert home is not None
        devices = home.device_set
        return [
            jax.device_put(x, home) if isinstance(x, jax.Array) and x.committed and x.sharding.device_set != devices else x
            for x in arrays
        ]


def _aval(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))


_BY_VALUE = (bool, int, float, complex, str, bytes, type(None), enum.Enum, np.dtype)


class _Static:
    """An argument that is part of the signature: plain Python values compare by value and type, objects by identity."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any):
        self.value = value
        self._key = (type(value), value if isinstance(value, _BY_VALUE) else id(value))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._key == other._key
