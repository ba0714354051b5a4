"""This machine's CPU: what it can do, and how long a compiled step takes on it. Unlike other devices it is there to be asked."""

import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._chips import Chip

_LONGEST = 2.0  # seconds that timing a step may take, once it has run once
_FEWEST, _MOST = 3, 100  # steps that are timed
_SHARE_OF_MEMORY = 0.5  # that the arrays of a step may take


def measured_cpu() -> Chip:
    """What this machine's CPU can do, from half a second of matrix products and copies."""
    size, words = 1024, 1 << 24
    a = jnp.ones((size, size), jnp.float32)
    flops = 2 * size**3 / _best(lambda: jax.block_until_ready(product(a)), 8)
    row = jnp.ones((words,), jnp.float32)
    rate = 2 * 4 * words / _best(lambda: jax.block_until_ready(plus_one(row)), 8)
    return Chip("this machine's CPU", flops, memory(), rate, float("inf"), 1 << 30, float("inf"), 1 << 30)


@jax.jit
def product(a: jax.Array) -> jax.Array:
    """One matrix product."""
    return a @ a


@jax.jit
def plus_one(row: jax.Array) -> jax.Array:
    """One read and one write of memory."""
    return row + 1


def memory() -> float:
    """Bytes of memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def step_seconds(compiled: Any) -> float | None:
    """Seconds of a compiled step on this machine, run on zeros again and again; None if it would take too much of its memory.

    As in training, each step gets the state that the one before it gave, and the same batch. How long a step takes does not depend
    on the numbers in it.

    Args:
        compiled: what JAX compiled, for this machine's CPU.
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
    """A step that is run on zeros. What it gives away it gets back, where a result is of that kind; else new zeros."""

    def __init__(self, compiled: Any):
        (inputs, _), shardings = compiled.args_info, compiled.input_shardings[0]
        self._compiled = compiled
        self._leaves, self._tree = jax.tree.flatten(inputs)
        self._homes = self._tree.flatten_up_to(shardings)
        self._arrays = [self._zeros(i) for i in range(len(self._leaves))]

    def _zeros(self, i: int) -> jax.Array:
        # Real memory: pages that were never touched would cost time.
        return jax.device_put(np.full(self._leaves[i].shape, 0, self._leaves[i].dtype), self._homes[i])

    def step(self) -> float:
        """Run it once; returns the seconds that it took."""
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
