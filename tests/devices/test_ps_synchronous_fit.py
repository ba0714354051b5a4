"""Synchronous ``fit``: a round, however short and however unequal its batches, is one step of one device on all of its rows."""

import threading

import keras
import numpy as np
import pytest

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator, FixedShardsPartitioner
from replicant.coordinator.scheduling._merge import merge
from replicant.coordinator.servers._push import Change, Operation

RNG = np.random.default_rng(0)
SIZES = (4, 1, 4)  # of the batches: a round of 5 rows, and a short one of 4
ROUNDS = ((0, 1), (2,))


class Queue:
    """Batches that both workers, which are threads here, take from; it stays itself when it travels."""

    lock = threading.Lock()
    batches: list = []  # noqa: RUF012 - one queue for all

    def __iter__(self):
        while True:
            with self.lock:
                batch = self.batches.pop(0)
            yield batch

    def __reduce__(self):
        return "QUEUE"


QUEUE = Queue()


@pytest.fixture(scope="module")
def strategy():
    spec = ClusterSpec({"ps": ["127.0.0.1:0"] * 2, "worker": ["127.0.0.1:0"] * 2})
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(spec), FixedShardsPartitioner(2), transport="threads")
    ClusterCoordinator(strategy, synchronous=True)
    yield strategy
    strategy.close()


@pytest.fixture(autouse=True)
def no_leaked_threads():
    """The servers and workers of a module's strategy live as long as the module."""
    return


def floats(*shape):
    return RNG.normal(size=shape).astype("f4")


def dense(loss, **options):
    def make():
        penalty = keras.regularizers.L2(0.1)
        layers = [keras.layers.Dense(4, "tanh", kernel_regularizer=penalty), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,)), *layers])
        model.compile(keras.optimizers.SGD(0.3), loss, **options)
        return model

    return make


def masked():
    inputs = keras.Input((4, 2))
    hidden = keras.layers.Masking()(inputs)
    outputs = keras.layers.TimeDistributed(keras.layers.Dense(1, activity_regularizer=None))(hidden)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.1), keras.losses.MeanSquaredError())
    return model


def ignoring():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, kernel_regularizer=keras.regularizers.L1(0.01))])
    model.compile(keras.optimizers.SGD(0.3), keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1))
    return model


def two_outputs():
    inputs = keras.Input((3,))
    outputs = {name: keras.layers.Dense(1, name=name)(keras.layers.Dense(2, "tanh")(inputs)) for name in ("a", "b")}
    model = keras.Model(inputs, outputs)
    losses = {"a": "mse", "b": keras.losses.MeanAbsoluteError(reduction="sum")}
    model.compile(keras.optimizers.SGD(0.05), losses, loss_weights={"a": 2.0, "b": 0.5})
    return model


def embedding():
    ids = keras.Input((2,), dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Embedding(11, 3)(ids))))
    model.compile(keras.optimizers.Adagrad(0.3), "mse")
    return model


def plain(n):
    return floats(n, 3), floats(n, 1)


def weighted(n):
    return floats(n, 3), floats(n, 1), RNG.uniform(0, 2, n).astype("f4")


def with_holes(n):
    x = floats(n, 4, 2)
    x[RNG.random((n, 4)) < 0.5] = 0.0
    return x, floats(n, 4, 1)


MSE = keras.losses.MeanSquaredError
CASES = {
    "mean": (dense("mse", metrics=["mae"]), plain),
    "mean, with weights": (dense("mse", weighted_metrics=["mae"]), weighted),
    "sum": (dense(MSE(reduction="sum")), plain),
    "mean by weights": (dense(MSE(reduction="mean_with_sample_weight")), weighted),
    "function": (dense(lambda y, p: keras.ops.mean(keras.ops.square(y - p))), plain),
    "mask": (masked, with_holes),
    "ignored class": (ignoring, lambda n: (floats(n, 3), RNG.integers(0, 4, n))),
    "two outputs": (two_outputs, lambda n: (floats(n, 3), {"a": floats(n, 1), "b": floats(n, 1)})),
    "rows": (embedding, lambda n: (RNG.integers(0, 11, (n, 2)).astype("i4"), floats(n, 1))),
}


def joined(batches):
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *batches)


class Rounds(keras.utils.PyDataset):
    """What one device sees: all rows of a round."""

    def __init__(self, batches):
        super().__init__()
        self._batches = batches

    def __len__(self):
        return len(ROUNDS)

    def __getitem__(self, i):
        return joined([self._batches[number] for number in ROUNDS[i]])


def made(strategy, make):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        return make()


SLOW = ("mean", "function", "mean by weights", "ignored class")  # each has a neighbour that is run always


@pytest.mark.cases("two outputs", "mask", "mean, with weights")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES])
@pytest.mark.long_cases("mask", "two outputs")
def test_unequal_batches_and_a_short_round_equal_one_device(strategy, name):
    make, batch_of = CASES[name]
    batches = [batch_of(n) for n in SIZES]
    QUEUE.batches[:] = [batches[0], *batches]  # fit looks at one to build the model
    model = made(strategy, make)
    logs = model.fit(lambda: QUEUE, steps_per_epoch=len(SIZES), verbose=0).history
    assert not QUEUE.batches
    one = made(replicant.OneDeviceStrategy("cpu:0"), make)
    expected = one.fit(Rounds(batches), shuffle=False, verbose=0).history
    for found, wanted in zip(model.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-6)
    assert logs == {key: pytest.approx(values, rel=1e-5) for key, values in expected.items()}


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_a_short_last_round_is_a_whole_update(strategy, steps):
    """Gradient 1, learning rate 1: each round moves the weight by 1."""

    def make():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(1.0), loss=lambda _, p: p)
        return model

    model, ones = made(strategy, make), np.ones((12, 1), "f4")
    dataset = replicant.data.Dataset.from_tensor_slices((ones, ones)).repeat().batch(4)
    model.fit(dataset, steps_per_epoch=steps, verbose=0)
    assert model.get_weights()[0].item() == -((steps + 1) // 2)


def test_moving_statistics_are_averaged_by_rows(strategy):
    def make():
        model = keras.Sequential([keras.Input((1,)), keras.layers.BatchNormalization(momentum=0.0, center=False, scale=False)])
        model.add(keras.layers.Dense(1))
        model.compile(keras.optimizers.SGD(0.0), "mse")
        return model

    model = made(strategy, make)
    batches = [(np.full((n, 1), value, "f4"), np.zeros((n, 1), "f4")) for n, value in ((3, 1.0), (1, 9.0))]
    QUEUE.batches[:] = [batches[0], *batches]
    model.fit(lambda: QUEUE, steps_per_epoch=2, verbose=0)
    assert model.layers[0].moving_mean.numpy().item() == 3.0  # of four rows, as one device has it; a mean of means is 5


def test_a_sum_over_nothing_stays_zero():
    """Every token of a round is masked: Keras's mean over nothing is 0, and so is its gradient."""
    count = Operation("add", [Change(0, np.ones((), "i4"))], 5, shares=(("rows", 2.0), ("mask 0", 0.0)))
    offer = [[Operation("apply", [Change(1, np.zeros(2, "f4"), None, "mask 0")], 5), count]]
    merged = merge([offer, offer])[0]
    assert merged[0].changes[0].values.tolist() == [0.0, 0.0]
    assert [(op.kind, op.shares, op.changes[0].share) for op in merged] == [("apply", (), None), ("add", (), None)]


@pytest.mark.parametrize("synchronous", [True, False])
def test_the_losses_of_single_outputs_are_told(strategy, synchronous):
    """They were always 0: what a loss adds to its metric got lost where the others' sums are made."""
    own = strategy if synchronous else replicant.ParameterServerStrategy(transport="threads")
    try:
        batches = [CASES["two outputs"][1](4) for _ in range(2)]
        QUEUE.batches[:] = [batches[0], batches[0]]
        logs = made(own, two_outputs).fit(lambda: QUEUE, steps_per_epoch=1, verbose=0).history
        expected = made(replicant.OneDeviceStrategy("cpu:0"), two_outputs).train_on_batch(*batches[0], return_dict=True)
        assert {key: value[0] for key, value in logs.items()} == {k: pytest.approx(float(v), rel=1e-5) for k, v in expected.items()}
    finally:
        if not synchronous:
            own.close()
