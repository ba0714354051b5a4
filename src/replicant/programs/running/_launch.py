"""``Launch``: how the programs of one function are started. Each way of starting them has a file of its own, beside this one."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax

from ...kernels.xla._heap import FirstRuns
from ...runtime import _in_flight

# Starts the program of a jitted function, which has one for each kind of inputs, given the arguments of the function, and what
# stores the state even if Ctrl-C interrupts the call. Returns the outputs, which may not be ready yet: an array that is ready once
# the program has ended, the results, and the state.
Launch: TypeAlias = Callable[[tuple[Any, ...], _in_flight.State | None], Any]


def is_debugging() -> bool:
    """Whether JAX runs the operations of programs one by one, which are then no programs."""
    return jax.config.jax_disable_jit or jax.config.jax_debug_nans


def start_of_programs(*, watched: bool) -> Callable[..., Any]:
    """Return what starts the programs of one function, as ``_in_flight.call`` does, and perhaps watches their first runs."""
    return partial(FirstRuns(wait, size_of_run).run, _in_flight.call) if watched else _in_flight.call


def wait(outputs: Any) -> None:
    """Wait for the end of a program."""
    outputs[0].block_until_ready()


def size_of_run(program: Any, *inputs: Any) -> int:
    """Return the bytes that each run of a program allocates, which has just run on such inputs; 0 if that is not known.

    JAX still has what it compiled, so this compiles nothing.
    """
    return 0 if is_debugging() or not hasattr(program, "lower") else fresh_bytes(program.lower(*inputs).compile())


def fresh_bytes(compiled: Any) -> int:
    """Return the bytes that each run of a program allocates, for temporary arrays and for results that overwrite no input."""
    found = compiled.memory_analysis()
    return 0 if found is None else found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
