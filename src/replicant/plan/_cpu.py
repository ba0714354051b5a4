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
_FEWEST, _MOST = 3, 20  # steps that are timed
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
    """Seconds of a compiled step on this machine, run on zeros a few times; None if it would take too much of its memory.

    Args:
        compiled: what JAX compiled, for this machine's CPU.
    """
    sizes = compiled.memory_analysis()
    held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    if held > _SHARE_OF_MEMORY * memory():
        return None
    began = time.perf_counter()
    times = [_once(compiled)]
    repeats = int(min(_MOST, max(_FEWEST, _LONGEST / max(1e-6, time.perf_counter() - began))))
    times = [_once(compiled) for _ in range(repeats)]  # the first one, which warms up, does not count
    return float(np.median(times))


def _once(compiled: Any) -> float:
    (inputs, _), shardings = compiled.args_info, compiled.input_shardings[0]
    leaves, tree = jax.tree.flatten(inputs)
    homes = tree.flatten_up_to(shardings)
    # Each step gives its state away, so each needs fresh zeros, and real memory: pages that were never touched would cost time.
    arrays = [jax.device_put(np.full(x.shape, 0, x.dtype), home) for x, home in zip(leaves, homes, strict=True)]
    jax.block_until_ready(arrays)
    began = time.perf_counter()
    jax.block_until_ready(compiled(*tree.unflatten(arrays)))
    return time.perf_counter() - began


def _best(call: Callable[[], Any], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)
