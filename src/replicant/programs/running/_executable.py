"""Compiles a function that overwrites state into one program of a placement, compares it between the workers, and starts it."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from ...kernels.xla import _heap
from ...replicas._placement import Placement
from ...replicas._planning import Held, StepFound
from ...runtime import _in_flight, _steps
from ...tracing.jaxprs._host_calls import HostErrors, may_fail
from ...variables._chief import check_same_program
from . import _same_thread_dispatch, _segmented

_traces = ContextVar("_traces", default=False)  # whether a trace that was asked for is under way


_one_at_a_time = threading.RLock()  # for programs whose errors nothing but their own `settle` knows of


class _Untraced(Exception):
    """A call is about to trace the program. It must be known before whether it may overwrite its state."""


class Executable:
    """``compute(state, *inputs) -> (results, state)``, compiled by JAX once for each kind of inputs.

    A program that calls the host may fail after it has started. It leaves the old state alone, and whoever starts it must `settle`.

    Args:
        name: The name in messages.
        compute: The function to trace. Its first argument is donated: the program may overwrite these arrays.
        placement: The devices.

    Attributes:
        may_fail: Whether the program calls the host, for any of the kinds of inputs that are known.
    """

    def __init__(self, name: str, compute: Callable[..., tuple[Any, Any]], placement: Placement):
        self.name = name
        self._compute = compute
        self.placement = placement
        self._bounded = placement.deadlocks
        # For one device, the program needs no constraints inside, but JAX needs to know the device.
        self._home = placement.mirrored if placement.on_one_device else None
        self._jitted = jax.jit(self._with_token, donate_argnums=0, out_shardings=self._home)
        self.may_fail = False
        self._host_errors: HostErrors | None = None
        # A long program becomes one of segments, for each kind of inputs.
        self._may_be_long = placement.on_cpu and placement.on_one_device and placement.world is None and placement.planning is None
        self._segmented: list[_segmented.Segmented] = []
        self._size_of_results: int | None = None  # once a program of several workers has run
        self._inline = _same_thread_dispatch.Choice(self._jitted) if self._may_run_inline(placement) else None
        if placement.world is None:
            self._first_runs = _heap.FirstRuns(lambda outputs: outputs[0].block_until_ready(), self._fresh)
        else:  # nobody waits, because others must run it, too, and JAX would compile it once more to tell its temporaries
            self._first_runs = _heap.FirstRuns(None, lambda *_: self._size_of_results or 0)

    def _with_token(self, state: Any, *inputs: Any) -> tuple[jax.Array, Any, Any]:
        """Compute the results and the new state, and before them an array that is ready once every replica has ended."""
        if not _traces.get() and not jax.config.jax_disable_jit:
            raise _Untraced
        results, state = self._compute(state, *inputs)
        token = jnp.zeros((self.placement.num_replicas,), jnp.int8)
        return self.placement.constrain(token, stacked=True), results, state

    def trace(self, *inputs: Any) -> Any:
        """Return the jaxpr of the program, which JAX caches."""
        return self._traced(inputs).jaxpr

    def _traced(self, inputs: tuple[Any, ...]) -> Any:
        """Trace the program. If it calls the host, it is one that overwrites nothing from now on."""
        asked = _traces.set(True)
        try:
            traced = self._jitted.trace(*inputs)
        finally:
            _traces.reset(asked)
        if self.may_fail or not may_fail(traced.jaxpr.jaxpr):
            return traced
        self.may_fail, self._inline = True, None
        compute = self._with_token
        if not self.placement.on_one_device and self.placement.world is None:
            self._host_errors, compute = HostErrors(), self._noting_errors
        self._jitted = jax.jit(compute, out_shardings=self._home)
        return self._traced(inputs)

    def _noting_errors(self, state: Any, *inputs: Any) -> tuple[jax.Array, Any, Any]:
        assert self._host_errors is not None
        closed, outputs = jax.make_jaxpr(self._with_token, return_shape=True)(state, *inputs)
        values = jex.jaxpr_as_fun(self._host_errors.noting(closed))(*jax.tree.leaves((state, *inputs)))
        return jax.tree.unflatten(jax.tree.structure(outputs), values)

    def alone(self) -> AbstractContextManager[None]:
        """Enter this around `start` and `settle`: no other program of which only `settle` knows whether it has failed runs then."""
        return nullcontext() if self._host_errors is None else self._alone(self._host_errors)

    @contextmanager
    def _alone(self, errors: HostErrors) -> Iterator[None]:
        with _one_at_a_time:
            errors.forget()  # those of a program for which Ctrl-C has ended the wait
            yield

    def settle(self, before: Any, outputs: Any, keeper: _in_flight.State | None) -> None:
        """Wait for a program that may fail, without the lock of programs: what it calls may need that.

        If it fails, or Ctrl-C comes, `keeper` has the state from before it again.

        Args:
            before: The state that the program was started with.
            outputs: What `start` has returned.
            keeper: The keeper that was given to `start`.
        """
        if not self.may_fail:
            return
        try:
            jax.block_until_ready(outputs)
            if self._host_errors is not None:
                self._host_errors.check()
        except BaseException:
            _in_flight.forget_failed()
            if keeper is not None:
                keeper.put_back(before, outputs[1])
            raise

    def check_workers(self, jaxpr: Any) -> None:
        """Raise WorkerMismatchError if another worker has traced a different program. All workers must call this."""
        if self.placement.world is not None:
            check_same_program(self.name, jaxpr, self.placement.world)

    def lower(self, *inputs: Any) -> Any:
        """Lower the program for its devices. Neither these nor the arrays need to exist: shapes are enough."""
        platform = self.placement.platform
        traced = self._traced(inputs)
        return traced.lower() if platform is None else traced.lower(lowering_platforms=(platform,))

    def start(self, *inputs: Any, keeper: _in_flight.State | None = None) -> tuple[Any, Any]:
        """Start the program. Return the results and the new state, which may not be ready yet.

        `keeper` stores the state even if Ctrl-C interrupts the call.
        """
        if _steps.recorder is None:
            return self._start(inputs, keeper)[-2:]
        with _steps.recorder.step(self.name) as step:
            outputs = self._start(inputs, keeper)
            step.result = outputs[0]  # is ready once the program has ended
        return outputs[-2:]

    def _start(self, inputs: tuple[Any, ...], keeper: _in_flight.State | None) -> Any:
        """Start the program. Return its outputs, of which the last two are what `start` returns."""
        if self.placement.world is not None:
            self.placement.world.steps += 1
        try:
            return self._start_traced(inputs, keeper)
        except _Untraced:  # before anything has started
            self._traced(inputs)
            return self._start_traced(inputs, keeper)

    def _start_traced(self, inputs: tuple[Any, ...], keeper: _in_flight.State | None) -> Any:
        call = _in_flight.call
        if self.placement.world is not None:
            outputs = self._first_runs.run(call, self._jitted, *inputs, bounded=self._bounded, state=keeper)
            if self._size_of_results is None:
                self._size_of_results = _bytes_on_device(outputs[-2])
            return outputs
        program = self._segmented_for(inputs) if self._may_be_long else None
        if self.may_fail:  # nobody may wait for its first runs here
            return call(program or self._jitted, *inputs, bounded=self._bounded, state=keeper, in_parts=program is not None)
        if program is not None or self._inline is None:
            in_parts = program is not None
            return self._first_runs.run(
                call, program or self._jitted, *inputs, bounded=self._bounded, state=keeper, in_parts=in_parts
            )
        if self._inline.may_be_new():
            self._inline.decide(inputs)
        if self._first_runs.are_over:  # as nearly always
            outputs = call(self._jitted, *inputs, bounded=self._bounded, state=keeper)
        else:
            outputs = self._first_runs.run(call, self._jitted, *inputs, bounded=self._bounded, state=keeper)
        self._inline.after_run(outputs[0])
        return outputs

    @staticmethod
    def _may_run_inline(placement: Placement) -> bool:
        return placement.on_cpu and placement.on_one_device and placement.world is None

    def _fresh(self, program: Any, *inputs: Any) -> int:
        """Return the bytes that each run of a program allocates, which has just run on such inputs; 0 if that is not known.

        JAX still has what it compiled, so this compiles nothing.
        """
        if isinstance(program, _segmented.Segmented) or jax.config.jax_disable_jit or jax.config.jax_debug_nans:
            return 0
        if self._inline is not None and self._inline.fresh_bytes is not None:
            return self._inline.fresh_bytes
        return _same_thread_dispatch.fresh_bytes(program.lower(*inputs).compile())

    def _segmented_for(self, inputs: tuple[Any, ...]) -> _segmented.Segmented | None:
        """Return the program in segments for these inputs; None if the program is not long."""
        if jax.config.jax_disable_jit or jax.config.jax_debug_nans:
            return None
        for known in self._segmented:
            if known.takes(inputs):
                return known
        traced, home = self._traced(inputs), self.placement.mirrored
        if not _segmented.can_be_cut(traced.jaxpr, inputs, home):
            self._may_be_long = bool(self._segmented)
            return None
        num_donated = 0 if self.may_fail else len(jax.tree.leaves(inputs[0]))
        self._segmented.append(_segmented.Segmented(traced, inputs, num_donated, home))
        return self._segmented[-1]


def _bytes_on_device(results: Any) -> int:
    """Return the bytes that results take on one device."""
    arrays = [x for x in jax.tree.leaves(results) if isinstance(x, jax.Array)]
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in arrays)


def found_step(
    make: Callable[[Placement], Executable], inputs: Callable[[Placement], tuple[Any, ...]], strategy: Placement
) -> StepFound:
    """Describe a training step in the form that a plan needs.

    Args:
        make: Makes the program for the devices of a placement.
        inputs: Returns the program's inputs for a placement, as trees of Held.
        strategy: The placement of the program's strategy.
    """

    def held(placement: Placement) -> list[Held]:
        return jax.tree.leaves(inputs(placement))

    def lower(placement: Placement) -> Any:
        program = make(placement)
        return program.lower(*jax.tree.map(partial(_abstract, program.placement), inputs(program.placement)))

    return StepFound(lower, held, strategy.cuts)


def _abstract(placement: Placement, held: Held) -> jax.ShapeDtypeStruct:
    if held.layout == "cut":
        rows = held.shape[0] if held.shape else 1
        home = placement.cut(math.gcd(rows, placement.num_replicas), 0)
    else:
        axis = placement.slice_axis(held.shape, held.dtype, slot=True) if held.layout == "sliced" else None
        home = placement.home(held.shape, stacked=held.layout == "stacked", slice_axis=axis)
    dtype = jax.dtypes.canonicalize_dtype(held.dtype)  # a batch of NumPy may have 64 bits
    return jax.ShapeDtypeStruct(held.shape, dtype, sharding=home)
