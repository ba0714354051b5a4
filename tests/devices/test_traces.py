"""How many times Python code is traced for one program: once, and once more for each reason that the documentation names."""

import collections
import contextvars
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import GradientTape, PerReplica, Variable

ROWS = PerReplica([jnp.asarray([1.0, 2.0]), jnp.asarray([3.0, 4.0])])
UNEVEN = PerReplica([jnp.asarray([1.0, 2.0]), jnp.asarray([3.0])])


@pytest.fixture(params=["fused", "of their own"])
def two(request: pytest.FixtureRequest) -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=request.param == "fused")


class Runs:
    """Counts how often code has run, by the size of a file: whatever Python holds would be watched, too."""

    def __init__(self) -> None:
        self.number, path = tempfile.mkstemp()
        Path(path).unlink()

    def __del__(self) -> None:
        os.close(self.number)

    def __len__(self) -> int:
        return os.fstat(self.number).st_size


def counted(fn: Callable[..., Any]) -> tuple[Callable[..., Any], Runs]:
    """Return a function that counts how often its Python code runs, and the count."""
    runs = Runs()
    number = runs.number

    def with_count(*args: Any) -> Any:
        os.write(number, b"x")
        return fn(*args)

    return with_count, runs


def total(x: Any) -> Any:
    return replicant.get_replica_context().all_reduce("SUM", jnp.sum(x))


def test_a_function_is_traced_once() -> None:
    a, b = Variable(2.0), Variable(3.0)

    @replicant.function
    def step(x, rate):
        with GradientTape() as tape:
            loss = a * x + b
        gradients = tape.gradient(loss, [a, b])
        a.assign_sub(rate * gradients[0])
        b.assign_sub(rate * gradients[1])
        return loss

    assert [float(step(jnp.float32(x), 0.5)) for x in (1.0, 2.0)] == [5.0, 5.5]
    assert (float(a), float(b)) == (0.5, 2.0)
    assert step.experimental_get_tracing_count() == 1
    assert float(step(jnp.float32(1.0), 0.25)) == 2.5  # the rate is an input
    assert step.experimental_get_tracing_count() == 1
    assert step(jnp.ones(2), 0.5).shape == (2,)
    assert step.experimental_get_tracing_count() == 2


def test_run_is_traced_once(two) -> None:
    with two.scope():
        weight, seen = Variable(1.0), Variable(0.0, synchronization="ON_READ", aggregation="SUM")

    def step(x):
        with GradientTape() as tape:
            loss = jnp.sum(weight * x)
        weight.assign_sub(0.125 * replicant.get_replica_context().all_reduce("SUM", tape.gradient(loss, weight)))
        seen.assign_add(jnp.sum(jnp.ones_like(x)))
        return loss

    step, runs = counted(step)
    assert two.reduce("SUM", two.run(step, (ROWS,)), axis=None) == 10.0
    assert two.reduce("SUM", two.run(step, (ROWS,)), axis=None) == -2.5
    assert (float(weight), float(seen)) == (-1.5, 8.0)
    assert len(runs) == 1


def test_run_in_a_function_is_traced_once(two) -> None:
    with two.scope():
        weight = Variable(2.0)

    @replicant.function
    def train(batch):
        for _ in range(2):
            losses = two.run(lambda x: total(weight * x), (batch,))
        weight.assign_add(1.0)
        return two.reduce("MEAN", losses, axis=None)

    assert [float(train(ROWS)) for _ in range(2)] == [20.0, 30.0]
    assert train.experimental_get_tracing_count() == 1


def test_reads_in_loops_and_branches_are_inputs(two) -> None:
    with two.scope():
        scale, shift, unused = Variable(2.0), Variable(3.0), Variable(5.0)

    def step(x):
        y, _ = jax.lax.scan(lambda c, row: (c * scale + row, None), jnp.zeros(()), x)
        z = jax.lax.cond(x[0] > 0, lambda: y + shift, lambda: y * unused)
        return jax.jit(lambda v: v + shift)(jax.checkpoint(lambda v: v * scale)(z))

    step, runs = counted(step)
    assert [float(x) for x in two.experimental_local_results(two.run(step, (ROWS,)))] == [17.0, 29.0]
    scale.assign(1.0)
    shift.assign(0.0)
    assert [float(x) for x in two.experimental_local_results(two.run(step, (ROWS,)))] == [3.0, 7.0]
    assert len(runs) == 1


def test_code_that_makes_variables_is_traced_twice(two) -> None:
    with two.scope():
        layer = keras.layers.Dense(1, kernel_initializer="ones")
    step, runs = counted(lambda x: jnp.sum(layer(x[None])))
    assert two.reduce("SUM", two.run(step, (ROWS,)), axis=None) == 10.0
    assert len(runs) == 2
    layer.kernel.assign([[1.0], [0.0]])
    assert two.reduce("SUM", two.run(step, (ROWS,)), axis=None) == 4.0
    assert len(runs) == 2


def test_an_optimizer_that_the_step_builds_costs_no_trace(two) -> None:
    with two.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        optimizer = keras.optimizers.SGD(0.5, momentum=0.9)

    def step(x):
        with GradientTape() as tape:
            loss = jnp.sum(model(x[None]))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    step, runs = counted(step)
    assert two.reduce("SUM", two.run(step, (ROWS,)), axis=None) == 10.0
    np.testing.assert_array_equal(model.layers[0].kernel, [[-1.0], [-2.0]])
    two.run(step, (ROWS,))
    np.testing.assert_allclose(model.layers[0].kernel, [[-4.8], [-7.7]], rtol=1e-6)  # 0.9 * -2 - 2, 0.9 * -3 - 3
    assert len(runs) == 1


def test_a_gradient_that_is_none_costs_a_trace() -> None:
    a, b = Variable(2.0), Variable(3.0)

    @replicant.function
    def step(x):
        with GradientTape() as tape:
            loss = a * x
        gradients = tape.gradient(loss, [a, b])
        for variable, gradient in zip((a, b), gradients, strict=True):
            if gradient is not None:
                variable.assign_sub(gradient)
        return loss

    assert float(step(jnp.float32(1.0))) == 2.0
    assert (float(a), float(b)) == (1.0, 3.0)
    assert step.experimental_get_tracing_count() == 2


def test_a_metric_that_is_read_before_run_costs_a_trace(two) -> None:
    metric = Variable(0.0, synchronization="ON_READ", aggregation="SUM")

    @replicant.function
    def step(batch):
        before = metric.value()
        two.run(lambda x: metric.assign_add(jnp.sum(x)), (batch,))
        return before

    assert [float(step(ROWS)) for _ in range(3)] == [0.0, 10.0, 20.0]
    assert step.experimental_get_tracing_count() == 2


def test_replicas_of_different_sizes_are_traced_one_by_one(two) -> None:
    step, runs = counted(jnp.sum)
    assert two.reduce("SUM", two.run(step, (UNEVEN,)), axis=None) == 6.0
    assert len(runs) == 2
    step, runs = counted(lambda x: total(total(x) + 1))
    assert two.run(step, (UNEVEN,)) == 14.0
    assert len(runs) == 2  # the answers of sums have the shapes of what is asked
    step, runs = counted(lambda x: total(jnp.sum(replicant.get_replica_context().all_gather(x, axis=0)) + total(x)))
    assert two.run(step, (UNEVEN,)) == 24.0
    assert len(runs) == 4  # all meet once before they know how much they gather


def test_an_error_leaves_everything_as_it_was(two) -> None:
    with two.scope():
        weight = Variable(1.0)
    fails = [True]

    def step(x):
        weight.assign_add(total(x))
        if fails[0]:
            raise ValueError("not now")
        return weight.value()

    with pytest.raises(ValueError, match="not now"):
        two.run(step, (ROWS,))
    assert float(weight) == 1.0
    fails[0] = False
    assert two.run(step, (ROWS,)) == 11.0
    assert float(weight) == 11.0


def test_functions_in_functions_and_recursion() -> None:
    count = Variable(0)

    @replicant.function
    def inner(x, depth):
        count.assign_add(1)
        return x if depth == 0 else 2 * inner(x, depth - 1)

    outer = replicant.function(lambda x: inner(x, 3) + inner(x, 0))
    assert [float(outer(jnp.float32(1.0))) for _ in range(2)] == [9.0, 9.0]
    assert int(count) == 10
    assert (outer.experimental_get_tracing_count(), inner.experimental_get_tracing_count()) == (1, 0)


def test_threads_trace_side_by_side() -> None:
    weights = [Variable(float(i)) for i in range(4)]

    @replicant.function
    def step(x, which):
        weights[which].assign_add(jnp.sum(x))
        return weights[which].value()

    found: dict[int, list[float]] = {}

    def work(which: int) -> None:
        found[which] = [float(step(jnp.ones(2), which)) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {which: [which + 2.0 * i for i in range(1, 6)] for which in range(4)}


def test_other_options_of_jax_trace_the_code_again() -> None:
    weight = Variable([[1.0, 2.0], [3.0, 4.0]])

    @replicant.function
    def step(x):
        weight.assign_add(jnp.ones((2, 2)))
        return jnp.dot(x, weight.value())

    x = jnp.ones((1, 2))
    assert step(x).tolist() == [[6.0, 8.0]]
    with jax.default_matmul_precision("highest"):
        assert step(x).tolist() == [[8.0, 10.0]]
    assert step(x).tolist() == [[10.0, 12.0]]
    with jax.disable_jit():
        assert step(x).tolist() == [[12.0, 14.0]]
    assert step.experimental_get_tracing_count() == 3


class Model(keras.Model):
    """A model whose own step counts how often its Python code runs."""

    def __init__(self, runs: list[int]):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")
        self.loss_of_batch = keras.metrics.Mean(name="loss")
        self._count = lambda: runs.append(1)  # Keras would copy a list

    def build(self, shape: Any) -> None:
        self.dense.build(shape)
        self.built = True

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        self._count()
        x, y = data
        with GradientTape() as tape:
            loss = jnp.mean((self(x) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.loss_of_batch.update_state(loss)
        return {"loss": self.loss_of_batch.result()}


def test_a_step_of_a_model_is_traced_once(two) -> None:
    runs: list[int] = []
    with two.scope():
        model = Model(runs)
        model.compile("sgd")
        model.build((None, 2))
        model.optimizer.build(model.trainable_variables)
    x = np.ones((8, 2), np.float32)
    losses = model.fit(x, np.zeros((8, 1), np.float32), batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]
    assert len(runs) == 1
    # The output is 2, and each step with a rate of 0.01 takes 0.01 * 2 * 3 of it: two weights and a bias.
    np.testing.assert_allclose(losses, [(4 + 4 * 0.94**2) / 2, (4 * 0.94**4 + 4 * 0.94**6) / 2], rtol=1e-5)


def test_slots_that_are_cut_are_made_once() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"], shard_optimizer_state=True)
    with strategy.scope():
        weight = keras.Variable(np.ones((8, 8), np.float32))
        optimizers = [keras.optimizers.SGD(0.5, momentum=0.9) for _ in range(20)]

    def step(x, optimizer):
        with GradientTape() as tape:
            loss = jnp.sum(weight * x)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    once, runs = counted(lambda x: step(x, optimizers[0]))
    assert strategy.reduce("SUM", strategy.run(once, (jnp.ones((8, 8)),)), axis=None) == 128.0
    np.testing.assert_array_equal(weight, np.zeros((8, 8)))
    assert len(runs) == 1
    strategy.run(once, (jnp.ones((8, 8)),))
    np.testing.assert_allclose(weight, np.full((8, 8), -1.9), rtol=1e-6)  # 0.9 * -1 - 1
    assert len(runs) == 1


def test_code_that_always_makes_variables_is_refused(two) -> None:
    def step(x):
        return jnp.sum(keras.layers.Dense(1)(x[None]))

    with pytest.raises(replicant.errors.ReplicantError, match=r"made variables in each of its 16 traces, .*\. Create"):
        two.run(step, (ROWS,))


def first_flag():
    state = {"first": True}

    def step(x):
        if state["first"]:
            state["first"] = False
            return 10 * x
        return x

    return step


def counter_of_an_object():
    class Trainer:
        steps = 0

        def step(self, x):
            self.steps += 1
            return self.steps * x

    return Trainer().step


def free_variable():
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return count * x

    return step


def list_that_grows():
    history = []

    def step(x):
        history.append("step")
        return len(history) * x

    return step


def memory_that_changes():
    counts = np.zeros(3, np.int64)

    def step(x):
        counts[1] += 1
        return float(counts[1]) * x

    return step


def filled_queue():
    rates = collections.deque([3.0, 2.0, 5.0, 7.0])

    def step(x):
        rates.rotate(1)
        return rates[0] * x

    return step


def new_list_of_the_same():
    scratch = {"names": []}

    def step(x):
        scratch["names"] = ["a", ("b", 1.0)]
        return len(scratch["names"]) * x

    return step


def set_of_what_was_seen():
    seen = set()

    def step(x):
        new = "x" not in seen
        seen.add("x")
        return 5 * x if new else x

    return step


def flag_of_a_layer():
    class Scale(keras.layers.Layer):
        calls = 0

        def call(self, x):
            self.calls += 1
            return self.calls * x

    return Scale()


def flag_and_a_gradient_that_is_none():
    state = {"first": True}
    weight, other = replicant.Variable(3.0), replicant.Variable(1.0)

    def step(x):
        with GradientTape() as tape:
            loss = weight * x
        slope, nothing = tape.gradient(loss, [weight, other])
        assert nothing is None
        if state["first"]:
            state["first"] = False
            return 10 * slope
        return slope

    return step


STEPS_THAT_CHANGE = {  # how to make a step: what it returns for 1.0, how often it is traced for five calls, and what is told
    first_flag: ([10.0, 1.0, 1.0, 1.0, 1.0], 2, None),
    counter_of_an_object: ([1.0, 2.0, 3.0, 4.0, 5.0], 5, "self.steps"),
    free_variable: ([1.0, 2.0, 3.0, 4.0, 5.0], 5, "count"),
    list_that_grows: ([1.0, 2.0, 3.0, 4.0, 5.0], 5, "history"),
    memory_that_changes: ([1.0, 2.0, 3.0, 4.0, 5.0], 5, "counts"),
    filled_queue: ([7.0, 5.0, 2.0, 3.0, 7.0], 5, "rates"),
    new_list_of_the_same: ([2.0, 2.0, 2.0, 2.0, 2.0], 2, None),
    set_of_what_was_seen: ([5.0, 1.0, 1.0, 1.0, 1.0], 2, None),
    flag_of_a_layer: ([1.0, 2.0, 3.0, 4.0, 5.0], 5, "fn.calls"),
    flag_and_a_gradient_that_is_none: ([10.0, 1.0, 1.0, 1.0, 1.0], None, None),
}


@pytest.mark.parametrize("make", STEPS_THAT_CHANGE, ids=lambda make: make.__name__)
def test_code_that_changes_what_it_reads_computes_what_eager_code_does(two, make) -> None:
    """Outside a function, `run` is eager in tf.distribute. A program that is not right for the next call too is made anew."""
    expected, traces, told = STEPS_THAT_CHANGE[make]
    with two.scope():
        step = make()
        eager = make()
    once, runs = counted(step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = [float(two.experimental_local_results(two.run(once, (jnp.float32(1.0),)))[0]) for _ in range(5)]
    assert got == expected
    if make is not flag_and_a_gradient_that_is_none:
        assert [float(eager(jnp.float32(1.0))) for _ in range(5)] == expected
    if traces is not None:
        assert len(runs) == traces
    messages = [str(each.message) for each in caught]
    if told is None:
        assert messages == []
    else:
        (message,) = messages
        assert f"is compiled again at each call, because its Python code changes `{told}" in message


class Slots:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Counts:
    of_class = 0


OF_MODULE = 0


def test_what_a_repeated_trace_changes_is_changed_once(two) -> None:
    """The gradient that is None repeats the trace. All that the code has changed before is put back for that."""
    global OF_MODULE
    OF_MODULE, Counts.of_class, of_cell, slots, local = 0, 0, 0, Slots(), threading.local()
    local.count = 0
    items, keyed, some, queue = [0], {"a": 0}, {0}, collections.deque([0])
    memory, raw, objects, context = np.zeros(2), bytearray(2), np.array([0, None], object), contextvars.ContextVar("context")
    context.set(0)
    a, b = Variable(2.0), Variable(3.0)

    class Scale(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def call(self, x):
            self.calls += 1
            return x

    layer = Scale()
    layer(jnp.ones(1))

    def step(x):
        global OF_MODULE  # noqa: PLW0603 - a step of a user may do so
        layer(x)
        nonlocal of_cell
        OF_MODULE += 1
        Counts.of_class += 1
        of_cell += 1
        slots.count += 1
        local.count += 1
        items.append(len(items))
        keyed["b"] = keyed.get("b", 0) + 1
        some.add(len(some))
        queue.appendleft(len(queue))
        memory[1] += 1
        raw[1] += 1
        objects[0] += 1
        context.set(context.get() + 1)
        with GradientTape() as tape:
            loss = a * x
        slope, nothing = tape.gradient(loss, [a, b])
        assert nothing is None
        return slope

    once, runs = counted(step)
    two.run(once, (jnp.float32(1.0),))
    assert len(runs) == 2
    assert (OF_MODULE, Counts.of_class, of_cell, slots.count, local.count, context.get()) == (1, 1, 1, 1, 1, 1)
    assert layer.calls == 2
    assert (items, keyed, some, list(queue)) == ([0, 1], {"a": 0, "b": 1}, {0, 1}, [1, 0])
    assert (memory.tolist(), list(raw), objects.tolist()) == ([0.0, 1.0], [0, 1], [1, None])


def test_replicas_of_different_sizes_change_what_they_read_once_each(two) -> None:
    """As in tf.distribute, each replica's code runs, one after the other. Each is traced twice, because of the exchange."""
    calls = []

    def step(x):
        calls.append(len(x))
        return len(calls) * total(x)

    with pytest.warns(UserWarning, match="compiled again at each call, because its Python code changes `calls`"):
        got = [[float(x) for x in two.experimental_local_results(two.run(step, (UNEVEN,)))] for _ in range(3)]
    assert (got, calls) == ([[6.0, 12.0], [18.0, 24.0], [30.0, 36.0]], [2, 1, 2, 1, 2, 1])


def test_a_function_keeps_the_program_of_code_that_changes_what_it_reads(two) -> None:
    step = first_flag()
    kept = replicant.function(lambda x: two.reduce("SUM", two.run(step, (x,)), axis=None))
    assert [float(kept(jnp.float32(3.0))) for _ in range(3)] == [60.0, 60.0, 60.0]


def through_python(fn: Callable[[], object]) -> int:
    """How many functions of JAX are started through Python while a function runs."""
    names = list[str]()
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        fn()
    finally:
        sys.setprofile(None)
    return names.count("cache_miss")


def test_steps_of_fit_are_started_without_the_python_of_jax(two) -> None:
    """JAX would call a function through Python for ever if its first call had failed: slower, and Ctrl-C could lose the results."""
    with two.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((31, 1), np.float32)  # the last batch has a program of its own

    def fit() -> None:
        model.fit(x, x, batch_size=4, epochs=2, verbose=0)

    assert through_python(fit) > 2
    fit()
    assert through_python(fit) < 8, "of 16 steps"
