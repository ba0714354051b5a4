"""A generator that can be read once, as the data of strategies and of Keras."""

import queue

import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset, TensorSpec

pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras warns where the length is not known
SIGNATURE = TensorSpec((), np.float32)


@pytest.fixture(params=[1, 2, "one each"], ids=["one", "two", "two of their own"])
def strategy(request):
    if request.param == 1:
        return replicant.MirroredStrategy(["cpu:0"])
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=request.param == 2)


def stream(signature=None):
    """A dataset of 0 to 9 from a queue."""
    source = queue.Queue()
    for number in (*range(10), -1):
        source.put(np.float32(number))
    return Dataset.from_generator(lambda: iter(source.get, -1), signature)


PIPELINES = {
    "batch": lambda data: data.batch(2),
    "map": lambda data: data.map(lambda x: x).batch(2),
    "batch, map": lambda data: data.batch(2).map(lambda x: x),
    "threads": lambda data: data.map(lambda x: x, num_parallel_calls=2).batch(2).prefetch(2),
    "padded_batch": lambda data: data.map(lambda x: x).padded_batch(2),
}


@pytest.mark.parametrize("signature", [None, SIGNATURE], ids=["no signature", "signature"])
@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
def test_a_distributed_dataset_has_all_elements(strategy, pipeline, signature):
    """On two devices, the first ones had been lost."""
    distributed = strategy.experimental_distribute_dataset(pipeline(stream(signature)))
    _ = distributed.element_spec
    rows = [np.asarray(strategy.gather(batch, axis=0)).tolist() for batch in distributed]
    assert rows == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


class Sums(keras.Model):
    """Adds up what it gets."""

    def __init__(self):
        super().__init__()
        self.total = keras.metrics.Sum(name="total")

    @property
    def metrics(self):
        return [self.total]

    def call(self, x):
        return x

    def train_step(self, data):
        self.total.update_state(data)
        return {"total": self.total.result()}

    test_step = train_step


def layered():
    """A model that is built on the first batch."""
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)])
    mean = keras.metrics.MeanMetricWrapper(lambda y, _: y, name="mean")
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[mean], steps_per_execution=2)
    return model


def columns(data, *, distribute):
    pairs = data.batch(2).map(lambda x: (x[:, None], x[:, None]))
    return replicant.get_strategy().experimental_distribute_dataset(pairs) if distribute else pairs


@pytest.mark.parametrize("distribute", [False, True])
def test_keras_reads_all_batches(strategy, distribute):
    """The first batch had been lost where a model is built on it, on one device too."""
    with strategy.scope():
        sums, fitted, evaluated, predicted = Sums(), layered(), layered(), layered()
        sums.compile()
        data = [columns(stream(), distribute=distribute) for _ in range(3)]
    assert sums.fit(stream().batch(2), verbose=0).history["total"] == [45]
    assert sums.evaluate(stream().batch(2), verbose=0, return_dict=True)["total"] == 45
    assert fitted.fit(data[0], verbose=0).history["mean"] == [4.5]
    assert evaluated.evaluate(data[1], verbose=0, return_dict=True)["mean"] == 4.5
    assert predicted.predict(data[2], verbose=0).tolist() == [[x] for x in range(10)]


def test_keras_validates_on_all_batches(strategy):
    with strategy.scope():
        model = layered()
    history = model.fit(columns(stream(), distribute=False), validation_data=columns(stream(), distribute=False), verbose=0).history
    assert (history["mean"], history["val_mean"]) == ([4.5], [4.5])
