"""The kernel `memory`: what it asks XLA about a program that has run, without compiling anything, and what glibc keeps before."""

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import replicant
from replicant.kernels.xla import _heap
from replicant.programs.running import _executable

MB = 1 << 20


@pytest.fixture
def asked(monkeypatch):
    """The sizes that were found, and how many programs were compiled for them."""
    found, compiled = [], []

    def listener(event: str, duration_secs: float, **_: Any) -> None:
        del duration_secs
        compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)

    def run(self, start, *args, **options):
        result = start(*args, **options)
        jax.block_until_ready(result[1])
        compiled.clear()
        if self._count:  # as at its second run
            found.append((self._size(*args), [event for event in compiled if "backend_compile" in event]))
        self._count += 1
        return result

    monkeypatch.setattr(_heap.FirstRuns, "run", run)
    yield found
    jax.monitoring.unregister_event_duration_listener(listener)


def large(x):
    """Return a sum that needs 64 MB."""
    products = jax.lax.optimization_barrier(x @ x.T)
    return jnp.sum(jnp.sort(products[:64])) + jnp.sum(products)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_size_is_known_and_nothing_is_compiled_for_it(asked, devices):
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(devices)])
    with strategy.scope():
        total = replicant.Variable(0.0)

    @replicant.function
    def step(x):
        total.assign_add(large(x))
        return total.value()

    x = jnp.ones((4096, 8))
    with strategy.scope():
        results = [float(step(x)) for _ in range(3)]
    assert results[2] == pytest.approx(3 * results[0])
    assert [size >= 64 * MB for size, _ in asked] == [True, True]
    assert [events for _, events in asked] == [[], []]


@pytest.mark.parametrize("devices", [1, 2])
def test_results_count_but_for_those_that_overwrite_the_state(asked, devices):
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(devices)])
    with strategy.scope():
        total = replicant.Variable(jnp.zeros((16 * MB,), jnp.float32))  # 64 MB

    @replicant.function
    def step(x):
        total.assign_add(2 * total.value())
        return x + 1.0  # 16 MB

    x = jnp.ones((4 * MB,))
    with strategy.scope():
        for _ in range(3):
            step(x)
    assert [size // MB for size, _ in asked] == [16, 16]
    assert [events for _, events in asked] == [[], []]


@pytest.fixture
def executable():
    placement = replicant.MirroredStrategy(["cpu:0"])._placement
    return _executable.Executable("a step", lambda state: (state, state), placement)


@pytest.mark.parametrize("option", ["jax_disable_jit", "jax_debug_nans"])
def test_nothing_is_asked_while_jax_debugs(executable, option):
    with jax.disable_jit() if option == "jax_disable_jit" else jax.debug_nans(True):
        assert executable._fresh(None) == 0


def test_a_program_in_segments_has_no_size(executable):
    assert executable._fresh(object.__new__(_executable._segmented.Segmented)) == 0


PIECES = """
import ctypes, resource, replicant

libc, size = ctypes.CDLL(None), 30 << 20
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use():
    pieces = [libc.malloc(size) for _ in range(3)]
    for piece in pieces:
        libc.memset(piece, 1, size)
    for piece in pieces:
        libc.free(piece)

for _ in range(3):
    use()
before = pages()
for _ in range(10):
    use()
print((pages() - before) // 10, replicant.kernels.status().kernels["memory"])
"""


@pytest.mark.long
def test_pieces_of_less_than_32_mb_keep_their_pages():
    """Threads share a heap, of which glibc would return the end each time: 23,000 pages of 4096 bytes."""
    done = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True, timeout=240, check=False)
    assert done.stderr == ""
    count, state = done.stdout.strip().split(" ", 1)
    if state.startswith("off: the allocator is not glibc's"):
        pytest.skip(state)
    assert state == "on"
    assert int(count) < 100
