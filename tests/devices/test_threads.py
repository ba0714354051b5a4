"""Several threads may train at once: on their own variables, or on the same ones."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant

X, Y = np.ones((64, 4), np.float32), np.ones((64, 2), np.float32)


def in_threads(*targets) -> list[BaseException]:
    failures: list[BaseException] = []

    def guarded(target) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    return failures


def test_own_variables_and_own_compilations() -> None:
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(4)])
    variables = [replicant.Variable(jnp.zeros(100), aggregation="SUM") for _ in range(3)]

    def train(variable: replicant.Variable) -> None:
        @replicant.function
        def step():
            strategy.run(lambda: variable.assign_add(jnp.ones(100)) is None)

        for _ in range(200):
            step()

    assert in_threads(*[lambda v=v: train(v) for v in variables]) == []
    assert [set(v.numpy().tolist()) for v in variables] == [{800.0}] * 3


def test_the_same_variable() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    shared = replicant.Variable(jnp.zeros(100))
    step = replicant.function(lambda: strategy.run(lambda: shared.assign_add(jnp.ones(100)) is None) and None)

    def train() -> None:
        for _ in range(200):
            step()

    assert in_threads(train, train, train) == []
    assert set(shared.numpy().tolist()) == {600.0}


def test_first_calls_at_once_change_nothing_and_so_nothing_is_warned_of() -> None:
    """Six threads may each compile the function. Warnings are errors here."""
    strategy = replicant.MirroredStrategy(["cpu:0"])
    for _ in range(4):
        total, barrier = replicant.Variable(0.0), threading.Barrier(6)

        @replicant.function
        def step(x, total=total):
            total.assign_add(jnp.sum(x))

        def train(step=step, barrier=barrier) -> None:
            barrier.wait(timeout=60)
            with strategy.scope():
                for _ in range(3):
                    step(jnp.ones(4))

        assert in_threads(*[train] * 6) == []
        assert float(total.numpy()) == 72.0


def test_contexts_are_per_thread() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    seen = []
    with strategy.scope():
        in_threads(lambda: seen.append(replicant.has_strategy()))
    assert seen == [False]


@contextmanager
def reading(*reads: Callable[[], object]) -> Iterator[None]:
    """Let a thread for each function call it again and again: once before the block, then until it has ended. Nothing may fail."""
    stop, begun = threading.Event(), [threading.Event() for _ in reads]

    def loop(read: Callable[[], object], has_read: threading.Event) -> None:
        try:
            read()
        finally:
            has_read.set()
        while not stop.wait(0.001):
            read()

    failures = list[BaseException]()
    loops = [lambda pair=pair: loop(*pair) for pair in zip(reads, begun, strict=True)]
    readers = threading.Thread(target=lambda: failures.extend(in_threads(*loops)))
    readers.start()
    try:
        assert all(has_read.wait(timeout=60) for has_read in begun)
        yield
    finally:
        stop.set()
        readers.join(timeout=60)
    assert failures == []


def small_model() -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


@pytest.mark.both_ways
@pytest.mark.parametrize("num_steps", [100, pytest.param(10_000, marks=pytest.mark.long)])
def test_what_other_threads_read_while_one_trains(num_steps: int, tmp_path: Path, fuse_replicas: str) -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        model, metric, count = small_model(), keras.metrics.Mean(), replicant.Variable(np.zeros(3, np.float32))

    def train(x: Any) -> None:
        with replicant.GradientTape() as tape:
            loss = jnp.sum(model(x) ** 2) / 8
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        metric.update_state(loss)
        count.assign_add(jnp.ones(3))

    step = replicant.function(lambda x: strategy.run(train, args=(x,)))
    (batch,) = strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices(X[:8]).batch(8))
    step(batch)
    checkpoint, names, seen = replicant.Checkpoint(model=model, count=count), itertools.count(), [1.0]

    def read_count() -> None:
        first, *others = count.numpy().tolist()
        assert others == [first, first]
        assert first >= seen[-1]
        seen.append(first)

    with reading(
        read_count,
        lambda: [np.asarray(metric.result()), *map(np.asarray, model.optimizer.variables)],
        model.get_weights,
        lambda: checkpoint.write(tmp_path / str(next(names))),
    ):
        for _ in range(num_steps):
            step(batch)
    with reading(lambda: model.predict(X[:8], verbose=0)):
        for _ in range(20):
            step(batch)
    assert count.numpy().tolist() == [num_steps + 21.0] * 3
    assert int(model.optimizer.iterations.value) == num_steps + 21


@pytest.mark.both_ways
def test_what_other_threads_read_while_fit_trains(tmp_path: Path, fuse_replicas: str) -> None:
    with replicant.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        model, expected = small_model(), small_model()
    for each in (model, expected):
        each.fit(X, Y, batch_size=8, verbose=0)
    checkpoint, names, seen = replicant.Checkpoint(model=model), itertools.count(), list[np.ndarray]()
    with reading(
        lambda: [np.asarray(v.value) for v in [*model.optimizer.variables, *model.metrics_variables]],
        lambda: seen.append(model.get_weights()[0]),
        lambda: checkpoint.write(tmp_path / str(next(names))),
    ):
        model.fit(X, Y, batch_size=8, epochs=4, verbose=0)
    steps = Kernels()
    expected.fit(X, Y, batch_size=8, epochs=4, verbose=0, callbacks=[steps])
    for ours, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    between_steps = {kernel.tobytes() for kernel in steps.kept}
    assert {kernel.tobytes() for kernel in seen} <= between_steps


class Kernels(keras.callbacks.Callback):
    """Keeps the first kernel before the first step and after each, as the array that it is."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays: list[Any] = []

    @property
    def model_layers(self) -> list[Any]:
        assert self.model is not None
        return self.model.layers

    def on_train_begin(self, logs: Any = None) -> None:
        self.arrays.append(self.model_layers[0].kernel.value)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.arrays.append(self.model_layers[0].kernel.value)

    @property
    def kept(self) -> list[np.ndarray]:
        """The kernels, which no later step has overwritten."""
        return list(map(np.asarray, self.arrays))


def test_loops_of_one_model_in_several_threads() -> None:
    with replicant.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        model = small_model()
    expected, outputs, errors = model.predict(X, verbose=0), list[np.ndarray](), list[BaseException]()
    assert in_threads(*[lambda: outputs.append(model.predict(X, verbose=0))] * 3) == []
    for output in outputs:
        np.testing.assert_array_equal(output, expected)

    class Beside(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            errors.extend(in_threads(lambda: model.evaluate(X, Y, verbose=0)))
            model.evaluate(X, Y, verbose=0)  # in the same thread it may

    model.fit(X, Y, batch_size=32, verbose=0, callbacks=[Beside()])
    (error,) = errors
    assert isinstance(error, replicant.errors.ContextError)
    assert "evaluate of the model 'sequential" in str(error)
    assert "while its fit runs in the thread 'MainThread'" in str(error)
    assert "copy.set_weights(model.get_weights())" in str(error)
    model.evaluate(X, Y, verbose=0)


def test_a_loop_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicant.keras.state._running_loops._PATIENCE", 0.2)
    model, errors = small_model(), list[BaseException]()

    class Beside(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            errors.extend(in_threads(lambda: model.test_on_batch(X, Y)))

    model.predict(X, batch_size=64, verbose=0, callbacks=[Beside()])
    (error,) = errors
    assert "while its predict runs in the thread 'MainThread', and has not ended in 0.2 seconds" in str(error)
