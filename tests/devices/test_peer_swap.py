"""An exchange with the other worker of a host within a program of XLA. The test is the other worker, and reads this process."""

import os
import socket
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicant.cluster._peer_memory import PeerMemory
from replicant.programs._large_sums import channel_of
from replicant.replicas import _peer_swap

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies from process to process")
SIZE = 1 << 18


@pytest.fixture
def other(monkeypatch):
    """The other worker: ``other(channel, array)`` exchanges an array, and returns the error and what it has read."""
    monkeypatch.setattr(_peer_swap, "_peer", None)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ends = [PeerMemory(each, os.getpid(), name) for each, name in ((ours, "worker 1"), (theirs, "worker 0"))]
    kept = []

    def swap(channel, array):
        target, over, errors = np.zeros_like(array), threading.Event(), []
        kept.append((array, target))

        def finish(error):
            errors.append(error)
            over.set()

        ends[1].swap(channel, array.ctypes.data, target.ctypes.data, array.nbytes, finish)
        assert over.wait(20)
        return errors[0], target

    swap.end = ends[1]
    _peer_swap.use(ends[0])
    yield swap
    for end in ends:
        end.close("the test is over")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex64", "bool"])
def test_a_program_adds_up_what_both_have(other, dtype):
    mine, theirs = (np.random.default_rng(seed).integers(0, 2, SIZE).astype(jnp.dtype(dtype)) for seed in range(2))
    program = jax.jit(lambda x: (x * 1, _peer_swap.swap(x, 7)))
    answers = []
    beside = threading.Thread(
        target=lambda: answers.append(other(7, theirs))
    )  # JAX may compute in the thread that starts a program
    beside.start()
    started = program(mine)
    beside.join(20)
    [(error, read)] = answers
    assert error is None
    np.testing.assert_array_equal(read, mine)
    np.testing.assert_array_equal(np.asarray(started[1]), theirs)


def test_starting_a_program_does_not_wait_for_the_other_worker(other):
    program = jax.jit(lambda x: 2 * _peer_swap.swap(x, 7) + 1)
    x = jnp.ones(SIZE)
    for number in range(3):
        begun = time.monotonic()
        started = program(x)
        if number:  # compiled already
            assert time.monotonic() - begun < 1
        assert not started.is_ready()
        time.sleep(0.2)
        assert not started.is_ready()
        assert other(7, np.full(SIZE, number, np.float32))[0] is None
        np.testing.assert_array_equal(started, np.full(SIZE, 2 * number + 1))


def test_a_worker_that_leaves_is_an_error_of_the_program(other):
    started = jax.jit(lambda x: _peer_swap.swap(x, 7) + 1)(jnp.ones(SIZE))
    other.end.close("this worker has left the group")
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"^UNAVAILABLE: worker 1 has closed its connection: it has ended"):
        started.block_until_ready()
    assert not _peer_swap.is_open()


def test_a_program_without_a_worker_beside_it(monkeypatch):
    _peer_swap._register()
    monkeypatch.setattr(_peer_swap, "_peer", None)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"^UNAVAILABLE: this process has no worker beside it"):
        jax.jit(lambda x: _peer_swap.swap(x, 7))(jnp.ones(SIZE)).block_until_ready()


def test_an_exchange_that_cannot_begin(other, monkeypatch):
    def fail(*_):
        raise RuntimeError("no threads")

    monkeypatch.setattr(_peer_swap._peer, "swap", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"^INTERNAL: an exchange .* could not begin: RuntimeError: no threads"):
        jax.jit(lambda x: _peer_swap.swap(x, 7))(jnp.ones(SIZE)).block_until_ready()


# Which sums are exchanged so.

LARGE, SMALL = jax.ShapeDtypeStruct((1 << 19,), jnp.float32), jax.ShapeDtypeStruct(((1 << 19) - 1,), jnp.float32)


def summed(x):
    return jax.lax.psum(x, "replica")


def twice(x):
    once = jax.jit(summed)
    return once(x) + once(x * 2)


def in_scan(x):
    return jax.lax.scan(lambda carry, _: (summed(carry), None), x, None, length=3)[0]


def in_while(x):
    return jax.lax.while_loop(lambda c: jnp.sum(c) < 1, summed, x)


@pytest.mark.parametrize(
    ("function", "argument", "is_one"),
    [
        (summed, LARGE, True),
        (summed, SMALL, False),
        (jax.jit(summed), LARGE, True),
        (twice, LARGE, False),
        (in_scan, LARGE, False),
        (in_while, LARGE, False),
        (lambda x: jax.lax.cond(x[0] > 0, summed, lambda y: y, x), LARGE, True),
        (lambda x: jax.lax.cond(x[0] > 0, summed, summed, x), LARGE, False),
        (lambda x: jax.lax.psum((x, x[:3]), "replica"), LARGE, True),
        (lambda x: jax.lax.psum((x, x + 1), "replica"), LARGE, False),
        (lambda x: jax.lax.pmax(x, "replica"), LARGE, False),
        (lambda x: x, LARGE, False),
    ],
)
def test_the_only_large_sum_of_a_program(function, argument, is_one):
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("replica",))
    spec = jax.sharding.PartitionSpec()
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    found = channel_of(jax.make_jaxpr(mapped)(argument))
    assert (found is not None) == is_one
    assert found == channel_of(jax.make_jaxpr(mapped)(argument))
