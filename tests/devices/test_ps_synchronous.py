"""How far functions may overlap: synchronous updates equal one device, slow workers are left out, staleness has a bound."""

import threading
import time

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator, FixedShardsPartitioner
from replicant.errors import ArgumentError, LostProcessError, VariableError

RNG = np.random.default_rng(0)
NUM_WORKERS, SHARE = 3, 8
FEATURES = RNG.normal(size=(6, NUM_WORKERS * SHARE, 8)).astype("f4")
IDS = RNG.integers(0, 101, size=(6, NUM_WORKERS * SHARE, 5)).astype("int32")
LABELS = RNG.integers(0, 3, size=(6, NUM_WORKERS * SHARE))


BUILDING = threading.Event()


class SlowToBuild(keras.optimizers.SGD):
    def build(self, variables):
        BUILDING.set()
        time.sleep(1.0)
        super().build(variables)


def cluster(num_workers=NUM_WORKERS):
    spec = ClusterSpec({"ps": ["127.0.0.1:0"] * 2, "worker": ["127.0.0.1:0"] * num_workers})
    return replicant.ParameterServerStrategy(SimpleClusterResolver(spec), FixedShardsPartitioner(2), transport="threads")


@pytest.fixture(scope="module")
def strategy():
    strategy = cluster()
    ClusterCoordinator(strategy, synchronous=True)
    yield strategy
    strategy.close()


@pytest.fixture(autouse=True)
def no_leaked_threads():
    """The servers and workers of a module's strategy live as long as the module."""
    return


def dense_model():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])


def embedding_model():
    ids = keras.Input((5,), dtype="int32")
    return keras.Model(ids, keras.layers.Dense(3)(keras.layers.Flatten()(keras.layers.Embedding(101, 8)(ids))))


def make(strategy, make_model, make_optimizer):
    """A model and a step on a part of a global batch."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, optimizer = make_model(), make_optimizer()
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    @replicant.function
    def step(x, y):
        with replicant.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = replicant.compute_average_loss(loss_object(y, predictions), global_batch_size=NUM_WORKERS * SHARE)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        accuracy.update_state(y, predictions)
        return loss

    def result():
        return [*model.get_weights(), np.asarray(accuracy.result()), np.asarray(optimizer.iterations.value)]

    return step, result


CASES = {
    "adam": (dense_model, lambda: keras.optimizers.AdamW(keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)), FEATURES),
    "rows": (embedding_model, lambda: keras.optimizers.Adagrad(0.1), IDS),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long_cases("rows")
def test_three_workers_equal_one_device(strategy, name):
    make_model, make_optimizer, inputs = CASES[name]
    coordinator = ClusterCoordinator(strategy)
    before = coordinator.stats()["synchronous_updates"]
    step, found = make(strategy, make_model, make_optimizer)
    for x, y in zip(inputs, LABELS, strict=True):
        for part in range(0, NUM_WORKERS * SHARE, SHARE):
            coordinator.schedule(step, args=(x[part : part + SHARE], y[part : part + SHARE]))
    coordinator.join()
    assert coordinator.stats()["synchronous_updates"] - before == len(inputs)
    one, expected = make(replicant.OneDeviceStrategy("cpu:0"), make_model, make_optimizer)
    for batch in zip(inputs, LABELS, strict=True):
        one(*batch)
    assert found()[-1] == len(inputs)
    for a, b in zip(found(), expected(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_fit_equals_one_device_with_the_global_batch(strategy):
    x, y = FEATURES[0], LABELS[0]

    def fitted(strategy, **options):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = dense_model()
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
        logs = model.fit(**options, shuffle=False, epochs=2, verbose=0).history
        return model.get_weights(), logs

    whole = {"x": x, "y": y, "batch_size": NUM_WORKERS * SHARE}
    dataset = replicant.data.Dataset.from_tensor_slices((x, y)).repeat().batch(NUM_WORKERS * SHARE)
    found, found_logs = fitted(strategy, x=dataset, steps_per_epoch=NUM_WORKERS)  # the mean of three equal gradients
    expected, expected_logs = fitted(replicant.OneDeviceStrategy("cpu:0"), **whole)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert {name: pytest.approx(values, abs=1e-6) for name, values in expected_logs.items()} == found_logs


def test_join_applies_what_is_left(strategy):
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        v, sgd = keras.Variable([0.0, 0.0]), keras.optimizers.SGD(1.0)
        sgd.build([v])

    @replicant.function
    def step(x):
        sgd.apply([jnp.full(2, x)], [v])

    for x in (1.0, 2.0, 4.0, 8.0):
        coordinator.schedule(step, args=(x,)).fetch()
    assert np.asarray(v.value).tolist() == [-7.0, -7.0]  # of three; the fourth waits for two more
    coordinator.join()
    assert np.asarray(v.value).tolist() == [-15.0, -15.0]
    assert int(sgd.iterations.value) == 2


def test_what_cannot_be_synchronous_is_refused(strategy):
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        v, w, clipped = keras.Variable([0.0]), replicant.Variable(0.0), keras.optimizers.SGD(1.0, clipnorm=1.0)

    def twice():
        w.assign_add(1.0)

    def fails(fn, error, match):
        coordinator.schedule(fn)
        with pytest.raises(error, match=match):
            coordinator.join()

    fails(twice, VariableError, "read after another was changed, in a closure of a synchronous ClusterCoordinator")
    clip = replicant.function(lambda: clipped.apply([jnp.ones(1)], [v]))
    fails(clip, ArgumentError, r"SGD\(clipnorm=1.0\) would clip the gradients of each closure by itself")
    assert (w.numpy(), float(v.value[0])) == (0.0, 0.0)
    assert coordinator.schedule(lambda: 7).fetch() == 7
    coordinator.join()


def test_an_error_on_a_server_comes_out_of_join():
    own = cluster(2)
    try:
        coordinator = ClusterCoordinator(own, synchronous=True)
        with own.scope():
            v = replicant.Variable(np.zeros(2, "f4"))
        add = replicant.function(lambda: v.assign_add(jnp.ones(2)))
        real = own.cluster.client.push

        def push(batch):
            raise ZeroDivisionError("in an optimizer")

        own.cluster.client.push = push
        coordinator.schedule(add)
        with pytest.raises(ZeroDivisionError, match="in an optimizer"):
            coordinator.join()
        own.cluster.client.push = real
        coordinator.schedule(add)
        coordinator.join()
        assert v.numpy().tolist() == [1.0, 1.0]
    finally:
        own.close()


class Gates:
    """Lets functions in threads wait for each other; it stays itself when it travels to a thread."""

    slow_began, slow_may_end = threading.Event(), threading.Event()

    @staticmethod
    def fresh():
        GATES.slow_began.clear()
        GATES.slow_may_end.clear()
        return GATES

    def __reduce__(self):
        return "GATES"


GATES = Gates()


def test_a_slow_worker_is_left_out_and_counted():
    own = cluster(3)
    try:
        coordinator = ClusterCoordinator(own, synchronous=True, backup_workers=1)
        with own.scope():
            v, sgd = keras.Variable([0.0]), keras.optimizers.SGD(1.0)
            sgd.build([v])
        apply = replicant.function(lambda x: sgd.apply([jnp.full(1, x)], [v]))
        gates = Gates.fresh()

        def slow(x):
            gates.slow_began.set()
            gates.slow_may_end.wait(120)
            apply(x)
            return "slow"

        late = coordinator.schedule(slow, args=(1000.0,))
        assert GATES.slow_began.wait(120)
        quick = [coordinator.schedule(apply, args=(x,)) for x in (1.0, 2.0, 4.0, 8.0)]
        coordinator.fetch(quick)
        while coordinator.stats()["synchronous_updates"] < 2:
            coordinator.schedule(lambda: None).fetch()
        assert np.asarray(v.value).tolist() == [-15.0]  # (1 + 2) and (4 + 8), without the slow one
        GATES.slow_may_end.set()
        coordinator.join()
        assert late.fetch() == "slow"
        stats = coordinator.stats()
        assert (np.asarray(v.value).tolist(), int(sgd.iterations.value)) == ([-15.0], 2)
        assert (stats["synchronous_updates"], stats["dropped_closures"], stats["staleness"]) == (2, 1, [4])
    finally:
        GATES.slow_may_end.set()
        own.close()


def test_the_bound_on_staleness_holds_the_others_back():
    own = cluster(3)
    try:
        coordinator = ClusterCoordinator(own, max_staleness=2)
        with own.scope():
            v = replicant.Variable(0.0)
        gates = Gates.fresh()

        def slow():
            old = v.numpy()
            gates.slow_began.set()
            gates.slow_may_end.wait(120)
            v.assign(old)

        late = coordinator.schedule(slow)
        assert GATES.slow_began.wait(120)
        quick = [coordinator.schedule(lambda: float(v.assign_add(1.0))) for _ in range(10)]
        coordinator.fetch(quick[:2])
        with pytest.raises(LostProcessError, match="has not ended within"):
            quick[2].fetch(timeout=0.3)
        GATES.slow_may_end.set()
        coordinator.join()
        late.fetch()
        assert v.numpy() == 8.0  # the slow one undid two, and no more
        assert len(coordinator.stats()["staleness"]) <= 3
    finally:
        GATES.slow_may_end.set()
        own.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"synchronous": 2}, "synchronous must be True or False. Received: 2."),
        ({"synchronous": True, "backup_workers": 3}, "must be a whole number from 0 to 2: there are 3 workers.* Received: 3."),
        ({"synchronous": True, "backup_workers": -1}, "backup_workers must be a whole number from 0 to 2.* Received: -1."),
        ({"backup_workers": 1}, "backup_workers=1 needs synchronous=True"),
        ({"synchronous": True, "max_staleness": 2}, "max_staleness=2 cannot be combined with synchronous=True"),
        ({"synchronous": True, "backup_workers": 1}, "was made with backup_workers=0, which cannot change to 1"),
    ],
)
def test_arguments(strategy, options, message):
    with pytest.raises(ArgumentError, match=message):
        ClusterCoordinator(strategy, **options)
    assert ClusterCoordinator(strategy).functions_per_update == 3


def test_close_waits_for_what_the_coordinator_does_in_the_background():
    strategy = cluster(num_workers=1)
    coordinator = ClusterCoordinator(strategy, synchronous=True)
    with strategy.scope():
        v, sgd = keras.Variable([0.0, 0.0]), SlowToBuild(1.0)
    coordinator.schedule(lambda: sgd.apply([jnp.ones(2)], [v]))
    assert BUILDING.wait(60)
    before = [thread for thread in threading.enumerate() if thread.name in {"replicant-prepare", "replicant-update"}]
    strategy.close()
    assert len(before) == 1
    assert not before[0].is_alive()
