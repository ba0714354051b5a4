"""``replicant.random``: streams of replicas, where their state is kept, and what is refused."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.data import Dataset
from replicant.errors import ArgumentError, ArgumentTypeError, ContextError
from replicant.random import Generator, get_global_generator, set_global_generator


def mirrored(n: int, *, fused: bool = True) -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)], fuse_replicas=fused)


def streams(strategy: Any, generator: Generator, *, num: int = 2) -> np.ndarray:
    """What each replica draws in some steps: (replicas, steps, numbers)."""

    def draw() -> Any:
        return jnp.concatenate([generator.normal((2,)), generator.uniform((2,), -3, 1000, "int32").astype("float32")])

    drawn = [strategy.experimental_local_results(strategy.run(draw)) for _ in range(num)]
    return np.stack([np.asarray(step) for step in drawn], 1)


@pytest.mark.long
def test_a_replica_draws_the_same_however_many_there_are() -> None:
    found = {}
    for n, fused in ((4, True), (2, False), (1, True)):
        strategy = mirrored(n, fused=fused)
        with strategy.scope():
            generator = Generator.from_seed(7)
        found[n] = streams(strategy, generator)
        np.testing.assert_array_equal(generator.state.numpy(), [0, 7, 4, 0])
    np.testing.assert_array_equal(found[4][:2], found[2])
    np.testing.assert_array_equal(found[4][:1], found[1])
    assert len(np.unique(found[4][..., 0])) == 8  # replicas and steps differ

    eager = Generator.from_seed(7)
    for row in found[1][0]:
        np.testing.assert_array_equal(eager.normal((2,)), row[:2])
        np.testing.assert_array_equal(eager.uniform((2,), -3, 1000, "int32"), row[2:])


def test_draws_in_a_function_follow_those_outside() -> None:
    generator, other = Generator.from_seed(1), Generator.from_seed(1)
    draw = replicant.function(lambda: (generator.normal(()), generator.normal(())))
    got = [*draw(), generator.normal(()), *draw()]
    np.testing.assert_array_equal(got, [other.normal(()) for _ in range(5)])


def test_replicas_of_different_sizes_stay_in_step() -> None:
    """Also the replicas without a row: the generator counts draws, not numbers."""
    strategy = mirrored(4)
    with strategy.scope():
        generator = Generator.from_seed(7)

    def noise(rows: Any) -> Any:
        return rows * 0 + generator.normal(rows.shape)

    for batch in strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(np.ones(5, np.float32)).batch(5)):
        drawn = [np.asarray(x) for x in strategy.experimental_local_results(strategy.run(noise, (batch,)))]
    assert [len(x) for x in drawn] == [2, 2, 1, 0]
    assert len(np.unique(np.concatenate(drawn))) == 5
    np.testing.assert_array_equal(generator.state.numpy(), [0, 7, 1, 0])


@pytest.mark.long
def test_distributions() -> None:
    generator = Generator.from_seed(3)
    normal = np.asarray(generator.normal([4000], 5.0, 2.0))
    assert (abs(normal.mean() - 5), abs(normal.std() - 2)) < (0.2, 0.2)
    cut = np.asarray(generator.truncated_normal((4000,), 1.0, 2.0))
    assert cut.min() >= -3
    assert cut.max() <= 5
    assert cut.std() > 1.5
    floats = np.asarray(generator.uniform((4000,), 2.0, 4.0))
    assert (floats.min() >= 2, floats.min() < 2.1, floats.max() > 3.9, floats.max() < 4) == (True,) * 4
    assert set(np.asarray(generator.uniform((200,), 1, 4, "int32"))) == {1, 2, 3}
    assert generator.uniform((), 0, 2**31 - 1, "int32").dtype == jnp.int32
    assert (generator.uniform((2,)).dtype, generator.uniform_full_int((2,), "int8").dtype) == (jnp.float32, jnp.int8)
    assert generator.make_seeds(3).shape == (2, 3)


@pytest.mark.slow
def test_binomial() -> None:
    drawn = np.asarray(Generator.from_seed(3).binomial((1000, 2), [10.0, 100.0], 0.5))
    np.testing.assert_allclose(drawn.mean(0), [5, 50], rtol=0.1)
    assert drawn.dtype == np.int32


def test_seeds_and_states() -> None:
    generator = Generator.from_seed(2**33 + 5)
    np.testing.assert_array_equal(generator.state.numpy(), [2, 5, 0, 0])
    np.testing.assert_array_equal(generator.key, [2, 5])
    assert generator.algorithm == 2
    assert repr(generator).startswith("<Generator state=<Variable 'generator_state' shape=(4,)")
    assert not generator.state.trainable
    first = generator.normal((2,))
    generator.skip(2**32 - 2)
    np.testing.assert_array_equal(generator.state.numpy(), [2, 5, 2**32 - 1, 0])
    copies = [Generator(copy_from=generator), Generator.from_state(generator.state), Generator(state=np.asarray(generator.state))]
    wanted = generator.normal(())
    np.testing.assert_array_equal(generator.state.numpy(), [2, 5, 0, 1])
    np.testing.assert_array_equal([copy.normal(()) for copy in copies], [wanted] * 3)
    generator.reset(copies[0].state)
    np.testing.assert_array_equal(generator.state.numpy(), [2, 5, 0, 1])
    generator.reset_from_seed(2**33 + 5)
    np.testing.assert_array_equal(generator.normal((2,)), first)
    states = [Generator.from_non_deterministic_state().state.numpy() for _ in range(2)]
    assert not np.array_equal(*states)
    one, two = Generator.from_seed(1, alg="threefry").split(2)
    assert not np.array_equal(one.normal((2,)), two.normal((2,)))
    assert Generator.from_seed(-1).state.numpy().tolist() == [2**32 - 1, 2**32 - 1, 0, 0]


def test_a_tape_outside_of_functions() -> None:
    generator, weight = Generator.from_seed(1), replicant.Variable(2.0)
    with replicant.GradientTape() as tape:
        noise = generator.normal(())
        loss = weight * noise
    assert tape.gradient(loss, weight) == noise == Generator.from_seed(1).normal(())
    assert generator.state.numpy().tolist() == [0, 1, 1, 0]


def test_threads_never_draw_the_same() -> None:
    generator = Generator.from_seed(1)
    drawn: list[float] = []
    threads = [threading.Thread(target=lambda: drawn.extend(float(generator.uniform(())) for _ in range(20))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(drawn)) == 60
    assert generator.state.numpy().tolist() == [0, 1, 60, 0]


def test_the_global_generator() -> None:
    draw = replicant.function(lambda: get_global_generator().normal(()))  # it is made in the trace
    assert draw() != draw()
    assert get_global_generator() is get_global_generator()
    mirrored(2).run(lambda: get_global_generator().normal(()))
    generator = Generator.from_seed(1)
    set_global_generator(generator)
    assert get_global_generator() is generator
    with pytest.raises(ArgumentTypeError, match=r"set_global_generator takes a Generator, such as .*from_seed\(1\); got 3"):
        set_global_generator(3)  # type: ignore[arg-type]


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (Generator, ArgumentError, r"takes either copy_from= or state=\. .*from_seed\(1\)"),
    (lambda: Generator.from_seed(1, alg="philox"), ArgumentError, r"is 'threefry'; got 'philox'\. Leave alg out"),
    (lambda: Generator.from_seed("a"), ArgumentTypeError, r"A seed is a number, an integer; got 'a'"),
    (lambda: Generator.from_seed(2**64), ArgumentError, r"A seed has at most 64 bits; got 18446744073709551616"),
    (lambda: Generator.from_state([1, 2]), ArgumentError, r"array of 4 integers.*got shape \(2,\) .*reset_from_seed\(seed\)"),
    (lambda: Generator.from_seed(1).reset(np.ones(4)), ArgumentError, r"array of 4 integers.*dtype float64"),
    (lambda: Generator.from_seed(1).skip(-1), ArgumentError, r"number of draws to leave out, .*; got -1"),
    (lambda: Generator.from_seed(1).skip(1.5), ArgumentTypeError, r"skip takes the number of draws, an integer; got 1\.5"),  # type: ignore[arg-type]
    (lambda: Generator.from_seed(1).split("a"), ArgumentTypeError, r"count is a number of seeds, an integer; got 'a'"),  # type: ignore[arg-type]
    (lambda: Generator.from_seed(1).normal(3), ArgumentTypeError, r"normal takes a shape, such as \(2, 3\), .*; got 3"),
    (lambda: Generator.from_seed(1).normal((), dtype="int32"), ArgumentTypeError, r"normal draws floats; got the dtype int32"),
    (lambda: Generator.from_seed(1).uniform_full_int((), "float32"), ArgumentTypeError, r"draws integers; got the dtype float32"),
    (lambda: Generator.from_seed(1).uniform((), dtype="int32"), ArgumentError, r"uniform of int32 needs maxval"),
    (lambda: Generator.from_seed(1).uniform((), 0, 2**40, "int32"), ArgumentError, r"maxval=1099511627776 does not fit int32"),
    (lambda: Generator.from_seed(1).uniform((), 2**31, 5, "int32"), ArgumentError, r"minval=2147483648 does not fit int32"),
    (
        lambda: Generator.from_seed(1).uniform((), 5, 5, "int32"),
        ArgumentError,
        r"got minval=5 and maxval=5\. Make maxval the larger",
    ),
    (lambda: Generator.from_seed(1).uniform((), 2), ArgumentError, r"uniform draws from .*got minval=2 and maxval=1\.0"),
    (lambda: Generator.from_seed(1).normal((2, -1)), ArgumentError, r"without negative sizes, such as .*got \(2, -1\)"),
    (lambda: Generator.from_seed(1).split(-1), ArgumentError, r"count must be a number of seeds, 0 or more; got -1"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_is_refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_in_a_loop() -> None:
    """A loop draws what the same code draws in Python."""
    first, second = Generator.from_seed(1), Generator.from_seed(1)
    found = replicant.function(lambda: jax.lax.scan(lambda c, _: (c, first.normal(())), 0, length=3)[1])()
    np.testing.assert_array_equal(found, [second.normal(()) for _ in range(3)])
    np.testing.assert_array_equal(first.state.numpy(), second.state.numpy())


def test_where_none_can_be_made() -> None:
    generator = Generator.from_seed(1)
    with pytest.raises(ContextError, match=r"Variable 'generator_state' was created inside"):
        replicant.function(lambda: Generator.from_seed(1).normal(()))()
    with pytest.raises(ContextError, match=r"split was called inside .*Call it outside"):
        mirrored(2).run(lambda: generator.split(2))
    state = generator.state.numpy()
    with pytest.raises(
        ContextError, match=r"under jax\.jit or another .*replicant\.function instead, or make the generator an attr"
    ):
        jax.jit(lambda: generator.normal(()))()
    np.testing.assert_array_equal(generator.state.numpy(), state)


def test_on_parameter_servers_it_is_refused() -> None:
    cluster = ClusterSpec({"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"]})
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(cluster), transport="threads")
    try:
        with (
            strategy.scope(),
            pytest.raises(ContextError, match=r"scope of a ParameterServerStrategy.*Pass a seed to each scheduled"),
        ):
            Generator.from_seed(1)
    finally:
        strategy.close()


def test_a_restored_generator_goes_on(tmp_path: Path) -> None:
    """Also with another number of replicas: each goes on with its own stream."""
    strategy = mirrored(2)
    with strategy.scope():
        generator = Generator.from_seed(7)
    streams(strategy, generator)
    path = replicant.Checkpoint(rng=generator, more=[{"rng": Generator.from_seed(2)}]).save(str(tmp_path / "ckpt"))
    wanted = streams(strategy, generator)
    other = mirrored(4, fused=False)
    with other.scope():
        restored, inner = Generator.from_seed(1), Generator.from_seed(1)
    replicant.Checkpoint(rng=restored, more=[{"rng": inner}]).restore(path)
    assert inner.state.numpy().tolist() == [0, 2, 0, 0]
    np.testing.assert_array_equal(streams(other, restored)[:2], wanted)


class Noise(keras.layers.Layer):
    """Adds numbers of a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = Generator.from_seed(5)

    def call(self, x: Any) -> Any:
        return x + self.rng.normal((2,))


class Stops(keras.callbacks.Callback):
    """Ends a training in the middle of its second epoch."""

    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.epoch, self.at = 0, at

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == (1, self.at):
            raise RuntimeError("stopped")


def test_a_backup_holds_the_generator_of_a_layer(tmp_path: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    data = Dataset.from_tensor_slices((x, x[:, :1])).batch(2)

    def train(*callbacks: Any) -> list[np.ndarray]:
        with mirrored(2).scope():
            model = keras.Sequential([keras.Input((2,)), Noise(), keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile(keras.optimizers.SGD(0.01), "mse")
        assert len(model.non_trainable_variables) == 1
        model.fit(data, epochs=2, verbose=0, callbacks=list(callbacks))
        return [np.asarray(w) for w in model.get_weights()]

    wanted = train()
    backup = replicant.keras.callbacks.BackupAndRestore
    with pytest.raises(RuntimeError, match="stopped"):
        train(backup(tmp_path, save_freq=1), Stops())
    for got, expected in zip(train(backup(tmp_path, save_freq=1), Stops(at=-1)), wanted, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert [w.tolist() for w in wanted if w.dtype == np.uint32] == [[0, 5, 4, 0]]
