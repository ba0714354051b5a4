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

from ...replicas._placement import Placement
from ...replicas._planning import Held, StepFound
from ...runtime import _in_flight, _steps
from ...tracing.jaxprs._host_calls import HostErrors, may_fail
from ...variables._chief import check_same_program
from . import _same_thread_dispatch, _segmented
from ._launch import Launch, is_debugging
from ._over_workers import OverWorkers
from ._plain import Plain

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
        # For one device, the program needs no constraints inside, but JAX needs to know the device.
        self._home = placement.mirrored if placement.on_one_device else None
        self._jitted: Any = jax.jit(self._with_token, donate_argnums=0, out_shardings=self._home)
        self.may_fail = False
        self._host_errors: HostErrors | None = None
        self._launch: Launch | None = None  # chosen by the first start

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
        self.may_fail, self._launch = True, None
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
            self.placement.world.exchange.count_step()
        try:
            return (self._launch or self._choose(inputs))(inputs, keeper)
        except _Untraced:  # before anything has started
            # JAX would start a function whose first call has failed through its slower Python for ever.
            self._jitted._clear_cache()  # noqa: SLF001 - only what C++ keeps is forgotten, no trace
            self._traced(inputs)
            return (self._launch or self._choose(inputs))(inputs, keeper)

    def _choose(self, inputs: tuple[Any, ...]) -> Launch:
        """Choose how to start the programs from now on, of which one is about to start."""
        placement = self.placement
        if placement.world is not None:
            self._launch = OverWorkers(self._jitted, bounded=placement.deadlocks)
        elif not (placement.on_cpu and placement.on_one_device):
            self._launch = Plain(self._jitted, bounded=placement.deadlocks, watched=not self.may_fail)
        elif is_debugging():
            return self._whole()  # and choose later
        elif placement.planning is None and _segmented.can_be_cut(self._traced(inputs).jaxpr, inputs, placement.mirrored):
            self._launch = _segmented.InSegments(self._traced_again, self._whole(), placement.mirrored, may_fail=self.may_fail)
        else:
            self._launch = self._whole()
        return self._launch

    def _whole(self) -> Launch:
        """Return what starts whole programs of one CPU."""
        if self.may_fail:
            return Plain(self._jitted, bounded=False, watched=False)
        return _same_thread_dispatch.SameThread(self._jitted)

    def _traced_again(self, inputs: tuple[Any, ...]) -> Any:
        """Trace the program for another kind of inputs, which is started as those before."""
        traced = self._traced(inputs)
        if self._launch is None:
            raise _Untraced
        return traced


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
