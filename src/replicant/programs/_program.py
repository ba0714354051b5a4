"""Compiles cross-replica code: find its state, trace it with that state as inputs and outputs, start it, write the state back.

``Compiled`` is behind ``replicant.function`` and behind ``strategy.run`` outside of a function. The first call rehearses: it
traces the code abstractly to see which variables it uses and on which devices. Then the code is traced for good by ``jax.jit``.
"""

import collections
import contextlib
import dataclasses
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _plan_mode
from ..errors import ArgumentError, ReplicantError
from ..replicas._context import active_strategy
from ..replicas._placement import Placement
from ..replicas._values import HostArray, PerReplica, is_array, is_distributed
from ..runtime import _in_flight
from ..tracing._gradient_paths import connected_sources
from ..tracing._interpreter import run_alone
from ..variables import _recorder
from ..variables._chief import adopt, check_same_program
from ..variables._libraries import tracing
from ..variables._recorder import CrossRecorder, Facts, Recorder, UnknownState, recording, require_eager
from ..variables._ref import Ref, Refs
from ._lost_state import Arguments, Outside
from ._number_inputs import computes_the_same
from ._numbers import Numbers, dtype_of, name_of
from ._reach import Reach
from ._signature import ARRAY, Signature
from ._watch import Watch, watch_code, watch_layers, watch_trainable

_MAX_PROGRAMS = 256  # of one function; the least recently used are forgotten, here and below
_MAX_ALIKE = 64  # that differ in nothing but Python arguments
_MAX_STATES = 16  # that differ in nothing but what was watched
_MANY_PROGRAMS = 16  # that differ in nothing but a Python argument: worth a warning
_MANY_VALUES = 4  # of a number that can be no input, likewise
_MANY_STATES = 4  # of what was watched, likewise
_MAX_TRACES = 16  # of one program; each must learn something new, so this is never reached by code that is deterministic

_ordering = threading.Lock()  # of programs of one signature; not an attribute, for functions are sent to other processes


@dataclasses.dataclass
class Shape:
    """The results of a traced function: their tree, and its leaves that are not arrays."""

    tree: Any
    static: list[Any]  # ARRAY where the leaf is an array

    @classmethod
    def of(cls, result: Any, numbers: "dict[int, _Number] | None" = None) -> "tuple[Shape, list[Any]]":
        """The shape of `result`, and its arrays. `numbers`: by id, the inputs that are Python numbers."""
        numbers = numbers or {}
        leaves, tree = jax.tree.flatten(result)
        static = [numbers.get(id(leaf), ARRAY) if is_array(leaf) else leaf for leaf in leaves]
        return cls(tree, static), [jnp.asarray(leaf) for leaf, kind in zip(leaves, static, strict=True) if kind is ARRAY]

    def fill(self, arrays: Sequence[Any], on_host: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """The result with these arrays, and with the numbers and those on the host that were handed through."""
        rest = iter(arrays)
        leaves = [next(rest) if leaf is ARRAY else leaf for leaf in self.static]
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, HostArray):
                leaves[i] = on_host[leaf.position]
            elif isinstance(leaf, _Number):
                leaves[i] = inputs[leaf.position]
        return jax.tree.unflatten(self.tree, leaves)


@dataclasses.dataclass(frozen=True)
class _Number:
    """Stands in a result for a Python number that was handed through: which of the inputs."""

    position: int


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
        closed = jax.make_jaxpr(functools.partial(fn))(*args)  # partial: a new object each time, because JAX remembers traces
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

    def __init__(
        self,
        name: str,
        call: Callable[[Recorder, Sequence[Any]], Any],
        needs: _Needs,
        numbers: Sequence[int] = (),
        facts: Facts | None = None,
    ):
        self._name = name
        self._numbers = numbers  # the positions of the inputs that are Python numbers
        self.watch = Watch()  # the program is good while this holds
        self.older: _Program | None = None  # of the same signature, for other values of what is watched
        self._call_function = call
        self._uses_tape = needs.uses_tape
        self.facts = facts or Facts()
        self._run_facts: list[Facts] = []
        written = [ref for ref in needs.refs if ref in needs.written]
        # What lies here is stored first, so that it is whole even if a change that servers are to make is refused.
        self.written: list[Ref] = sorted(written, key=lambda ref: ref.elsewhere)
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

    def and_older(self) -> "Iterator[_Program]":
        """All programs of the same signature, the last used first."""
        program: _Program | None = self
        while program is not None:
            yield program
            program = program.older

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
        numbers = {id(arrays[i]): _Number(i) for i in self._numbers}
        homes = _array_homes(result, numbers)
        self._stacked = [isinstance(leaf, PerReplica) and leaf.stacked is not None for leaf in homes]
        shape, results = Shape.of(result, numbers)
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
        planned = _plan_mode.current() is not None  # then nothing needs to be where it would be computed
        with _in_flight.lock:
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
        with _in_flight.lock:
            try:
                _in_flight.start(self._jitted, self._inputs(arrays), box, bounded=self._bounded)
            finally:
                if box:
                    try:
                        self._overwritten.store(box[0][2])
                    except KeyboardInterrupt:  # what has been overwritten is nowhere else: store all, and each change once
                        self._overwritten.take_back()
                        self._overwritten.store(box[0][2])
                        raise
        assert self._shape is not None
        return self._shape.fill(box[0][1], on_host, arrays)


def _array_homes(result: Any, but: Container[int]) -> list[Any]:
    """For every array leaf of `result`, except these by id, the distributed value that it belongs to, or itself."""
    homes = []
    for leaf in jax.tree.leaves(result, is_leaf=is_distributed):
        inner = jax.tree.leaves(leaf) if is_distributed(leaf) else [leaf]
        homes += [leaf for x in inner if is_array(x) and id(x) not in but]
    return homes


class Compiled:
    """A function of cross-replica code, compiled once per structure, shapes and dtypes of its arguments.

    Arrays are inputs of the compiled program; those that stay on the host (strings) travel beside it, by position. Python numbers
    are inputs once they have changed, if the code allows that. Everything else among the arguments is part of the signature.

    Args:
        fn: is traced.
        of_run: the replica function that `fn` runs, if that is all it does. Then what its code names is watched: in tf.distribute,
            ``run`` outside of a function is eager.
    """

    def __init__(self, fn: Callable[..., Any], of_run: Callable[..., Any] | None = None):
        self._fn = fn
        self._of_run = of_run
        self._numbers = Numbers()
        self._programs: collections.OrderedDict[Any, _Program] = collections.OrderedDict()  # the last used of each signature
        self._last: _Program | None = None
        self._warned: set[str] = set()

    @property
    def num_programs(self) -> int:
        """How many programs are kept."""
        return sum(sum(1 for _ in newest.and_older()) for newest in self._programs.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        require_eager(self._name)
        if _recorder.before_use:
            _recorder.settle(in_step=True)
        leaves, tree = jax.tree.flatten((args, kwargs))
        placement = active_strategy().placement
        numbers = self._numbers.inputs(tree, leaves)
        signature = Signature(leaves, tree, numbers, placement)
        program = self._known(signature)
        if program is None:
            signature, program = self._compile_any(leaves, tree, placement)
        return program.run(_placed(signature.arrays, program.placement), signature.on_host)

    @property
    def _name(self) -> str:
        return getattr(self._fn, "__qualname__", None) or repr(self._fn)

    def _known(self, signature: Signature) -> _Program | None:
        """The program for these arguments under which everything that was watched is as it was."""
        newest = program = self._programs.get(signature.key)
        newer: _Program | None = None
        while program is not None and not program.watch.holds():
            newer, program = program, program.older
        if program is None:
            return None
        if newer is not None:
            self._put_first(signature.key, newest, newer, program)
        if program is not self._last:  # mostly it is, and the key need not be hashed once more
            self._last = program
            with contextlib.suppress(KeyError):  # another thread has forgotten it meanwhile
                self._programs.move_to_end(signature.key)
        return program

    def _put_first(self, key: Any, newest: _Program | None, newer: _Program, program: _Program) -> None:
        """Of the programs of one signature, too, the least recently used is forgotten first."""
        with _ordering:
            if self._programs.get(key) is newest and newer.older is program:  # else another thread has changed the order
                newer.older, program.older = program.older, newest
                self._programs[key] = program

    def _call(self, signature: Signature) -> Callable[[Recorder, Sequence[Any]], Any]:
        """What is traced: the function on its inputs, with everything else as it is."""

        def call(recorder: Recorder, inputs: Sequence[Any]) -> Any:
            args, kwargs = signature.arguments(inputs)
            given = Arguments(args, kwargs)
            with recording(recorder):
                result = self._fn(*args, **kwargs)
            given.check(repr(self._name), result, copies_are_theirs=False)
            return result

        return call

    def _outline(self, signature: Signature) -> Any:
        """The jaxpr of a rehearsal; None if it fails."""
        try:
            with tracing():
                recorder = CrossRecorder({}, signature.placement, rehearsing=True, facts=Facts())
                call = self._call(signature)
                return jax.make_jaxpr(lambda inputs: _computed(call(recorder, inputs)))(signature.avals)
        except Exception:  # noqa: BLE001 - whatever code does with a tracer for a number; its own errors come again, without one
            return None

    def _learn_numbers(self, leaves: list[Any], tree: Any, placement: Placement) -> None:
        """Find out which numbers can be inputs."""
        constant = functools.cache(lambda: self._outline(Signature(leaves, tree, (), placement)))

        def works(numbers: tuple[int, ...]) -> bool:
            signature = Signature(leaves, tree, numbers, placement)
            outline = self._outline(signature) if numbers else constant()
            if outline is None or constant() is None:
                return False
            given = [np.asarray(x, dtype_of(x)) if i in signature.number_inputs else None for i, x in enumerate(signature.arrays)]
            return computes_the_same(constant(), outline, given)

        self._numbers.learn(tree, leaves, works)

    def _compile_any(self, leaves: list[Any], tree: Any, placement: Placement) -> tuple[Signature, _Program]:
        """A program for these arguments, with numbers that have changed as inputs if the code allows that."""

        def signature(numbers: tuple[int, ...]) -> Signature:
            return Signature(leaves, tree, numbers, placement)

        if _plan_mode.current() is None:
            self._learn_numbers(leaves, tree, placement)
        wanted = signature(self._numbers.inputs(tree, leaves))
        program = self._known(wanted)
        if program is not None:
            return wanted, program
        try:
            return wanted, self._compile(wanted)
        except Exception:  # see `_outline`; some code meets its inputs only in the second trace
            if not wanted.numbers:
                raise
        wanted = signature(())
        program = self._compile(wanted)
        self._numbers.refuse(tree)
        return wanted, program

    def _compile(self, signature: Signature) -> _Program:
        call, placement, arrays = self._call(signature), signature.placement, signature.arrays
        args, kwargs = signature.arguments(arrays)
        subject = self._of_run or self._fn
        reach = Reach(subject, args, kwargs)
        outside = Outside(reach)
        extra: dict[Ref, None] = {}
        idle: set[Ref] = set()
        facts: Facts | None = None
        for _ in range(_MAX_TRACES):
            with tracing():
                needs = _rehearse(call, signature.avals, placement)
            outside.check(repr(self._name))
            # Variables that were made during the rehearsal have their values now that `tracing` has ended.
            needs.refs.update(extra)
            needs.written.update(extra)
            for ref in idle:
                needs.written.pop(ref, None)
            program = _Program(self._name, call, needs, signature.number_inputs, facts)
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
            if _plan_mode.current() is not None and any(ref.trainable for ref in program.written):
                raise _found(functools.partial(_Program, self._name, call), needs, arrays, *signature.key[:2])
            watch_trainable(program.watch, needs.refs)
            if self._of_run is None:
                watch_layers(program.watch, reach)
            else:
                watch_code(program.watch, Reach(subject, args, kwargs))  # anew, with what the trace has made
            self._warn_of_effects(outside)
            self._remember(signature, program)
            return program
        raise ReplicantError(
            f"{self._name!r} used other variables each of the {_MAX_TRACES} times it was traced. Create variables once, outside of "
            "the compiled function."
        )

    def _warn_of_effects(self, outside: Outside) -> None:
        """Say what Python did while the function was traced, and will not do at each step."""
        for label in outside.frozen_random():
            self._warn(
                label,
                f"{self._name!r} draws random numbers from `{label}`, a generator of Python or NumPy, while it is compiled: "
                "they are constants of the program, the same in every step. Draw them outside and pass them as arguments, or use "
                "jax.random or keras.random.",
            )
        for label in outside.counted() if self._of_run is not None else ():
            self._warn(
                label,
                f"{self._name!r} changes the Python number `{label}`. Its Python code runs when it is compiled, not in every step, "
                "so the number does not count steps. Hold it in a replicant.Variable, or change it outside of the function.",
            )

    def _warn(self, about: str, message: str) -> None:
        """Warn of each thing once, where the user's code made the call."""
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(message, stacklevel=_stack_level())

    def _remember(self, signature: Signature, program: _Program) -> None:
        with _ordering:
            program.older = self._programs.get(signature.key)
            self._programs[signature.key] = program
            states = list(program.and_older())
            if len(states) >= _MAX_STATES:
                states[_MAX_STATES - 1].older = None
        if len(states) >= _MANY_STATES:
            label = states[1].watch.changed()
            self._warn(
                label,
                f"{self._name!r} has been compiled {len(states)} times for the same arguments, because `{label}` has changed each "
                "time and its code reads it. Pass it as an argument, as an array if it is a number, or hold it in a "
                "replicant.Variable.",
            )
        self._programs.move_to_end(signature.key)
        self._last = program
        alike = [key for key in list(self._programs) if signature.is_like(key)]
        self._warn_of_values(signature, alike)
        if len(alike) > _MAX_ALIKE:
            self._programs.pop(alike[0], None)
        elif len(self._programs) > _MAX_PROGRAMS:
            self._programs.popitem(last=False)

    def _warn_of_values(self, signature: Signature, alike: list[Any]) -> None:
        """Say which argument has had so many values, each with a program of its own."""
        static: tuple[Any, ...] = signature.key[1]
        for i, own in enumerate(static):
            values = len({key[1][i] for key in alike})
            is_number = own is not ARRAY and type(own.value) in (int, float)
            if values < (_MANY_VALUES if is_number else _MANY_PROGRAMS):
                continue
            name = name_of(self._of_run or self._fn, signature.tree, i)
            advice = (
                "It cannot be an input of one program: the code needs the Python number itself (in an `if`, a `range`, a "
                "shape), does something else with an array (`x ** k`, `isinstance`), or the number does not fit in 32 bits. If an "
                "array will do, pass jnp.asarray(value) to compile once."
                if is_number
                else "Pass it as an array to compile once, or keep one object for all calls."
            )
            self._warn(
                name,
                f"{self._name!r} has been compiled {values} times, once for each value of its argument `{name}` (now "
                f"{own.value!r}). {advice} The programs of the last {_MAX_ALIKE} values are kept.",
            )


def _stack_level() -> int:
    """The `stacklevel` of the first frame outside of this package, for a warning that is given by the caller."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _root(frame) == _root(sys._getframe(0)):
        frame, level = frame.f_back, level + 1
    return level


def _root(frame: Any) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _found(
    make: Callable[[_Needs], _Program], needs: _Needs, arrays: list[Any], tree: Any, static: Sequence[Any]
) -> _plan_mode.StepFound | ArgumentError:
    """A training step, for whoever plans it."""
    numbers = iter(range(len(arrays)))
    marked = jax.tree.unflatten(tree, [next(numbers) if s is ARRAY else None for s in static])
    by_replica = [leaf for leaf in jax.tree.leaves(marked, is_leaf=is_distributed) if isinstance(leaf, PerReplica)]
    n = needs.placement.num_replicas
    if any(leaf.stacked is None and any(v is not None for v in leaf.values) for leaf in by_replica):
        return ArgumentError(
            f"The first batch gives the {n} replicas different numbers of rows. Plan with a first batch of a multiple of {n} "
            "rows: `dataset.repeat().batch(global_batch_size)`."
        )
    stacked = {leaf.stacked for leaf in by_replica}
    shapes = [(tuple(x.shape), x.dtype) for x in arrays]

    def held(placement: Placement) -> list[_plan_mode.Held]:
        state = [_plan_mode.Held(ref.name, _kind(ref), tuple(ref.shape), ref.dtype, _layout(ref, placement)) for ref in needs.refs]
        batch = [
            _plan_mode.Held(f"input {i}", "batch", shape, dtype, "stacked" if i in stacked else "mirrored")
            for i, (shape, dtype) in enumerate(shapes)
        ]
        return [*state, *batch]

    def lower(placement: Placement) -> Any:
        homes = [placement.stacked if i in stacked else placement.mirrored for i in range(len(arrays))]
        inputs = [jax.ShapeDtypeStruct(*x, sharding=home) for x, home in zip(shapes, homes, strict=True)]
        return make(dataclasses.replace(needs, placement=placement)).lower(inputs)

    return _plan_mode.StepFound(lower, held, slices_slots=needs.placement.slices_slots)


def _kind(ref: Ref) -> str:
    return "weights" if ref.trainable else "optimizer state" if ref.slot else "other state"


def _layout(ref: Ref, placement: Placement) -> str:
    return "stacked" if ref.on_read else "mirrored" if ref.slice_axis(placement) is None else "sliced"


def _rehearse(call: Callable[[Recorder, Sequence[Any]], Any], avals: list[Any], placement: Placement) -> _Needs:
    """Trace abstractly, to see what the code needs."""
    recorder = CrossRecorder({}, placement, rehearsing=True, facts=Facts())
    jax.eval_shape(lambda inputs: Shape.of(call(recorder, inputs))[1], avals)
    return _Needs(dict(recorder.missing), dict(recorder.written), recorder.placement or placement, recorder.uses_tape)


def _computed(result: Any) -> list[Any]:
    """The arrays and numbers in a result."""
    return [jnp.asarray(x) for x in jax.tree.leaves(result) if is_array(x) or type(x) in (int, float)]


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
