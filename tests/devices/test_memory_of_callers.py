"""A caller may write to its arrays again at once. JAX would still read them: on CPUs for as long as a result lives.

One buffer is filled with 1, 2, 3, ... and with -1000 as soon as a call has returned. What comes of step i must come of the number i
alone. JAX shares memory that begins at a multiple of 64 bytes, and copies other memory late, so each test takes both.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset

STEPS = 5
SHAPE = (512, 512)  # 1 MB
LABELS = np.zeros((SHAPE[0], 1), np.float32)
Buffers = Callable[[], Iterator[np.ndarray]]


@pytest.fixture(params=["shared by JAX", "copied late by JAX"])
def buffers(request: pytest.FixtureRequest) -> Buffers:
    """Makes iterators of one buffer, which is filled with the number of the step."""

    def each() -> Iterator[np.ndarray]:
        memory = np.empty(np.prod(SHAPE) + 32, np.float32)
        start = -memory.ctypes.data % 64 // 4 + (0 if request.param == "shared by JAX" else 4)
        buffer = memory[start : start + np.prod(SHAPE)].reshape(SHAPE)
        for i in range(STEPS):
            buffer[:] = i + 1
            yield buffer
            buffer[:] = -1000

    return each


def gpus() -> int:
    try:
        return len(jax.local_devices(backend="gpu"))
    except RuntimeError:
        return 0


@pytest.fixture(params=["one CPU", "fused", "apart", "no strategy", pytest.param("GPU", marks=pytest.mark.gpu)])
def strategy(request: pytest.FixtureRequest) -> Any:
    if request.param == "GPU" and not gpus():
        pytest.skip("needs a GPU that JAX sees")
    two = ["cpu:0", "cpu:1"]
    return {
        "one CPU": lambda: replicant.MirroredStrategy(["cpu:0"]),
        "fused": lambda: replicant.MirroredStrategy(two, fuse_replicas=True),
        "apart": lambda: replicant.MirroredStrategy(two, fuse_replicas=False),
        "no strategy": replicant.get_strategy,
        "GPU": lambda: replicant.MirroredStrategy(["gpu:0"]),
    }[request.param]()


@jax.jit
def work(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 6, lambda _, y: x @ y / 600, x)


@pytest.fixture(autouse=True)
def busy(strategy: Any) -> Iterator[None]:
    """Give the devices something to do, so that what is begun during the test has to wait."""
    del strategy
    result = work(jnp.ones((600, 600)))
    yield
    jax.block_until_ready(result)


def mean(x: jax.Array) -> Any:
    return x.mean()


def means(strategy: Any, values: list[Any]) -> list[float]:
    """The mean of each value, or of that of the first replica."""
    each = [v if isinstance(v, replicant.Variable | keras.Variable) else strategy.experimental_local_results(v)[0] for v in values]
    return [float(np.asarray(v).mean()) for v in each]


KINDS = {"replicant": replicant.Variable, "keras": keras.Variable}
EXPECTED = [float(i + 1) for i in range(STEPS)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_variables_keep_what_they_were_given(strategy: Any, buffers: Buffers, kind: str, method: str) -> None:
    with strategy.scope():
        variables = [KINDS[kind](np.zeros(SHAPE, np.float32)) for _ in range(STEPS)]
    for variable, x in zip(variables, buffers(), strict=True):
        getattr(variable, method)(x)
    sign = -1 if method == "assign_sub" else 1
    assert means(strategy, variables) == [sign * x for x in EXPECTED]


@pytest.mark.parametrize("kind", KINDS)
def test_initial_values(strategy: Any, buffers: Buffers, kind: str) -> None:
    with strategy.scope():
        variables = [KINDS[kind](x) for x in buffers()]
    assert means(strategy, variables) == EXPECTED


def test_rows_and_set_weights(strategy: Any, buffers: Buffers) -> None:
    with strategy.scope():
        variables = [replicant.Variable(np.zeros(SHAPE, np.float32)) for _ in range(STEPS)]
        layers = [keras.layers.Dense(SHAPE[1], use_bias=False) for _ in range(STEPS)]
        for layer in layers:
            layer.build((None, SHAPE[0]))
    rows = np.arange(SHAPE[0])
    for variable, layer, x in zip(variables, layers, buffers(), strict=True):
        variable.scatter_update(rows, x)
        layer.set_weights([x])
    assert means(strategy, variables) == EXPECTED
    assert means(strategy, [layer.kernel for layer in layers]) == EXPECTED


def test_training_does_not_write_to_arrays_of_callers(strategy: Any, buffers: Buffers) -> None:
    """The step overwrites its state in place."""
    with strategy.scope():
        layer = keras.layers.Dense(SHAPE[1], use_bias=False)
        layer.build((None, SHAPE[0]))

    @replicant.function
    def step() -> None:
        layer.kernel.assign(layer.kernel.value * 2)

    for i, x in enumerate(buffers()):
        layer.set_weights([x])
        step(), step()
        assert (x == i + 1).all()


def test_arguments_of_functions_and_of_run(strategy: Any, buffers: Buffers) -> None:
    def replica(x: Any) -> Any:
        return strategy.run(mean, args=(x,))

    function = replicant.function(replica)
    assert means(strategy, [function(x) for x in buffers()]) == EXPECTED
    assert means(strategy, [replica(x) for x in buffers()]) == EXPECTED
    n = strategy.num_replicas_in_sync
    assert means(strategy, [function(replicant.PerReplica([x] * n)) for x in buffers()]) == EXPECTED


def test_reduce_gather_and_values_from_a_function(strategy: Any, buffers: Buffers) -> None:
    n = strategy.num_replicas_in_sync
    assert means(strategy, [strategy.reduce("MEAN", replicant.PerReplica([x] * n)) for x in buffers()]) == EXPECTED
    assert means(strategy, [strategy.gather(replicant.PerReplica([x] * n), axis=0) for x in buffers()]) == EXPECTED
    assert means(strategy, [strategy.experimental_distribute_values_from_function(lambda _, x=x: x) for x in buffers()]) == EXPECTED


PIPELINES: dict[str, Callable[[Dataset], Any]] = {
    "alone": lambda dataset: dataset,
    "batch": lambda dataset: dataset.batch(2),
    "prefetch": lambda dataset: dataset.prefetch(3),
    "cache": lambda dataset: dataset.cache(),
    "shuffle": lambda dataset: dataset.shuffle(1),
    "map": lambda dataset: dataset.map(lambda x: x[1:]),
}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_datasets_of_generators(strategy: Any, buffers: Buffers, pipeline: str) -> None:
    dataset = PIPELINES[pipeline](Dataset.from_generator(buffers))
    seen = [x if x.ndim == 3 else x[None] for x in dataset]
    assert [float(row.mean()) for x in seen for row in x] == EXPECTED

    @replicant.function
    def step(x: Any) -> Any:
        return strategy.gather(strategy.run(lambda x: x.reshape(-1, SHAPE[1]).mean(1), args=(x,)), axis=0)

    means = np.concatenate([np.asarray(step(x)) for x in strategy.experimental_distribute_dataset(dataset)])
    rows = SHAPE[0] - (pipeline == "map")
    np.testing.assert_array_equal(means, np.repeat(EXPECTED, rows))


@pytest.mark.parametrize("num_parallel_calls", [None, 1])
def test_datasets_of_functions(strategy: Any, buffers: Buffers, num_parallel_calls: int | None) -> None:
    """The function returns one array again and again."""
    buffer = next(buffers())

    def fill(number: Any) -> np.ndarray:
        buffer[:] = number + 1
        return buffer

    dataset = Dataset.range(STEPS).map(fill, num_parallel_calls=num_parallel_calls).batch(2)
    assert [float(row.mean()) for x in dataset for row in x] == EXPECTED


def test_batches_of_other_iterables(strategy: Any, buffers: Buffers) -> None:
    @replicant.function
    def step(x: Any) -> Any:
        return strategy.run(mean, args=(x,))

    distributed = strategy.experimental_distribute_dataset(buffers())
    assert means(strategy, [step(x) for x in distributed]) == EXPECTED


class Sees(keras.Model):
    """Keeps the mean of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = self.add_weight(shape=(STEPS,), initializer="zeros", trainable=False, name="seen")
        self.step = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False, name="step")
        self.weight = self.add_weight(shape=(), initializer="zeros", name="weight")

    def call(self, x: Any) -> Any:
        number = self.step.value
        self.seen.assign(self.seen.value.at[number].set(jnp.mean(x)))
        self.step.assign(number + 1)
        return jnp.mean(x, 1, keepdims=True) * self.weight


def make_model(strategy: Any, **options: Any) -> Any:
    with strategy.scope():
        model = Sees()
        model.compile(keras.optimizers.SGD(0.0), "mse", **options)
    return model


class Numbered(keras.utils.PyDataset):
    """Fills one buffer whenever a batch is asked for."""

    def __init__(self, buffer: np.ndarray) -> None:
        super().__init__()
        self.buffer = buffer

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, number: int) -> Any:
        self.buffer[:] = number + 1
        return self.buffer, LABELS


@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}, {"run_eagerly": True}], ids=str)
def test_fit(strategy: Any, buffers: Buffers, options: dict[str, Any]) -> None:
    model = make_model(strategy, **options)
    model.fit(((x, LABELS) for x in buffers()), steps_per_epoch=STEPS, shuffle=False, verbose=0)
    np.testing.assert_array_equal(model.seen, EXPECTED)

    model = make_model(strategy, **options)
    model.fit(Numbered(next(buffers())), shuffle=False, verbose=0)
    np.testing.assert_array_equal(model.seen, EXPECTED)


def test_predict_and_train_on_batch(strategy: Any, buffers: Buffers) -> None:
    model = make_model(strategy)
    for x in buffers():
        model.train_on_batch(x, LABELS)
    np.testing.assert_array_equal(model.seen, EXPECTED)

    model.weight.assign(1.0)
    found = model.predict(((x,) for x in buffers()), steps=STEPS, verbose=0)
    np.testing.assert_array_equal(found[:, 0], np.repeat(EXPECTED, SHAPE[0]))
