"""Measures what this machine's CPU can do, and how long a compiled step takes on it."""

import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._chips import Chip

_LONGEST = 2.0  # seconds for timing a step, after its first run
_FEWEST, _MOST = 3, 100  # steps that are timed
_SHARE_OF_MEMORY = 0.5  # the share of the machine's memory that the arrays of a step may take


def measured_cpu() -> Chip:
    """Measure what this machine's CPU can do, with half a second of matrix products and copies."""
    size, words = 1024, 1 << 24
    a = jnp.ones((size, size), jnp.float32)
    flops = 2 * size**3 / _best(lambda: jax.block_until_ready(product(a)), 8)
    row = jnp.ones((words,), jnp.float32)
    rate = 2 * 4 * words / _best(lambda: jax.block_until_ready(plus_one(row)), 8)
    return Chip("this machine's CPU", flops, memory(), rate, float("inf"), 1 << 30, float("inf"), 1 << 30)


@jax.jit
def product(a: jax.Array) -> jax.Array:
    """Compute one matrix product."""
    return a @ a


@jax.jit
def plus_one(row: jax.Array) -> jax.Array:
    """Read and write memory once."""
    return row + 1


def memory() -> float:
    """Return the bytes of memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def step_seconds(compiled: Any) -> float | None:
    """Measure how long a compiled step takes on this machine.

    The step runs repeatedly, beginning with zeros, because its time does not depend on the numbers. As in training, each step gets
    the state that the step before it returned, and the same batch.

    Args:
        compiled: The step that JAX has compiled for this machine's CPU.

    Returns:
        The median in seconds; None if the step would take too much of the machine's memory.
    """
    sizes = compiled.memory_analysis()
    held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    if held > _SHARE_OF_MEMORY * memory():
        return None
    loop = _Loop(compiled)
    loop.step()  # warms up
    began = time.perf_counter()
    times = [loop.step() for _ in range(_FEWEST)]
    while len(times) < _MOST and time.perf_counter() - began < _LONGEST:
        times.append(loop.step())
    return float(np.median(times))


class _Loop:
    """Runs a step repeatedly. For each array that it donates, it gets a result of the same shape, or else new zeros."""

    def __init__(self, compiled: Any):
        (inputs, _), shardings = compiled.args_info, compiled.input_shardings[0]
        self._compiled = compiled
        self._leaves, self._tree = jax.tree.flatten(inputs)
        self._homes = self._tree.flatten_up_to(shardings)
        self._arrays = [self._zeros(i) for i in range(len(self._leaves))]

    def _zeros(self, i: int) -> jax.Array:
        # In memory that has been written to: the first access to a page would cost time.
        return jax.device_put(np.full(self._leaves[i].shape, 0, self._leaves[i].dtype), self._homes[i])

    def step(self) -> float:
        """Run the step once, and return the seconds that it took."""
        jax.block_until_ready(self._arrays)
        began = time.perf_counter()
        results = self._compiled(*self._tree.unflatten(self._arrays))
        jax.block_until_ready(results)
        seconds = time.perf_counter() - began
        self._take_back(results)
        return seconds

    def _take_back(self, results: Any) -> None:
        given: dict[Any, list[jax.Array]] = {}
        for x in reversed(jax.tree.leaves(results)):  # the state comes last
            given.setdefault((x.shape, x.dtype, x.sharding), []).append(x)
        for i in reversed(range(len(self._leaves))):
            leaf = self._leaves[i]
            if leaf.donated:
                alike = given.get((tuple(leaf.shape), leaf.dtype, self._homes[i]))
                self._arrays[i] = alike.pop(0) if alike else self._zeros(i)


def _best(call: Callable[[], Any], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)
