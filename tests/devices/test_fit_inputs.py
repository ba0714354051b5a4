"""Everything that ``fit``, ``evaluate`` and ``predict`` take: the numbers of plain Keras on arrays, on one device.

10 rows in batches of 4, 4 and 2 on 4 replicas: the last batch is smaller than the number of replicas.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import replicant
from replicant.data import Dataset

TOLERANCE = 1e-5
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(10, 6)).astype(np.float32), RNG.integers(0, 3, 10)
STRATEGY = replicant.MirroredStrategy([f"cpu:{i}" for i in range(4)])


class Batches(keras.utils.PyDataset):
    """Batches of 4, 4, 2."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        self.data = data

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return jax.tree.map(lambda array: array[4 * index : 4 * index + 4], self.data)


def our_dataset(data: Any) -> Dataset:
    return Dataset.from_tensor_slices(data).batch(4)


def generated(data: Any) -> Iterator[Any]:
    return (Batches(data)[i] for i in range(3))


def tf_data(data: Any) -> Any:
    tensorflow = pytest.importorskip("tensorflow", reason="tf.data needs TensorFlow, which is not installed")
    return tensorflow.data.Dataset.from_tensor_slices(data).batch(4)


class Rows:
    """A dataset of rows for torch and Grain."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return jax.tree.map(lambda array: array[index], self.data)


def torch_loader(data: Any) -> Any:
    torch = pytest.importorskip("torch", reason="a DataLoader needs torch, which is not installed")
    return torch.utils.data.DataLoader(Rows(data), batch_size=4)


def grain_map(data: Any) -> Any:
    grain = pytest.importorskip("grain", reason="a MapDataset needs Grain, which is not installed")
    return grain.MapDataset.source(Rows(data)).batch(4)


def grain_iter(data: Any) -> Any:
    return grain_map(data).to_iter_dataset()


def grain_loader(data: Any) -> Any:
    grain = pytest.importorskip("grain", reason="a DataLoader needs Grain, which is not installed")
    sampler = grain.samplers.IndexSampler(10, shard_options=grain.sharding.NoSharding(), shuffle=False, num_epochs=1)
    return grain.DataLoader(data_source=Rows(data), sampler=sampler, operations=[grain.transforms.Batch(4)])


def distributed(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda data: STRATEGY.experimental_distribute_dataset(make(data))


# What yields (x, y), or x, in batches of 4.
KINDS: dict[str, Callable[[Any], Any]] = {
    "Dataset": our_dataset,
    "Dataset with cache and prefetch": lambda data: our_dataset(data).cache().prefetch(2),
    "Dataset from a generator": lambda data: Dataset.from_generator(lambda: generated(data)),
    "DistributedDataset": distributed(our_dataset),
    "PyDataset": Batches,
    "generator": generated,
    "tf.data": tf_data,
    "torch DataLoader": torch_loader,
    "Grain MapDataset": grain_map,
    "Grain IterDataset": grain_iter,
    "Grain DataLoader": grain_loader,
    "distributed PyDataset": distributed(Batches),
    "distributed tf.data": distributed(tf_data),
    "distributed torch DataLoader": distributed(torch_loader),
    "distributed Grain MapDataset": distributed(grain_map),
}


def compiled() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="tanh"), layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def trained() -> Callable[[dict[str, Any], dict[str, Any]], Any]:
    """trained(arguments with labels, arguments without): what a run under the strategy leaves. All share one compiled model."""
    with STRATEGY.scope():
        model = compiled()
    start = model.get_weights()

    def run(make_labelled: Callable[[], dict[str, Any]], make_unlabelled: Callable[[], dict[str, Any]]) -> Any:
        model.set_weights(start)
        return results(model, make_labelled, make_unlabelled)

    return run


def results(model: keras.Model, labelled: Callable[[], dict[str, Any]], unlabelled: Callable[[], dict[str, Any]]) -> Any:
    """Predictions, history with validation, evaluation, weights."""
    predicted = model.predict(**unlabelled(), verbose=0)
    validation = labelled()
    validation = (validation["x"], validation["y"]) if "y" in validation else validation["x"]
    history = model.fit(**labelled(), shuffle=False, validation_data=validation, validation_batch_size=4, verbose=0).history
    return predicted, history, model.evaluate(**labelled(), verbose=0), model.get_weights()


def assert_equal(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE), actual, expected)


@pytest.fixture(scope="module")
def expected() -> Any:
    """NumPy arrays without a strategy."""
    return results(compiled(), lambda: {"x": X, "y": Y, "batch_size": 4}, lambda: {"x": X, "batch_size": 4})


@pytest.mark.parametrize("array", [np.asarray, jax.numpy.asarray], ids=["NumPy arrays", "JAX arrays"])
@pytest.mark.long
def test_arrays(trained: Any, expected: Any, array: Callable[[Any], Any]) -> None:
    x, y = array(X), array(Y)
    assert_equal(trained(lambda: {"x": x, "y": y, "batch_size": 4}, lambda: {"x": x, "batch_size": 4}), expected)


# Keras says so at the end of the first epoch of whatever does not tell its length.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long_cases("Dataset")
def test_what_yields_batches(trained: Any, expected: Any, kind: str) -> None:
    """Without labels as the only member of a tuple, which is how Keras wants them."""
    make = KINDS[kind]
    assert_equal(trained(lambda: {"x": make((X, Y))}, lambda: {"x": make((X,))}), expected)


def test_a_shuffle_draws_the_order_of_plain_keras() -> None:
    def run(model: keras.Model) -> Any:
        keras.utils.set_random_seed(5)
        return model.fit(X, Y, batch_size=4, epochs=2, shuffle=True, verbose=0).history, model.get_weights()

    with STRATEGY.scope():
        model = compiled()
    assert_equal(run(model), run(compiled()))


@pytest.mark.cases("int64-strategy", "float64-plain Keras")
@pytest.mark.parametrize("strategy", [STRATEGY, None], ids=["strategy", "plain Keras"])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64])
@pytest.mark.long
def test_numbers_of_64_bits_make_no_warning(strategy: Any, dtype: Any) -> None:
    """JAX computes with 32 bits, and its newer versions warn of shapes with 64. The tests turn warnings into errors."""
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential([layers.Dense(3)])  # no shape: Keras builds it from the first batch
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    x, y = X.astype(dtype), Y.astype(dtype)
    model.train_on_batch(x, y)
    assert model.weights[0].dtype == "float32"
    model.fit(our_dataset((x, y)), verbose=0)
    model.evaluate(x, y, verbose=0)
    assert model.predict(x, verbose=0).dtype == np.float32


def test_all_bits_are_kept_where_jax_is_asked_to() -> None:
    with jax.enable_x64(True), STRATEGY.scope():
        doubled = STRATEGY.run(lambda x: 2 * x, args=(np.asarray([2**40]),))
        assert np.asarray(STRATEGY.reduce("MEAN", doubled, axis=None)).tolist() == [2.0**41]
    assert jax.tree.leaves(STRATEGY.run(lambda x: 2 * x, args=(np.asarray([3]),)))[0].dtype == np.int32
