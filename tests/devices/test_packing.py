"""Small programs have their variables in packs. Whoever reads or sets a variable sees no difference."""

import collections
import copy
import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import kernels
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator
from replicant.kernels._pack import FUNCTION
from replicant.programs import _packing
from replicant.runtime import _in_flight

SECONDS = 30

pytestmark = pytest.mark.skipif(FUNCTION.objection() is not None, reason=f"there are no packs here: {FUNCTION.objection()}")


@pytest.fixture(autouse=True)
def switched_on():
    """The tests of other files have no packs, so that they compile less."""
    kernels.enable("pack")
    yield
    kernels.disable("pack")


@pytest.fixture(params=["one", "fused"])
def strategy(request):
    return replicant.MirroredStrategy(["cpu:0"] if request.param == "one" else ["cpu:0", "cpu:1"], fuse_replicas=True)


@pytest.fixture
def one():
    return replicant.OneDeviceStrategy("cpu:0")


def packings(function):
    return [program._packing for program in function._compiled._programs if program._packing is not None]


def are_packed(function):
    """Whether each program of a function has packs."""
    return [packing._used is not None for packing in packings(function)]


def run_nine_times(function, *args):
    """Run a function, whose program has packs from the first run on."""
    function(*args)
    assert are_packed(function) == [True]
    for _ in range(8):
        function(*args)


class Counters:
    """Variables of several kinds, which a step changes by known amounts."""

    def __init__(self, strategy):
        with strategy.scope():
            self.floats = [replicant.Variable(np.full((i + 1,), i, np.float32)) for i in range(7)]
            self.steps = replicant.Variable(np.int32(0))
            self.words = replicant.Variable(np.uint32([1, 2]))
            self.halves = [replicant.Variable(jnp.zeros((3,), jnp.bfloat16)), replicant.Variable(jnp.zeros((2,), jnp.bfloat16))]
            self.large = replicant.Variable(np.zeros((64, 64), np.float32))
            self.bytes = replicant.Variable(np.int8(0))

        @replicant.function
        def step(x):
            return strategy.run(self.change, args=(x,))

        self.step = step

    @property
    def all(self):
        return [*self.floats, self.steps, self.words, *self.halves, self.large, self.bytes]

    def change(self, x):
        for i, each in enumerate(self.floats):
            each.assign_add(jnp.full_like(each.value(), i + 1))
        self.steps.assign_add(1)
        self.words.assign_add(jnp.uint32([1, 2]))
        for half in self.halves:
            half.assign_add(jnp.ones_like(half.value()))
        self.large.assign_add(jnp.ones((64, 64)))
        self.bytes.assign_add(jnp.int8(1))
        return x

    def check(self, steps):
        expected = [np.full((i + 1,), i + steps * (i + 1)) for i in range(7)]
        expected += [steps, np.uint32([1, 2]) * np.uint32(1 + steps), np.full(3, steps), np.full(2, steps)]
        expected += [np.full((64, 64), steps), np.int8(steps % 256 if steps < 128 else steps - 256)]
        for variable, value in zip(self.all, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(variable.value()).astype(np.float64), value)


def test_variables_of_several_dtypes(strategy):
    counters = Counters(strategy)
    run_nine_times(counters.step, jnp.float32(1))
    (packing,) = packings(counters.step)
    assert [pack._dtype for pack in packing._used.refs._packs] == [np.uint32, np.uint16]
    assert [len(members) for members in packing._used.refs._members] == [9, 2]
    held = [variable._ref.__dict__ for variable in counters.all]
    assert ["_value" in each for each in held] == [False] * 11 + [True] * 2  # the large one, and that of other size, stay
    counters.check(9)
    assert all("_value" in each for each in held)
    for _ in range(41):
        counters.step(jnp.float32(1))
    counters.check(50)


def test_reads_between_steps(one):
    counters = Counters(one)
    run_nine_times(counters.step, jnp.float32(1))
    seen = [counters.steps.value()]
    for i in range(1, 21):
        counters.step(jnp.float32(1))
        if i % 5 == 0:
            seen.append(counters.steps.value())
    assert list(map(int, seen)) == [9, 14, 19, 24, 29]  # what was read keeps its value
    assert are_packed(counters.step) == [True]


def test_assignments_between_steps(one):
    counters = Counters(one)
    run_nine_times(counters.step, jnp.float32(1))
    counters.floats[1].assign([10.0, 20.0])
    counters.steps.assign_add(100)
    counters.large.assign(np.ones((64, 64)))
    assert counters.steps.numpy() == 109
    counters.step(jnp.float32(1))
    np.testing.assert_array_equal(counters.floats[1].value(), [12, 22])
    np.testing.assert_array_equal(counters.floats[2].value(), np.full(3, 2 + 30))
    assert (counters.steps.numpy(), counters.large.numpy()[0, 0]) == (110, 2)
    counters.steps.assign(0)
    counters.steps.assign(5)  # twice, and unread
    counters.step(jnp.float32(1))
    assert counters.steps.numpy() == 6
    assert are_packed(counters.step) == [True]


def test_two_functions_share_variables(one):
    counters = Counters(one)

    @replicant.function
    def other():
        one.run(lambda: counters.steps.assign_add(1000))
        one.run(lambda: counters.words.assign_add(jnp.uint32([0, 0])))
        return one.run(lambda: [v.assign_add(jnp.zeros_like(v.value())) for v in counters.floats])

    run_nine_times(counters.step, jnp.float32(1))
    run_nine_times(other)
    assert counters.steps.numpy() == 9 + 9000
    for i in range(1, 6):
        counters.step(jnp.float32(1))
        other()
        assert counters.steps.numpy() == 9009 + 1001 * i
    for _ in range(6):
        other()
    for _ in range(6):
        counters.step(jnp.float32(1))
    assert counters.steps.numpy() == 9009 + 5005 + 6000 + 6
    np.testing.assert_array_equal(counters.floats[3].value(), np.full(4, 3 + 4 * 20))


def test_programs_for_other_shapes_have_the_same_packs(one):
    counters = Counters(one)
    run_nine_times(counters.step, jnp.float32(1))
    for i in range(10, 40):
        counters.step(jnp.zeros(i % 3 + 1))
    assert are_packed(counters.step) == [True] * 4
    assert len({id(packing._used.refs) for packing in packings(counters.step)}) == 1
    for _ in range(5):
        counters.step(jnp.float32(1))
    counters.check(44)


@pytest.mark.parametrize("times", [1, 30])  # from the ninth on, a program shows them
def test_another_program_reads_what_lies_in_a_pack(one, times):
    counters = Counters(one)

    @replicant.function
    def total(x):
        return one.run(lambda: x + sum(jnp.sum(v.value()) for v in counters.floats) + counters.steps.value())

    def expected(steps):
        return sum((i + 1) * (i + steps * (i + 1)) for i in range(7)) + steps

    assert float(total(jnp.float32(0.5))) == expected(0) + 0.5  # before they lie in one
    for steps in range(1, times + 1):
        counters.step(jnp.float32(1))
        assert float(total(jnp.float32(0.5))) == expected(steps) + 0.5
        assert float(total(jnp.float32(0.25))) == expected(steps) + 0.25
    value = counters.floats[1].value()
    counters.floats[2].assign([0.0, 0.0, 0.0])
    assert float(total(jnp.float32(0))) == expected(times) - 3 * (2 + times * 3)
    counters.step(jnp.float32(1))
    assert float(total(jnp.float32(0))) == expected(times + 1) - 3 * (2 + times * 3)
    np.testing.assert_array_equal(value, [1 + 2 * times] * 2)  # what was read keeps its value
    assert are_packed(counters.step) == [True]


def test_a_program_without_packs_writes_some_of_the_variables(one):
    counters = Counters(one)

    @replicant.function
    def forget():
        one.run(lambda: counters.steps.assign(0))
        one.run(lambda: counters.floats[0].assign_add([0.5]))

    for i in range(1, 13):
        counters.step(jnp.float32(1))
        forget()
        assert counters.steps.numpy() == 0
        np.testing.assert_array_equal(counters.floats[0].value(), [1.5 * i])
    assert are_packed(forget) == [False]
    np.testing.assert_array_equal(counters.floats[3].value(), np.full(4, 3 + 4 * 12))


def test_numbers_and_keys_as_inputs(one):
    counters = Counters(one)

    @replicant.function
    def step(key, rate):
        noise = one.run(lambda: counters.change(jax.random.uniform(key)))
        one.run(lambda: counters.floats[0].assign_add(rate * jnp.ones(1)))
        return noise

    for i in range(6):
        noise = step(jax.random.key(i), 0.5 * i)
        assert float(noise) == float(jax.random.uniform(jax.random.key(i)))
    assert set(are_packed(step)) == {True}
    np.testing.assert_array_equal(counters.floats[0].value(), [6 + 0.5 * 15])
    np.testing.assert_array_equal(counters.floats[6].value(), np.full(7, 6 + 6 * 7))


def test_a_thread_reads_meanwhile(one):
    counters = Counters(one)
    run_nine_times(counters.step, jnp.float32(1))
    seen, errors, end = [], [], threading.Event()

    def read():
        try:
            while not end.is_set():
                seen.append(int(counters.steps.value()))
                time.sleep(0.001)
        finally:
            errors.append(sys.exception())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(2000):
        counters.step(jnp.float32(1))
    end.set()
    reader.join(SECONDS)
    assert errors == [None]
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert counters.steps.numpy() == 2009
    np.testing.assert_array_equal(counters.floats[0].value(), [2009])


def test_two_threads_run_steps(one):
    counters = Counters(one)
    run_nine_times(counters.step, jnp.float32(1))
    threads = [threading.Thread(target=lambda: [counters.step(jnp.float32(1)) for _ in range(500)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert counters.steps.numpy() == 1009
    np.testing.assert_array_equal(counters.words.value(), np.uint32([1, 2]) * np.uint32(1010))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer signals")
@pytest.mark.filterwarnings("ignore:Exception ignored in")  # some come while JAX's own code for the collector runs
def test_ctrl_c_leaves_every_variable_after_the_same_step(one):
    counters, x = Counters(one), jnp.float32(1)
    run_nine_times(counters.step, x)
    interrupted, armed = 0, False

    def handler(*_):
        nonlocal armed
        if armed:  # inside of the `try` below
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0013, 0.0013)
        deadline = time.monotonic() + SECONDS
        while interrupted < 200 and time.monotonic() < deadline:
            try:
                armed = True
                for _ in range(50):
                    counters.step(x)
                    counters.words.value()  # is put back by the next step
                armed = False
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted >= 50
    assert are_packed(counters.step) == [True]
    steps = int(counters.steps.numpy())
    assert steps > 200
    np.testing.assert_array_equal(counters.floats[3].value(), np.full(4, 3 + 4 * steps))
    np.testing.assert_array_equal(counters.floats[0].value(), [steps])
    assert counters.large.numpy()[3, 3] == steps
    counters.step(x)
    assert counters.steps.numpy() == steps + 1


def test_nans_are_found_where_jax_looks_for_them(one):
    with one.scope():
        variables = [replicant.Variable(np.float32(i)) for i in range(12)]

    @replicant.function
    def step(x):
        one.run(lambda: [v.assign(v * x) for v in variables])
        return jnp.float32(0)

    run_nine_times(step, jnp.float32(1))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        step(jnp.float32(np.nan))


def test_another_programs_callback_reads_what_lies_in_a_pack(one):
    counters, read = Counters(one), []
    run_nine_times(counters.step, jnp.float32(1))

    @replicant.function
    def other(x):
        def look(value):
            read.append(int(counters.steps.value()))
            return value

        return one.run(lambda: jax.pure_callback(look, jax.ShapeDtypeStruct((), jnp.float32), x))

    runner = threading.Thread(target=lambda: [(counters.step(jnp.float32(1)), float(other(jnp.float32(2)))) for _ in range(20)])
    runner.start()
    runner.join(SECONDS)
    assert not runner.is_alive(), "a callback waits for the lock of a pack"
    assert read[-20:] == list(range(10, 30))


def test_a_program_of_jax_that_is_traced_reads_what_lies_in_a_pack(one):
    counters = Counters(one)
    run_nine_times(counters.step, jnp.float32(1))
    traced = jax.jit(lambda x: x + counters.steps.value())
    assert int(traced(1)) == 10
    for variable in counters.all:
        assert isinstance(variable._ref.__dict__.get("_value", jnp.zeros(1)), jax.Array)
        assert not isinstance(variable.value(), jax.core.Tracer)
    counters.step(jnp.float32(1))
    counters.check(10)


@pytest.mark.parametrize("guard", ["disallow", "disallow_explicit"])
def test_a_guard_of_transfers(one, guard):
    """With either, steps on arrays and reads are no transfers to complain of, in packs or not."""
    counters, x = Counters(one), jnp.float32(1)
    run_nine_times(counters.step, x)
    with jax.transfer_guard(guard) if guard == "disallow" else jax.transfer_guard_device_to_host(guard):
        counters.steps.value()
        counters.step(x)
        counters.floats[1].value()
        counters.step(x)
    counters.check(11)


def test_programs_with_callbacks_have_none(one):
    with one.scope():
        variables = [replicant.Variable(np.float32(i)) for i in range(12)]

    @replicant.function
    def step(x):
        one.run(lambda: [v.assign_add(1.0) for v in variables])
        return jax.pure_callback(lambda value: value, jax.ShapeDtypeStruct((), jnp.float32), x)

    for _ in range(10):
        step(jnp.float32(1))
    assert [packing.is_over for packing in packings(step)] == [True]
    assert are_packed(step) == [False]
    assert [float(v.value()) for v in variables] == [i + 10 for i in range(12)]


def test_variables_on_servers_have_none(monkeypatch):
    """Loading one asks its server, and storing one is a push, which may happen once for each step."""
    decided, decide = [], _packing.Packing.__init__
    monkeypatch.setattr(_packing.Packing, "__init__", lambda self, *args: decided.append(args) or decide(self, *args))
    cluster = SimpleClusterResolver(ClusterSpec({"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"]}))
    strategy = replicant.ParameterServerStrategy(cluster, transport="threads")
    try:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            variables = [replicant.Variable(np.zeros(2, np.float32), name=f"v{i}") for i in range(12)]

        @replicant.function
        def step(x):
            return strategy.run(lambda: [v.assign_add(jnp.full(2, x)) for v in variables] and x)

        for _ in range(40):
            coordinator.schedule(step, args=(np.float32(1),))
        coordinator.join(SECONDS)
        assert [v.numpy().tolist() for v in variables] == [[40, 40]] * 12
        assert decided == []
    finally:
        strategy.close()


def test_few_or_large_variables_have_none(one):
    with one.scope():
        few = [replicant.Variable(np.float32(0)) for _ in range(4)]
        large = [replicant.Variable(np.zeros(2000, np.float32)) for _ in range(20)]

    @replicant.function
    def step():
        return one.run(lambda: [v.assign_add(jnp.ones(v.shape)) for v in few])

    @replicant.function
    def much():
        return one.run(lambda: [v.assign_add(jnp.ones(v.shape)) for v in large])

    with one.scope():
        small, table = [replicant.Variable(np.float32(0)) for _ in range(20)], replicant.Variable(np.zeros((4 << 20,), np.float32))

    @replicant.function
    def rows():
        one.run(lambda: table.scatter_add(jnp.array([3]), jnp.ones(1)))
        return one.run(lambda: [v.assign_add(1.0) for v in small])

    for _ in range(10):
        step(), much(), rows()
    assert [packing.is_over for packing in [*packings(step), *packings(much), *packings(rows)]] == [True] * 3
    assert table.numpy()[2:5].tolist() == [0, 10, 0]


def test_loops_in_the_scope_and_with_options_of_jax_have_them_too(one):
    with one.scope(), jax.default_matmul_precision("highest"), jax.default_device(jax.devices()[1]):
        counters = Counters(one)
        run_nine_times(counters.step, jnp.float32(1))
        counters.check(9)


def test_programs_for_other_options_of_jax_have_the_same_packs(one):
    """A packed program is made of a trace with some options, so other options need another one."""
    counters = Counters(one)
    run_nine_times(counters.step, jnp.float32(1))
    (packing,) = packings(counters.step)
    before = packing._used
    for i in range(1, 4):
        with jax.default_matmul_precision("highest"):
            counters.step(jnp.float32(1))
            assert packing._used is not before
            assert packing._used.refs is before.refs
        counters.step(jnp.float32(1))
        assert packing._used is before
        counters.check(9 + 2 * i)
    assert len(packing._made) == 2


def test_a_switch_turns_them_off_and_on(one):
    counters = Counters(one)
    run_nine_times(counters.step, jnp.float32(1))
    held = counters.steps._ref.__dict__
    with kernels.disabled("pack"):
        counters.step(jnp.float32(1))
        assert "_value" in held
        counters.step(jnp.float32(1))
    counters.step(jnp.float32(1))
    assert "_value" not in held
    kernels.disable("pack")
    counters.step(jnp.float32(1))
    assert "_value" in held
    counters.check(13)


def test_a_program_without_jit_has_none(one):
    counters = Counters(one)
    run_nine_times(counters.step, jnp.float32(1))
    with jax.disable_jit():
        counters.step(jnp.float32(1))
    counters.check(10)


def test_only_steps_count_as_steps(one, monkeypatch):
    """In a profile, and in what a launched worker reports. To show what lies in a pack is none."""
    called = []
    call = _in_flight.call
    monkeypatch.setattr(_in_flight, "call", lambda *args, **options: called.append(1) or call(*args, **options))
    counters = Counters(one)

    @replicant.function
    def read():
        return one.run(lambda: counters.steps.value() + 0)

    for i in range(1, 21):
        counters.step(jnp.float32(1))
        assert int(read()) == i
    assert len(called) == 40


def test_why_a_program_has_none_is_noted(one, caplog):
    with one.scope():
        one_of_few = replicant.Variable(0.0)
        many = [replicant.Variable(0.0) for _ in range(12)]

    @replicant.function
    def small():
        return one.run(lambda: one_of_few.assign_add(1.0))

    @replicant.function
    def large(x):
        return one.run(lambda: [v.assign_add(jnp.sum(x)) for v in many])

    @replicant.function
    def called(x):
        one.run(lambda: [v.assign_add(1.0) for v in many])
        return jax.pure_callback(lambda value: value, jax.ShapeDtypeStruct((), jnp.float32), x)

    with caplog.at_level(logging.DEBUG, logger="replicant.programs"):
        small()
        large(jnp.ones(1 << 20))
        called(jnp.float32(0))
    told = [record.getMessage() for record in caplog.records if "has no packs" in record.getMessage()]
    assert [each.split(": ")[1] for each in told] == ["it overwrites few small variables", "it is large", "it calls the host"]
    assert [float(v.value()) for v in many] == [(1 << 20) + 1] * 12


WITHOUT_NUMBA = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *args: None if name == "numba" else find(name, *args)
import replicant, jax.numpy as jnp
strategy = replicant.OneDeviceStrategy("cpu:0")
with strategy.scope():
    variables = [replicant.Variable(0.0) for _ in range(12)]

@replicant.function
def step():
    return strategy.run(lambda: [v.assign_add(1.0) for v in variables])

step()
step()
print([float(v.value()) for v in variables] == [2.0] * 12, replicant.kernels.status().kernels["pack"])
"""


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.long
def test_without_numba_there_are_none_and_who_named_them_is_told(named):
    environment = {key: value for key, value in os.environ.items() if key != "REPLICANT_KERNELS"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA],
        env=environment | ({"REPLICANT_KERNELS": "1,pack"} if named else {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "True off: numba is not installed; pip install 'replicant[numba]'\n", done.stderr
    message = "The CPU kernel 'pack' is off: numba is not installed; pip install 'replicant[numba]'. Variables keep arrays"
    assert done.stderr.count(message) == int(named)


def test_other_variables_do_not_keep_one_alive(one):
    counters = Counters(one)
    run_nine_times(counters.step, jnp.float32(1))
    kept, gone = counters.floats[0], weakref.ref(counters.floats[3]._ref)
    del counters
    gc.collect()
    assert gone() is None
    np.testing.assert_array_equal(kept.value(), [9])


class Trained:
    """A model, its optimizer and a metric, with a step of the guide."""

    def __init__(self, strategy):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            self.model = keras.Sequential(
                [
                    keras.Input((6,)),
                    keras.layers.Dense(5, activation="relu"),
                    keras.layers.BatchNormalization(),
                    keras.layers.Dense(3),
                ]
            )
            self.optimizer = keras.optimizers.Adam(0.01)
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()
            self.model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
        rng = np.random.default_rng(5)
        self.x, self.y = rng.normal(size=(8, 6)).astype(np.float32), rng.integers(0, 3, 8)

        def train(x, y):
            with replicant.GradientTape() as tape:
                logits = self.model(x, training=True)
                loss = replicant.compute_average_loss(loss_object(y, logits), global_batch_size=8)
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
            self.accuracy.update_state(y, logits)
            return loss

        self._run = replicant.function(lambda x, y: strategy.reduce("SUM", strategy.run(train, args=(x, y)), axis=None))
        self.strategy = strategy
        (self.batch,) = list(
            strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices((self.x, self.y)).batch(8))
        )

    def step(self, times=1):
        for _ in range(times):
            loss = self._run(*self.batch)
        return loss

    def bits(self):
        variables = [*self.model.variables, *self.optimizer.variables, *self.accuracy.variables]
        return [(i, v.shape, np.array(v.value).tobytes().hex()) for i, v in enumerate(variables)]


def _fit(trained, tmp_path):
    trained.model.fit(trained.x, trained.y, epochs=2, verbose=0)


def _restore(trained, tmp_path):
    checkpoint = replicant.Checkpoint(model=trained.model, optimizer=trained.optimizer, accuracy=trained.accuracy)
    path = checkpoint.save(tmp_path / "checkpoint")
    trained.step(3)
    checkpoint.restore(path)


def _weights(trained, tmp_path):
    weights = trained.model.get_weights()
    trained.step(2)
    trained.model.set_weights(weights)


def _copies(trained, tmp_path):
    variable = trained.model.variables[0]
    value = np.array(copy.copy(variable).value)
    trained.step(1)
    assert not np.array_equal(value, np.array(variable.value))


BETWEEN = {
    "nothing": lambda trained, _: None,
    "predict": lambda trained, _: trained.model.predict(trained.x, verbose=0),
    "eager call": lambda trained, _: trained.model(trained.x),
    "evaluate": lambda trained, _: trained.model.evaluate(trained.x, trained.y, verbose=0),
    "fit": _fit,
    "reset": lambda trained, _: trained.accuracy.reset_state(),
    "result": lambda trained, _: trained.accuracy.result(),
    "restore": _restore,
    "weights": _weights,
    "save": lambda trained, path: trained.model.save(path / "model.keras"),
    "one assigned": lambda trained, _: trained.model.variables[1].assign(np.ones(5)),
    "learning rate": lambda trained, _: setattr(trained.optimizer, "learning_rate", 0.5),
    "caches": lambda trained, _: jax.clear_caches(),
    "repr": lambda trained, _: repr(trained.model.variables),
    "copies": _copies,
    "frozen": lambda trained, _: setattr(trained.model.layers[0], "trainable", False),
    "collected": lambda trained, _: gc.collect(),
}


@pytest.mark.long_cases(*BETWEEN.keys() - {"nothing", "restore"})
@pytest.mark.parametrize("between", list(BETWEEN))
@pytest.mark.long_cases("nothing")
def test_a_model_trains_to_the_same_bits_as_without_packs(one, between, tmp_path):
    runs = []
    for switch in (kernels.enable, kernels.disable):
        switch("pack")
        trained = Trained(one)
        trained.step(10)
        assert are_packed(trained._run) == [switch is kernels.enable]
        folder = tmp_path / switch.__name__
        folder.mkdir()
        for _ in range(2):
            BETWEEN[between](trained, folder)
            trained.step(4)
        runs.append((float(trained.step()), float(trained.accuracy.result()), trained.bits()))
    assert runs[0] == runs[1]


@pytest.mark.long
def test_two_hundred_steps_have_the_same_bits_as_without_packs(strategy):
    runs = []
    for switch in (kernels.enable, kernels.disable):
        switch("pack")
        trained = Trained(strategy)
        losses = [float(trained.step()) for _ in range(200)]
        assert are_packed(trained._run) == [switch is kernels.enable]
        runs.append((losses, trained.bits()))
    assert runs[0] == runs[1]
    assert runs[0][0][-1] < runs[0][0][0] / 3


@pytest.mark.parametrize("first", ["train", "evaluate"])
@pytest.mark.long_cases("fused-evaluate", "fused-train")
def test_a_run_that_is_restored_ends_with_the_bits_of_one_that_went_through(strategy, first, tmp_path):
    def checkpoint(trained):
        return replicant.Checkpoint(model=trained.model, optimizer=trained.optimizer, accuracy=trained.accuracy)

    def evaluate(trained):
        return replicant.function(lambda x: strategy.run(lambda x: jnp.sum(trained.model(x)), args=(x,)))(trained.batch[0])

    through = Trained(strategy)
    through.step(7)
    path = checkpoint(through).save(tmp_path / "checkpoint")
    through.step(8)
    restored = Trained(strategy)
    if first == "train":
        restored.step(2)
    else:
        evaluate(restored)  # which of the programs comes first makes no difference
    checkpoint(restored).restore(path)
    restored.step(4)
    evaluate(restored)
    restored.step(4)
    assert are_packed(through._run) == are_packed(restored._run) == [True]
    assert restored.bits() == through.bits()


def test_xla_computes_what_it_would_compute_without_packs(one):
    """The loops that it makes are the same ones. They are compared by their text, with names in the order of their appearance."""

    def loops(executable, inputs):
        text = executable.traced(*inputs).lower().compile().as_text()
        text = re.sub(r", metadata=\{[^}]*\}|, sharding=\{(?:[^{}]|\{[^{}]*\})*\}", "", text)
        found = []
        for block in text.split("\n\n"):
            if block.startswith("%"):
                names = {name: f"%{i}" for i, name in enumerate(dict.fromkeys(re.findall(r"%[\w.\-]+", block)))}
                found.append(re.sub(r"%[\w.\-]+", lambda match, names=names: names[match.group()], block))
        return collections.Counter(found)

    trained = Trained(one)
    trained.step(2)
    (program,) = trained._run._compiled._programs
    packed = program._packing._used
    others = program._others(list(trained.batch))
    packs = packed.refs.load()
    plain = loops(program.executable, program._inputs(list(trained.batch)))
    assert loops(packed.executable, (packs, *others)) == plain
    assert sum(plain.values()) > 5
