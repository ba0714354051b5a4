"""The kernel `inline`: which programs run in the thread that starts them, that they really do, and that all numbers stay."""

import contextlib
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicant
from replicant import kernels
from replicant.errors import ArgumentError
from replicant.kernels.xla import _same_thread
from replicant.programs.running import _same_thread_dispatch

KB, MB = 1 << 10, 1 << 20


@pytest.fixture
def choices(monkeypatch):
    """What decides for the programs that a test makes, in the order in which they are made."""
    made = []

    class Noted(_same_thread_dispatch.Choice):
        def __init__(self, jitted):
            super().__init__(jitted)
            made.append(self)

    monkeypatch.setattr(_same_thread_dispatch, "Choice", Noted)
    return made


@pytest.fixture
def loaded(monkeypatch):
    """Whether each program was loaded again that should be."""
    found, load_again = [], _same_thread_dispatch.load_again

    def noted(program):
        found.append(load_again(program))
        return found[-1]

    monkeypatch.setattr(_same_thread_dispatch, "load_again", noted)
    return found


def large(x):
    """Return a sum that needs 64 MB and takes tens of milliseconds."""
    products = jax.lax.optimization_barrier(x @ x.T)
    for _ in range(4):
        products = jax.lax.optimization_barrier(jnp.sin(products))
    return jnp.sum(products)


def middling(x):
    """Return a sum that needs 16 MB and takes tens of milliseconds."""
    products = jax.lax.optimization_barrier(x[:2048] @ x[:2048].T)
    for _ in range(16):
        products = jax.lax.optimization_barrier(jnp.sin(products))
    return jnp.sum(products)


def long(x):
    """Return a sum after tens of milliseconds in a loop of small operations."""
    x = x[:20, :8] @ x[:8, :8].T
    return jnp.sum(jax.lax.fori_loop(0, 20_000, lambda _, y: jnp.tanh(y @ y[:8]), x))


def made(fn, devices=1):
    """Return a compiled step that adds up `fn`, which has run three times, its argument, and the sum after these runs."""
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(devices)])
    with strategy.scope():
        total = replicant.Variable(0.0)

    @replicant.function
    def step(x):
        total.assign_add(fn(x))
        return total.value()

    x = jnp.arange(4096 * 8, dtype=jnp.float32).reshape(4096, 8) % 7
    with strategy.scope():
        results = [float(step(x)) for _ in range(3)]
    return strategy, step, x, results


def are_there_when_the_call_returns(choice, x):
    """Run the program itself several times, without waiting for it afterwards. Its first argument is its state, the last is `x`."""
    home = replicant.MirroredStrategy(["cpu:0"])._placement.mirrored
    are_there = set()
    for _ in range(8):
        state = [jax.block_until_ready(jax.device_put(np.float32(0), home))]
        count = choice._jitted._cache_size()
        result = choice._jitted(state, [], [x])[0]
        are_there.add(result.is_ready())
        result.block_until_ready()
        assert choice._jitted._cache_size() == max(count, 1), "this is not the program of the function"
    return are_there


@pytest.mark.parametrize(
    ("fn", "is_on", "decided"),
    [
        (large, True, ([True], 1)),
        (large, False, ([], 0)),
        (middling, True, ([], 0)),
        (long, True, ([], 0)),  # XLA counts one round of its loop
    ],
)
@pytest.mark.long
def test_which_programs_run_in_the_thread_that_starts_them(choices, loaded, fn, is_on, decided):
    """Whether the program was loaded again, and after how many runs it is waited for."""
    with contextlib.nullcontext() if is_on else kernels.disabled("inline"):
        _, _, x, results = made(fn)
        (choice,) = choices
        assert (loaded, choice._wait_every) == decided
        are_there = are_there_when_the_call_returns(choice, x)
    if decided[0] == [True]:
        assert are_there == {True}
    else:  # on a busy machine, the thread that starts a program may go on after it
        assert False in are_there
    assert results == pytest.approx([results[0], 2 * results[0], 3 * results[0]])


@pytest.mark.parametrize(("fn", "wait_every"), [(large, 1), (lambda x: jnp.sum(x[:4]), 0)])
def test_a_program_that_cannot_be_loaded_again(choices, loaded, monkeypatch, fn, wait_every):
    """A large one is waited for, so that the temporary arrays of two runs seldom meet."""
    monkeypatch.setattr(_same_thread, "_MACHINE_CODE", b"of another system")
    _, _, _, results = made(fn)
    assert (loaded, choices[0]._wait_every) == ([False], wait_every)
    assert results == pytest.approx([results[0], 2 * results[0], 3 * results[0]])


def test_bytes_that_xla_refuses(choices, monkeypatch):
    found = []

    def load_again(program):
        monkeypatch.setattr(_same_thread, "_entries", [(program.xla_executable, "key")])
        found.append(_same_thread.load_again(program))
        return found[-1]

    monkeypatch.setattr(_same_thread_dispatch, "load_again", load_again)
    monkeypatch.setattr(_same_thread, "_kept", lambda client, key: b"\x7fELF but no program")
    _, _, _, results = made(large)
    assert (found, choices[0]._wait_every) == ([False], 1)
    assert results == pytest.approx([results[0], 2 * results[0], 3 * results[0]])


def test_a_small_program_runs_there(choices, loaded, monkeypatch):
    """As if its loop did not count: no small program takes long enough to see where it runs."""
    monkeypatch.setattr(_same_thread_dispatch, "_has_loop", lambda _: False)
    _, _, x, _ = made(long)
    (choice,) = choices
    assert (loaded, choice._wait_every) == ([True], 8)
    assert are_there_when_the_call_returns(choice, x) == {True}


def compiled(fn, *shapes):
    traced = jax.jit(fn).trace(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    return traced.lower().compile(), traced.jaxpr


@pytest.mark.parametrize(
    ("fn", "shapes", "is_small"),
    [
        (lambda x: x + 1, [(4,)], True),
        (lambda x: x + 1, [(0,)], False),  # XLA tells nothing
        (lambda x, y: x @ y, [(64, 64), (64, 64)], True),  # 0.5 million operations
        (lambda x, y: x @ y, [(200, 200), (200, 200)], False),  # 16 million
        (lambda x: x + 1, [(256 * KB,)], True),  # 2 MB
        (lambda x: x + 1, [(MB,)], False),  # 8 MB
        (lambda x: jax.lax.fori_loop(0, 9, lambda _, y: y + 1, x), [(4,)], False),
        (lambda x: jax.lax.scan(lambda c, y: (c + y, y), 0.0, x), [(4,)], False),
        (jax.jit(lambda x: jax.lax.while_loop(lambda y: y[0] < 9, lambda y: y + 1, x)), [(4,)], False),
        (lambda x: jax.lax.cond(x[0] > 0, lambda y: y, lambda y: jax.lax.map(jnp.sin, y), x), [(4,)], False),
    ],
)
def test_small_programs(fn, shapes, is_small):
    assert _same_thread_dispatch._is_small(*compiled(fn, *shapes)) is is_small


def test_a_program_decides_when_it_begins_its_second_run_and_each_kind_for_itself(monkeypatch):
    monkeypatch.setattr(_same_thread_dispatch, "_TRIES", 3)
    jitted = jax.jit(lambda x: (jnp.zeros(()), [], [x + 1]))
    choice, asked = _same_thread_dispatch.Choice(jitted), []
    for size in [3, 5, 3, 5, 5, 3, 7, 3, 7, 9, 3, 9, 9]:
        asked.append((size, choice.may_be_new(), jitted._cache_size()))
        if choice.may_be_new():
            choice.decide([jnp.zeros(size)])
        outputs = jitted(jnp.zeros(size))
        choice.after_run(outputs[0])
    assert asked == [
        (3, False, 0),
        (5, True, 1),  # the first of its kind decides, because there is another one; C++ then forgets both
        (3, False, 1),
        (5, True, 2),  # in vain
        (5, True, 2),  # in vain
        (3, True, 2),
        (7, False, 1),
        (3, False, 2),
        (7, False, 2),
        (9, False, 2),
        (3, True, 3),  # in vain
        (9, True, 3),
        (9, False, 1),
    ]


def test_programs_are_not_searched_for_ever(monkeypatch):
    monkeypatch.setattr(_same_thread_dispatch, "_TRIES", 3)
    jitted = jax.jit(lambda x: (jnp.zeros(()), [], [x + 1]))
    choice, asked = _same_thread_dispatch.Choice(jitted), []
    for size in [3, 3, 5, 3, 3, 3, 3, 3]:
        asked.append((size, choice.may_be_new()))
        if choice.may_be_new():
            choice.decide([jnp.zeros(size)])
        jitted(jnp.zeros(size))
    assert asked == [
        (3, False),
        (3, True),
        (5, False),
        (3, True),  # in vain
        (3, True),  # in vain
        (3, True),  # in vain, for the last time
        (3, False),
        (3, False),
    ]


@pytest.mark.parametrize(("fn", "wait_every"), [(large, 1), (lambda x: jnp.sum(x[:4]), 8)])
@pytest.mark.long
def test_nothing_is_traced_or_compiled_again(choices, fn, wait_every):
    def counted():
        events = []

        def listener(event, duration_secs, **_):
            events.append(event)

        jax.monitoring.register_event_duration_secs_listener(listener)
        try:
            made(fn)
        finally:
            jax.monitoring.unregister_event_duration_listener(listener)
        return sorted(event for event in events if "backend_compile" in event or "trace" in event)

    counted()  # from now on, JAX knows the functions inside, such as jnp.sum
    there = counted()
    with kernels.disabled("inline"):
        counted()
        assert counted() == there
    assert len(there) > 1
    assert [choice._wait_every for choice in choices] == [wait_every, wait_every, 0, 0]


@pytest.mark.long
def test_a_program_whose_input_is_still_being_computed_is_waited_for(choices):
    """It runs in JAX's thread then, and so would all that follow it."""
    strategy, step, x, _ = made(large)
    slow = jax.jit(lambda x: x + 0 * middling(x))
    jax.block_until_ready(slow(x))
    with strategy.scope():
        y = slow(x)
        assert step(y).is_ready()
    assert are_there_when_the_call_returns(choices[0], x) == {True}


def test_callbacks_are_called_as_before(choices):
    calls = []

    def noted(x):
        calls.append(float(x))
        return np.float32(x + 1)

    _, _, _, results = made(lambda x: jax.pure_callback(noted, jax.ShapeDtypeStruct((), jnp.float32), x[0, 1]))
    assert (results, calls) == ([2.0, 4.0, 6.0], [1.0, 1.0, 1.0])
    assert choices[0]._wait_every == 0


def test_training_is_the_same_to_the_last_bit():
    def weights():
        _, _, _, results = made(lambda x: jnp.mean(jnp.tanh(x[:8] @ x[:8].T) ** 2))
        return results

    there = weights()
    with kernels.disabled("inline"):
        assert weights() == there


@pytest.mark.parametrize("devices", [1, 2])
def test_several_replicas(choices, devices):
    """With devices that wait for each other, programs stay where JAX runs them."""
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(devices)])

    @replicant.function
    def step(x):
        return strategy.reduce("SUM", strategy.run(lambda: x * 2), axis=None)

    assert [float(step(jnp.float32(3))) for _ in range(4)] == [6 * devices] * 4
    assert [choice._wait_every for choice in choices] == [8] * (devices == 1)


@pytest.mark.parametrize("devices", [["cpu:5"], ["cpu:2", "cpu:7"]])
def test_other_devices_than_the_first(choices, loaded, devices, monkeypatch):
    monkeypatch.setenv("REPLICANT_FUSE_REPLICAS", "1")
    strategy = replicant.MirroredStrategy(devices)
    with strategy.scope():
        total = replicant.Variable(0.0)

    @replicant.function
    def step(x):
        strategy.run(lambda: total.assign_add(jnp.sum(x)))
        return total.value()

    with strategy.scope():
        results = [step(jnp.ones(4)) for _ in range(4)]
    assert [float(result) for result in results] == [4.0, 8.0, 12.0, 16.0]
    assert [device.id for device in results[-1].devices()] == [int(devices[0][-1])]
    assert loaded == [True]


def test_nothing_is_loaded_where_jax_runs_all_programs_so(choices, loaded):
    before = jax.config.values["jax_cpu_enable_async_dispatch"]
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        made(lambda x: jnp.sum(x[:4]))
    finally:
        jax.config.update("jax_cpu_enable_async_dispatch", before)
    assert (loaded, choices[0]._wait_every) == ([], 0)


def test_threads_that_share_a_function():
    strategy = replicant.MirroredStrategy(["cpu:0"])
    with strategy.scope():
        total = replicant.Variable(0.0)

    @replicant.function
    def step(x):
        total.assign_add(jnp.sum(x))
        return total.value()

    with strategy.scope():
        step(jnp.zeros(4))  # which compiles it once

    def work():
        with strategy.scope():
            for _ in range(50):
                step(jnp.ones(4))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert float(total.value()) == 4 * 4 * 50


@pytest.mark.parametrize("option", ["jax_disable_jit", "jax_debug_nans"])
def test_nothing_is_decided_while_jax_debugs(choices, option):
    with jax.disable_jit() if option == "jax_disable_jit" else jax.debug_nans(True):
        _, _, _, results = made(lambda x: x[0, 1])
    assert results == [1.0, 2.0, 3.0]
    assert choices[0].fresh_bytes is None


STEPS = """
import sys, jax, jax.numpy as jnp, replicant
from pathlib import Path
from replicant.programs.running import _same_thread_dispatch

hits, choices = [], []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
make = _same_thread_dispatch.Choice.__init__
_same_thread_dispatch.Choice.__init__ = lambda self, jitted: (make(self, jitted), choices.append(self))[0]

def large(x):
    products = jax.lax.optimization_barrier(x @ x.T)
    for _ in range(4):
        products = jax.lax.optimization_barrier(jnp.sin(products))
    return jnp.sum(products)

@replicant.function
def step(x):
    return large(x)

x = jnp.arange(4096 * 8, dtype=jnp.float32).reshape(4096, 8) % 7
results = [float(step(x))]
if sys.argv[1:]:
    for entry in Path(sys.argv[1]).rglob("*-cache"):
        entry.unlink()
results += [float(step(x)) for _ in range(3)]
(choice,) = choices
there = choice._jitted([], [], [x])[0].is_ready()
print(bool(hits), there, len(set(results)), results[0])
"""


@pytest.mark.long
def test_programs_from_the_cache(tmp_path, monkeypatch):
    """XLA cannot turn them into bytes again. So they are read again, and stay as they are if they are no longer there."""
    monkeypatch.setenv("REPLICANT_COMPILATION_CACHE", str(tmp_path))

    def run(*arguments):
        done = subprocess.run([sys.executable, "-c", STEPS, *arguments], capture_output=True, text=True, timeout=240, check=False)
        assert done.stderr == ""
        return done.stdout.split()

    *first, value = run()
    assert first == ["False", "True", "1"]
    assert run() == ["True", "True", "1", value]
    assert run(str(tmp_path)) == ["True", "False", "1", value]


SORTS = """
import jax, jax.numpy as jnp, replicant
from replicant.programs.running import _same_thread_dispatch

found, load_again = [], _same_thread_dispatch.load_again
_same_thread_dispatch.load_again = lambda program: (found.append(load_again(program)), found[-1])[1]

@replicant.function
def step(x):
    return jnp.sum(jax.lax.optimization_barrier(x @ x.T)) + jnp.sort(x[:, 0])[-1]

x = jnp.arange(4096 * 8, dtype=jnp.float32).reshape(4096, 8) % 7
print(len({float(step(x)) for _ in range(4)}), found)
"""


@pytest.mark.long
def test_xla_has_no_bytes_for_a_program_that_sorts_but_jax_has_kept_some(tmp_path, monkeypatch):
    def run(folder):
        monkeypatch.setenv("REPLICANT_COMPILATION_CACHE", str(folder))
        done = subprocess.run([sys.executable, "-c", SORTS], capture_output=True, text=True, timeout=240, check=False)
        assert done.stderr == ""
        return done.stdout

    assert run(0) == "1 [False]\n"
    assert [run(tmp_path), run(tmp_path)] == ["1 [False]\n", "1 [True]\n"]


def test_an_entry_that_was_compiled_for_another_device(monkeypatch):
    """Workers share entries, whose names leave out the ids of devices."""
    never_in_the_cache = np.random.default_rng().random()  # XLA has no bytes of what comes from it

    def compiled_for(i):
        x = jax.device_put(np.arange(4, dtype=np.float32), jax.devices()[i])
        return x, jax.jit(lambda x: (jnp.sin(x + never_in_the_cache),)).lower(x).compile()

    _, first = compiled_for(0)
    x, other = compiled_for(3)
    data = first._executable.xla_executable.client.serialize_executable(first._executable.xla_executable)
    monkeypatch.setattr(_same_thread, "_entries", [(other._executable.xla_executable, "of the first")])
    monkeypatch.setattr(_same_thread, "_kept", lambda _, key: data if key == "of the first" else None)
    assert _same_thread.load_again(other._executable) is True
    assert [device.id for device in other._executable.xla_executable.local_devices()] == [3]
    (result,) = other(x)
    assert [device.id for device in result.devices()] == [3]
    np.testing.assert_allclose(result, np.sin(np.arange(4) + never_in_the_cache), rtol=1e-5, atol=1e-6)


def test_entries_of_programs_that_are_gone_are_forgotten(monkeypatch):
    monkeypatch.setattr(_same_thread, "_entries", [])
    programs = {name: object() for name in "abc"}
    get = _same_thread._noted(lambda key, **_: (programs.get(key), 1))
    first, second = get("a"), get("b", backend=None)
    assert get("missing") == (None, 1)
    assert [key for _, key in _same_thread._entries] == ["a", "b"]
    del programs["a"], first
    third = get("c")
    assert [key for _, key in _same_thread._entries] == ["b", "c"]
    assert (second[0], third[0]) == (programs["b"], programs["c"])


def test_another_jax_is_left_alone(monkeypatch):
    cache = _same_thread._cache()
    before = cache.get_executable_and_time
    monkeypatch.setattr(_same_thread, "_ARGUMENTS", ["key"])
    text = f"JAX {jax.__version__} loads programs in another way"
    assert _same_thread.objection.__wrapped__() == text
    assert cache.get_executable_and_time is before
    monkeypatch.setattr(_same_thread, "objection", lambda: text)
    assert kernels.status().kernels["inline"] == f"off: {text}"
    with pytest.raises(replicant.errors.ConfigurationError, match="The kernel 'inline' cannot be switched on: JAX "):
        kernels.enable("inline")


def test_it_can_be_switched():
    assert kernels.status().kernels["inline"] == "on"
    with kernels.disabled("inline"):
        assert kernels.status().kernels["inline"] == "off: switched off"
    with pytest.raises(ArgumentError, match="There is no kernel 'inlin' to switch"):
        kernels.disable("inlin")
