"""Has programs run on the CPU in the thread that starts them, where that is better: those that are small, and those that are large.

By default, JAX hands each program to a thread of its own. The Python of a training loop then goes on beside the program, which
is right for most of them. But waking that thread takes tens of microseconds, and both threads then wait for each other at the
heap, which they share (see kernels/xla/_heap.py): a loop of tiny steps takes longer. And JAX starts the next program before
that thread has freed the temporary arrays of the last one. Of those of a large program, there are then two or three at a time.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex

from ...kernels._switch import is_on
from ...kernels.xla._same_thread import FAMILY, load_again, objection
from ...tracing.jaxprs._marks import inner_jaxprs

_SMALL_BYTES, _SMALL_FLOPS = 4 << 20, 10_000_000  # that the operations of a small program read and write, and compute
_LOOPS = frozenset({"while", "scan"})
_LARGE_BYTES = 32 << 20  # of temporary arrays and results
_WAIT_EVERY = 8  # runs of a small program
_TRIES = 8  # runs of programs that are known, while JAX has one that is not
_OPTION = "jax_cpu_enable_async_dispatch"


class Choice:
    """Decides where the programs of a jitted function run, which has one for each kind of inputs.

    Args:
        jitted: What ``jax.jit`` has returned. Its programs must run on CPUs, and in one process: where several processes wait for
            each other, the loop has to see when one of them is lost.
    """

    def __init__(self, jitted: Any):
        self._jitted = jitted
        self._decided: dict[int, Any] = {}  # JAX's own objects for programs, by their identity
        self._num_settled, self._tries = 0, 0
        self._wait_every, self._runs = 0, 0
        self.fresh_bytes: int | None = None  # of the program that was last decided for

    def may_be_new(self) -> bool:
        """Whether JAX has programs that nothing is decided for. To ask takes no time; to find the program of some inputs does."""
        return self._jitted._cache_size() > self._num_settled

    def decide(self, inputs: Sequence[Any]) -> None:
        """Decide for the program that these inputs are about to have. A program that runs only once decides nothing."""
        if jax.config.jax_disable_jit or jax.config.jax_debug_nans:
            return
        traced = self._jitted.trace(*inputs)
        compiled = traced.lower().compile()
        program = compiled._executable
        if id(program) in self._decided:
            self._tries += 1
            self._num_settled += self._tries == _TRIES
            return
        self._num_settled, self._tries = self._num_settled + 1, 0
        self._decided[id(program)] = program
        self.fresh_bytes = fresh_bytes(compiled)
        is_large = self.fresh_bytes >= _LARGE_BYTES
        self._wait_every, is_small = 0, not is_large and _is_small(compiled, traced.jaxpr)
        if not is_on(FAMILY) or objection() or not jax.config.values[_OPTION]:  # without that, JAX runs all programs in this thread
            return
        if not is_large and not is_small:
            return
        is_loaded = load_again(program)
        if is_loaded:
            jax.block_until_ready(inputs)  # else this run, too, has to wait for the last one in JAX's thread
            self._jitted._clear_cache()  # C++ still has the program as it was; Python's cache has it as it is now
        if is_large:  # if it was not loaded, this is next best: the temporary arrays of the last run have most often been freed
            self._wait_every = 1
        elif is_loaded:
            self._wait_every = _WAIT_EVERY

    def after_run(self, result: jax.Array) -> None:
        """Wait for a program that should run in this thread, as it does unless one of its inputs was still being computed.

        Without waiting, its results would be such inputs of the next run, and so on. To ask takes a microsecond, which is much for
        a small program. So some runs of those may be in JAX's thread.
        """
        if self._wait_every:
            self._runs += 1
            if self._runs % self._wait_every == 0:
                result.block_until_ready()


def fresh_bytes(compiled: Any) -> int:
    """Return the bytes that each run of a program allocates, for temporary arrays and for results that overwrite no input."""
    found = compiled.memory_analysis()
    return 0 if found is None else found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes


def _is_small(compiled: Any, traced: Any) -> bool:
    """Whether a program takes a fraction of a millisecond. XLA counts a loop as one of its rounds."""
    costs = compiled.cost_analysis() or {}
    small = costs.get("bytes accessed", _SMALL_BYTES) < _SMALL_BYTES and costs.get("flops", 0) < _SMALL_FLOPS
    return small and not _has_loop(traced.jaxpr)


def _has_loop(jaxpr: jex.Jaxpr) -> bool:
    return any(eqn.primitive.name in _LOOPS or any(map(_has_loop, inner_jaxprs(eqn))) for eqn in jaxpr.eqns)
