"""``GradientTape``.

In the trace of a program, the tape records no values: the traced function *is* the recording. ``with tape`` marks a region of the
trace, and ``tape.gradient`` leaves a mark that names the target and the sources. The interpreter
(``tracing/replicas/_interpreter.py``) differentiates the equations between them. So the Python code runs once, any traced array can
be a source, and the compiled program is the one that ``jax.value_and_grad`` gives. Outside of programs, operations run at once, and
``tracing/gradients/_eager.py`` records each.

Gradients are local to each replica. The optimizer or ``all_reduce`` sums them over the replicas (see ``replicas/_collectives.py``).
"""

import itertools
import math
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from ._tape_arguments import (
    Sources,
    check_not_on_servers,
    checked_target,
    dtype_of,
    not_differentiable,
    shape_of,
    source_array,
    targets_of,
    zeros_like,
)
from .errors import ArgumentError, ArgumentTypeError, GradientError
from .tracing.gradients import _eager
from .tracing.gradients._eager import Eager
from .tracing.jaxprs._marks import gradient_p, name_constant, region_p
from .tracing.replicas._interpreter import pull_rows
from .variables import _recorder
from .variables._known import is_variable, ref_of
from .variables._libraries import connect_libraries
from .variables._recorder import CrossRecorder, Recorder, current_recorder
from .variables._ref import Ref

_ids = itertools.count()


class _Rows(NamedTuple):
    """How many cotangents a target has: one, or for a jacobian `num`, along axis 0. `at_once` says how these are computed."""

    num: int | None = None
    at_once: bool = True

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the gradients of an array of shape `shape`."""
        return shape if self.num is None else (self.num, *shape)


_ONE = _Rows()


class GradientTape:
    """Computes gradients of what is computed in its ``with`` block.

    In ``run``, the gradients belong to one replica, and Keras optimizers sum them over the replicas. Arrays need no ``watch``: any
    array that the target was computed from can be a source. Outside ``strategy.run`` and ``replicant.function``, every operation
    runs immediately, which is much slower than compiled code.

    For a batch whose activations do not fit, ``replicant.value_and_grad(..., accumulate_steps=k)`` computes gradients in
    micro-batches.

    Semantics: tf.GradientTape.

    Args:
        persistent: Whether ``gradient`` may be called more than once.
        watch_accessed_variables: Whether trainable variables are watched automatically.

    Raises:
        GradientError: When the block is entered, if the tape is already recording. Outside of programs, also when the block calls
            ``run``.

    >>> import replicant, jax.numpy as jnp
    >>> @replicant.function
    ... def slope(x):
    ...     with replicant.GradientTape() as tape:
    ...         y = x * x
    ...     return tape.gradient(y, x)
    >>> print(slope(jnp.asarray(3.0)))
    6.0
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True):
        self._persistent = persistent
        self._watch_accessed = watch_accessed_variables
        self._id = next(_ids)
        self._watched: dict[Ref, None] = {}
        self._reads: dict[Ref, list[Any]] = {}
        self._out_of_sight: set[Ref] = set()  # read inside a `run` that had assigned them
        self._recorder: Recorder | None = None
        self._depth = 0  # of that recorder
        self._eager: Eager | None = None  # outside of traces
        self._entered: Any = None
        self._recording = False
        self._used = False

    def __enter__(self) -> Self:
        if self._recording:
            raise GradientError(
                "This tape is already recording, and a tape cannot be entered twice. Use a second GradientTape for a nested block."
            )
        self._recorder = current_recorder()
        self._depth = 0 if self._recorder is None else self._recorder.depth
        self._reads, self._out_of_sight, self._used = {}, set(), False
        self._eager = None
        if self._recorder is None:
            self._eager = _eager.around_now()
            connect_libraries()
            self._entered = _eager.entered(self._eager)
            self._entered.__enter__()
        self._start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._recording:
            self._stop(mark=exc_info[0] is None)
        if self._entered is not None:
            self._entered.__exit__(None, None, None)
            self._entered = None

    def _start(self) -> None:
        if self._eager is not None:
            self._eager.recording = True
            _recorder.add_listener(self._note)
            self._recording = True
            return
        if isinstance(self._recorder, CrossRecorder):
            self._recorder.uses_tape = True
        region_p.bind(tape=self._id, opens=True)
        _recorder.add_listener(self._note)
        self._recording = True

    def _stop(self, *, mark: bool = True) -> None:
        _recorder.remove_listener(self._note)
        self._recording = False
        if self._eager is not None:
            self._eager.recording = False
        elif mark:
            region_p.bind(tape=self._id, opens=False)

    def _note(self, ref: Ref, value: Any, recorder: Recorder | None, assigned: bool) -> None:
        if self._eager is not None:
            if recorder is not None:
                return
            self._eager.root(value)
        elif recorder is not self._recorder:  # a replica read it, and the tape is outside `run`: the value that went in counts
            assert self._recorder is not None
            if ref not in self._recorder.values:
                return
            value = self._recorder.values[ref]
            changed = recorder is not None and (recorder.has_written(ref) or recorder.is_inner(ref, 0))
            if (changed and not assigned) or self._recorder.is_inner(ref, self._depth):
                self._out_of_sight.add(ref)
        if (ref.trainable and self._watch_accessed) or ref in self._watched:
            seen = self._reads.setdefault(ref, [])
            if not any(value is other for other in seen):
                seen.append(value)

    def watch(self, tensor: Any) -> None:
        """Watch an array or variable, or a nested structure of them.

        This is needed for variables that are not trainable, for all variables with ``watch_accessed_variables=False``, and for
        scalar constants that are made inside the function, before anything is computed from them.

        Args:
            tensor: A JAX array, a variable, or a nested structure of them.

        Raises:
            ArgumentTypeError: If it contains Python numbers or NumPy arrays, which have no gradient.
        """
        for leaf in Sources(tensor).leaves:
            if leaf is None:
                continue
            if is_variable(leaf):
                self._watched[ref_of(leaf)] = None
            elif isinstance(leaf, jax.Array):
                name_constant(leaf)
            else:
                raise ArgumentTypeError(f"watch takes JAX arrays and variables; {not_differentiable(leaf)}")

    def watched_variables(self) -> tuple[str, ...]:
        """Return the names of the watched variables that were read while the tape was recording."""
        return tuple(ref.name for ref in self._reads)

    @contextmanager
    def stop_recording(self) -> Any:
        """Pause the tape, so that what is computed in this ``with`` block has no gradient.

        Raises:
            GradientError: If the tape is not recording.
        """
        if not self._recording:
            raise GradientError("stop_recording was called on a tape that is not recording. Use it inside the tape's `with` block.")
        self._stop()
        try:
            yield
        finally:
            self._start()

    def reset(self) -> None:
        """Forget what was recorded, and record from here on.

        Raises:
            GradientError: If the tape is not recording.
        """
        if not self._recording:
            raise GradientError("reset was called on a tape that is not recording. Use it inside the tape's `with` block.")
        self._stop()
        self._id = next(_ids)
        self._reads, self._out_of_sight = {}, set()
        if self._eager is not None:
            self._eager.forget()
        self._start()

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: str | None = None,
    ) -> Any:
        """Compute the gradient of `target` with respect to each of `sources`.

        Args:
            target: A float array or variable of any shape, or a nested structure of them. The gradient is that of the sum of all
                elements.
            sources: A variable, a float array, or a nested structure of them. A module of Flax NNX means its Params, and an
                ``nnx.State`` for its Variables. Their gradients come as an ``nnx.State``, as ``nnx.Optimizer.update`` takes them.
            output_gradients: Weights of the target's elements, in its structure and shapes. The default is ones.
            unconnected_gradients: What a source without a path to the target gets: ``"none"`` (the default) gives None, ``"zero"``
                gives zeros.

        Returns:
            The gradients, in the structure of `sources`.

        Raises:
            ArgumentError: If `unconnected_gradients` has another value, or if `output_gradients` has another structure.
            ArgumentTypeError: If the target is not of a float dtype, or if a source is neither a variable nor a JAX array.
            GradientError: If it is called outside the function in which the tape recorded, if the tape has recorded nothing, at a
                second call on a tape that is not persistent, or for a source that the tape cannot tell from others.
        """
        zeros = self._begin("gradient", unconnected_gradients)
        target = jax.tree.map(self._read_target, target, is_leaf=is_variable)
        given = Sources(sources)
        found = self._gradients(*targets_of(target, output_gradients), given.leaves)
        return given.structured([zeros_like(s) if g is None and zeros else g for s, g in zip(given.leaves, found, strict=True)])

    def jacobian(
        self,
        target: Any,
        sources: Any,
        unconnected_gradients: str | None = None,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """Compute the gradient of each element of `target` with respect to each of `sources`.

        Args:
            target: A float array or variable.
            sources: A variable, a float array, or a nested structure of them.
            unconnected_gradients: As for ``gradient``.
            parallel_iterations: Has no effect. It is accepted for ported code.
            experimental_use_pfor: Whether the gradients of all elements are computed together. If not, they are computed one after
                the other, which takes less memory.

        Returns:
            The jacobians, in the structure of `sources`. Each has the shape of `target`, followed by that of the source.

        Raises:
            ArgumentError: If `unconnected_gradients` has another value.
            ArgumentTypeError: If the target is not one array or variable of a float dtype, or if a source is neither a variable nor
                a JAX array.
            GradientError: As ``gradient``, and for a variable on parameter servers.
        """
        del parallel_iterations
        zeros = self._begin("jacobian", unconnected_gradients)
        target = self._single_target(target, "jacobian")
        leaves, tree = jax.tree.flatten(sources, is_leaf=lambda x: x is None or is_variable(x))
        rows = jnp.eye(target.size, dtype=target.dtype).reshape(target.size, *target.shape)
        found = self._gradients([target], [rows], leaves, _Rows(target.size, experimental_use_pfor))
        shapes = [target.shape + shape_of(leaf) for leaf in leaves]
        shaped = [
            (jnp.zeros(shape, dtype_of(leaf)) if zeros else None) if part is None else part.reshape(shape)
            for leaf, part, shape in zip(leaves, found, shapes, strict=True)
        ]
        return jax.tree.unflatten(tree, shaped)

    def batch_jacobian(
        self,
        target: Any,
        source: Any,
        unconnected_gradients: str | None = None,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> jax.Array:
        """Compute, for each row of a batch, the gradient of each element of `target` with respect to the same row of `source`.

        Each row of `target` must depend only on the same row of `source`.

        Args:
            target: A float array of shape ``(b, ...)``.
            source: A float array or variable of shape ``(b, ...)``.
            unconnected_gradients: Has no effect, as in TensorFlow: a source without a path to the target gets zeros.
            parallel_iterations: Has no effect. It is accepted for ported code.
            experimental_use_pfor: As for ``jacobian``.

        Returns:
            The jacobians of all rows. Their shape is that of `target`, followed by that of a row of `source`.

        Raises:
            ArgumentError: If `target` and `source` have fewer than two dimensions, or different numbers of rows.
            ArgumentTypeError: As ``jacobian``.
            GradientError: As ``jacobian``.
        """
        del parallel_iterations
        self._begin("batch_jacobian", unconnected_gradients)
        target = self._single_target(target, "batch_jacobian")
        if not is_variable(source):
            source = source_array(source)
        shape = shape_of(source)
        if min(len(shape), target.ndim) < 2 or target.shape[0] != shape[0]:
            raise ArgumentError(
                "batch_jacobian takes a target and a source of at least two dimensions, with equally many rows; got the shapes "
                f"{target.shape} and {shape}. Use `jacobian` for other shapes."
            )
        batch, size = target.shape[0], math.prod(target.shape[1:])
        ones = jnp.broadcast_to(jnp.eye(size, dtype=target.dtype)[:, None], (size, batch, size))
        rows = ones.reshape(size, *target.shape)
        part = self._gradients([target], [rows], [source], _Rows(size, experimental_use_pfor))[0]
        whole = target.shape + shape[1:]
        return jnp.zeros(whole, dtype_of(source)) if part is None else jnp.swapaxes(part, 0, 1).reshape(whole)

    def _begin(self, method: str, unconnected_gradients: str | None) -> bool:
        """Check that gradients can be computed now, and return whether sources without a path get zeros."""
        if unconnected_gradients not in (None, "none", "zero"):
            raise ArgumentError(f"unconnected_gradients must be 'none' or 'zero'; got {unconnected_gradients!r}.")
        if self._recorder is None and self._eager is None:
            raise GradientError(
                "This tape has recorded nothing. Compute the target inside `with replicant.GradientTape() as tape:`."
            )
        if current_recorder() is not self._recorder:
            raise GradientError(
                f"tape.{method} was called outside the function in which the tape recorded. Call it in the same `strategy.run` or "
                "`replicant.function` as the tape's `with` block."
            )
        if self._used and not self._persistent:
            raise GradientError(
                "A tape that is not persistent computes gradients only once. Use GradientTape(persistent=True), or one tape for "
                "each call of `gradient`."
            )
        if self._recording and not self._persistent:
            self._stop()
        self._used = True
        return unconnected_gradients == "zero"

    def _single_target(self, target: Any, method: str) -> Any:
        target = self._read_target(target)
        if not isinstance(target, jax.Array):
            raise ArgumentTypeError(
                f"tape.{method} takes one array or variable as its target; got {target!r} of type {type(target).__name__}. Stack "
                "several targets into one array, or use a persistent tape and one call for each."
            )
        return checked_target(target)

    def _read_target(self, leaf: Any) -> Any:
        """Return the value of a variable among the targets, and any other target as it is."""
        if not is_variable(leaf):
            return leaf
        value = _recorder.read(ref_of(leaf))
        self._note(ref_of(leaf), value, self._recorder, assigned=False)
        return value

    def _gradients(self, targets: list[Any], cotangents: list[Any], sources: list[Any], rows: _Rows = _ONE) -> list[Any]:
        """Return one gradient, or None, per source. That of a variable covers every value that was read from it."""
        recorder = self._recorder
        if rows.num is not None:
            check_not_on_servers(ref_of(x) for x in sources if is_variable(x))
        if recorder is None:
            return self._eager_gradients(targets, cotangents, sources, rows)
        call = recorder.next_number("gradient")
        cut_off = recorder.facts.unconnected.get(call, frozenset())
        arrays: list[Any] = []
        owners: list[int] = []  # for each array, the index of its source
        absent: list[int] = []  # sources that were not read here
        for i, source in enumerate(sources):
            values = self._values_of(source)
            if i not in cut_off and jnp.issubdtype(dtype_of(source), jnp.inexact):
                arrays += values
                owners += [i] * len(values)
                absent += [] if values else [i]
        found: list[Any] = [None] * len(sources)
        if arrays or (absent and recorder.facts.several):
            marks = {"tape": self._id, "call": call, "num_targets": len(targets), "owners": tuple(owners), "absent": tuple(absent)}
            slices, gathered = recorder.slices_behind(arrays)
            marks |= {"rows": rows.num, "at_once": rows.at_once, "gathered": gathered}
            parts = gradient_p.bind(*targets, *cotangents, *arrays, *slices, **marks)
        else:
            parts = []
        by_source: dict[int, list[tuple[Any, Any]]] = {i: [] for i in owners}
        for array, part, i in zip(arrays, parts, owners, strict=True):
            by_source[i].append((array, part))
        for i, mine in by_source.items():
            found[i] = ref_of(sources[i]).gradient(mine) if is_variable(sources[i]) else mine[0][1]
        if recorder.facts.several:
            for i in absent:
                found[i] = jnp.zeros(rows.shape(shape_of(sources[i])), dtype_of(sources[i]))
        return found

    def _eager_gradients(self, targets: list[Any], cotangents: list[Any], sources: list[Any], rows: _Rows) -> list[Any]:
        """Do what `_gradients` does, outside of traces."""
        eager = self._eager
        assert eager is not None
        if not all(map(eager.knows, targets)):
            raise GradientError(
                "The target of `tape.gradient` was computed inside a loop, a branch or another function that JAX traces, but the "
                "tape was opened outside of it. Open the tape inside it as well, or call `tape.gradient` outside."
            )
        values = [self._values_of(x) if jnp.issubdtype(dtype_of(x), jnp.inexact) else [] for x in sources]
        arrays = [value for each in values for value in each]
        parts = iter(pull_rows(lambda row: eager.gradients(targets, row, arrays), cotangents, rows.num, at_once=rows.at_once))
        found: list[Any] = [None] * len(sources)
        for i, source in enumerate(sources):
            mine = [(value, part) for value in values[i] if (part := next(parts)) is not None]
            if mine:
                found[i] = ref_of(source).gradient(mine) if is_variable(source) else mine[0][1]
        return found

    def _values_of(self, source: Any) -> list[Any]:
        """Return the values that were read from a variable, or the array itself."""
        if not is_variable(source):
            return [source_array(source)]
        self._check_in_sight(ref_of(source))
        return self._reads.get(ref_of(source), [])

    def _check_in_sight(self, ref: Ref) -> None:
        if ref in self._out_of_sight:
            raise GradientError(
                f"Variable {ref.name!r} was assigned and then read inside `strategy.run`, but the tape is outside `run`. No "
                "gradient passes through an assignment, and the value that was read is not available outside `run`. Use the tape "
                "inside the replica function, or read the variable before you assign it."
            )
