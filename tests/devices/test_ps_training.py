"""Training on parameter servers with one worker equals one device: every optimizer, sharded or not, dense or by rows."""

import threading
import time

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator, FixedShardsPartitioner, MinSizePartitioner, embedding_lookup
from replicant.errors import ArgumentError, ArgumentTypeError, ContextError, LostProcessError, UnserializableError, VariableError

ONE_WORKER = SimpleClusterResolver(ClusterSpec({"ps": ["127.0.0.1:0"] * 2, "worker": ["127.0.0.1:0"]}))
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(6, 16, 8)).astype("f4")
IDS = RNG.integers(0, 101, size=(6, 16, 5))
LABELS = RNG.integers(0, 3, size=(6, 16))


@pytest.fixture(scope="module")
def cut():
    """A strategy that cuts every variable in two."""
    strategy = replicant.ParameterServerStrategy(ONE_WORKER, FixedShardsPartitioner(2), transport="threads")
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
    x = keras.layers.Flatten()(keras.layers.Embedding(101, 8)(ids))
    return keras.Model(ids, keras.layers.Dense(3)(keras.layers.BatchNormalization()(x)))


def train(strategy, call, make_model, make_optimizer, inputs):
    """Losses, weights and accuracy after a few steps, each made by ``call(step, args)``."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, optimizer = make_model(), make_optimizer()
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(x, y):
        with replicant.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = replicant.compute_average_loss(loss_object(y, predictions), global_batch_size=16)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(y, predictions)
        return loss

    @replicant.function
    def step(x, y):
        return strategy.run(replica_step, args=(x, y))

    losses = [float(call(step, batch)) for batch in zip(inputs, LABELS, strict=True)]
    return losses, [np.asarray(w) for w in model.get_weights()], float(accuracy.result()), int(optimizer.iterations.value)


def scheduled(strategy):
    coordinator = ClusterCoordinator(strategy)
    return lambda step, args: coordinator.schedule(step, args=args).fetch()


def assert_equal(found, expected):
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert found[2:] == expected[2:]


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "schedule, decay, clipping": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.5), global_clipnorm=0.1
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.long
def test_one_worker_equals_one_device(cut, name):
    found = train(cut, scheduled(cut), dense_model, OPTIMIZERS[name], FEATURES)
    one = replicant.OneDeviceStrategy("cpu:0")
    assert_equal(found, train(one, lambda step, args: step(*args), dense_model, OPTIMIZERS[name], FEATURES))


BY_ROWS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "clipped": lambda: keras.optimizers.SGD(0.1, clipvalue=0.003),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
}


@pytest.mark.parametrize("name", BY_ROWS)
@pytest.mark.long
def test_rows_of_an_embedding_equal_the_whole_table(cut, name):
    found = train(cut, scheduled(cut), embedding_model, BY_ROWS[name], IDS)
    one = replicant.OneDeviceStrategy("cpu:0")
    assert_equal(found, train(one, lambda step, args: step(*args), embedding_model, BY_ROWS[name], IDS))


def test_only_the_rows_that_were_looked_up_travel(cut):
    coordinator = ClusterCoordinator(cut)
    with cut.scope():
        table = replicant.Variable(np.zeros((100_000, 8), "f4"))
    before = cut.cluster.memories[0].ledger.pushed_bytes

    @replicant.function
    def step(ids):
        with replicant.GradientTape() as tape:
            rows = embedding_lookup(table, ids)
            loss = (rows - 1.0).sum()
        gradient = tape.gradient(loss, table)
        table.scatter_sub(gradient.rows, gradient.values)
        return rows.shape[0]

    assert coordinator.schedule(step, args=(np.array([3, 99_999, 3]),)).fetch() == 3
    assert table.numpy().sum(axis=1).nonzero()[0].tolist() == [3, 99_999]
    assert table.numpy()[[3, 99_999], 0].tolist() == [-2.0, -1.0]
    assert embedding_lookup(table, np.array([99_999, 0]))[:, 0].tolist() == [-1.0, 0.0]
    assert cut.cluster.memories[0].ledger.pushed_bytes - before < 1000


def test_a_tape_in_a_function_that_is_not_compiled_has_the_same_gradients(cut):
    """A function without ``replicant.function``, and one that takes an iterator: both run operation by operation."""
    with cut.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        table = keras.layers.Embedding(4, 1, embeddings_initializer="ones")
        table.build(())
        plain = replicant.Variable(np.ones((4, 1), "f4"))
    loss_of = keras.losses.MeanSquaredError()

    def gradients(x, y):
        with replicant.GradientTape() as tape:
            rows = table(np.array([1, 3, 1])).sum() + embedding_lookup(plain, np.array([1, 3, 1])).sum()
            loss = loss_of(y, model(x, training=True)) + rows
        found = tape.gradient(loss, [*model.trainable_variables, table.embeddings, plain])
        return [g.to_dense(4) if hasattr(g, "to_dense") else g for g in found]

    @replicant.function
    def of_iterator(iterator):
        return gradients(*next(iterator))

    x, y = np.array([[1.0, 2.0]], "f4"), np.array([[1.0]], "f4")
    coordinator = ClusterCoordinator(cut)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: replicant.data.Dataset.from_tensors((x, y))))
    rows = [[0.0], [2.0], [0.0], [1.0]]
    for function, args in ((replicant.function(gradients), (x, y)), (gradients, (x, y)), (of_iterator, (iterator,))):
        found = coordinator.schedule(function, args=args).fetch()
        assert [g.tolist() for g in found] == [[[4.0], [8.0]], [4.0], rows, rows]

    def out_of_range():
        with replicant.GradientTape():
            embedding_lookup(plain, np.array([4]))

    coordinator.schedule(out_of_range)
    with pytest.raises(VariableError, match="has rows 0 to 3, but row 4 was requested"):
        coordinator.join()


def test_fit_takes_a_shuffled_dataset(cut):
    with cut.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    dataset = replicant.data.Dataset.from_tensor_slices((np.ones((8, 2), "f4"), np.ones((8, 1), "f4")))
    model.fit(dataset.shuffle(8).repeat().batch(4), epochs=2, steps_per_epoch=3, verbose=0)  # pyright: ignore[reportArgumentType]
    assert int(model.optimizer.iterations.value) == 6


def test_changes_of_variables_in_every_way(cut):
    coordinator = ClusterCoordinator(cut)
    with cut.scope():
        v, w = replicant.Variable(np.arange(4.0)), replicant.Variable(1.0)

    @replicant.function
    def compiled(x):
        v.assign_add(jnp.full(4, x))
        v.assign_sub(jnp.ones(4))
        w.assign(5.0)
        w.assign_add(1.0)
        return v.value(), w.value()

    def plain(x):
        v.assign_add(np.full(4, x))
        first = v.numpy()
        v.scatter_max([0, 0], [50.0, 60.0])
        v.scatter_mul([1, 1], [2.0, 3.0])
        return first, v.numpy()

    seen = coordinator.schedule(compiled, args=(jnp.asarray(3.0),)).fetch()
    assert [np.asarray(x).tolist() for x in seen] == [[2.0, 3.0, 4.0, 5.0], 6.0]  # what the function sees of its own changes
    assert (v.numpy().tolist(), w.numpy().tolist()) == ([2.0, 3.0, 4.0, 5.0], 6.0)
    first, second = coordinator.schedule(plain, args=(1.0,)).fetch()
    assert first.tolist() == [3.0, 4.0, 5.0, 6.0]
    assert second.tolist() == [60.0, 24.0, 5.0, 6.0] == v.numpy().tolist()
    v.assign(np.zeros(4))
    compiled(jnp.asarray(2.0))  # on the coordinator as well
    assert v.numpy().tolist() == [1.0] * 4


def test_a_learning_rate_set_here_is_used_there(cut):
    coordinator = ClusterCoordinator(cut)
    with cut.scope():
        v, optimizer = keras.Variable([1.0, 1.0]), keras.optimizers.SGD(0.5)
        optimizer.build([v])

    @replicant.function
    def step():
        optimizer.apply([jnp.ones(2)], [v])

    coordinator.schedule(step).fetch()
    optimizer.learning_rate = 0.25
    coordinator.schedule(step).fetch()
    assert np.asarray(v.value).tolist() == [0.25, 0.25]
    optimizer.apply([jnp.ones(2)], [v])  # on the coordinator, at once
    assert np.asarray(v.value).tolist() == [0.0, 0.0]
    assert int(optimizer.iterations.value) == 3


def test_checkpoints_restore_onto_other_shards_and_none(cut, tmp_path):
    keras.utils.set_random_seed(2)
    with cut.scope():
        model, optimizer = dense_model(), keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
    optimizer.apply([jnp.ones(v.shape) for v in model.trainable_variables], model.trainable_variables)
    path = replicant.Checkpoint(model=model, optimizer=optimizer).write(tmp_path / "checkpoint")
    plain, plain_optimizer = dense_model(), keras.optimizers.Adam(0.5)
    replicant.Checkpoint(model=plain, optimizer=plain_optimizer).read(path)
    plain_optimizer.build(plain.trainable_variables)
    for one, other in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    others = replicant.ParameterServerStrategy(ONE_WORKER, MinSizePartitioner(64, 3), transport="threads")
    try:
        with others.scope():
            third, third_optimizer = dense_model(), keras.optimizers.Adam(0.5)
            third_optimizer.build(third.trainable_variables)
        replicant.Checkpoint(model=third, optimizer=third_optimizer).read(path)
        for one, other in zip(third_optimizer.variables, optimizer.variables, strict=True):
            np.testing.assert_array_equal(np.asarray(one.value), np.asarray(other.value))
    finally:
        others.close()


@pytest.mark.parametrize("first", ["model", "optimizer"])
def test_an_optimizer_that_is_not_built_yet_is_restored_onto_the_servers(cut, tmp_path, first):
    keras.utils.set_random_seed(2)

    def grow(model, optimizer):
        optimizer.apply([jnp.ones(v.shape) for v in model.trainable_variables], model.trainable_variables)

    with cut.scope():
        model, optimizer = dense_model(), keras.optimizers.Adam(0.01)
        other, restored = dense_model(), keras.optimizers.Adam(0.5)
    grow(model, optimizer)
    path = replicant.Checkpoint(model=model, optimizer=optimizer).write(tmp_path / "checkpoint")
    named = {"model": other, "optimizer": restored}
    replicant.Checkpoint(**{name: named[name] for name in sorted(named, reverse=first == "optimizer")}).read(path)  # no scope here
    for _ in range(2):
        for one, same in zip([*other.weights, *restored.variables], [*model.weights, *optimizer.variables], strict=True):
            np.testing.assert_array_equal(np.asarray(one.value), np.asarray(same.value))
        grow(model, optimizer)
        grow(other, restored)  # the servers have its slots
    assert int(restored.iterations.value) == 3


@pytest.fixture(scope="module")
def bad(cut):
    coordinator = ClusterCoordinator(cut)
    with cut.scope():
        v = keras.Variable(np.ones((4, 2), "f4"))
    outside = keras.Variable(np.ones((4, 2), "f4"))
    return coordinator, v, outside


def fails(coordinator, fn, error, match):
    with pytest.raises(error, match=match):
        coordinator.schedule(fn).fetch()
    with pytest.raises(error, match=match):
        coordinator.join()


def test_what_cannot_be_done_is_refused(cut, bad):
    coordinator, v, outside = bad
    with cut.scope():
        sgd, adafactor = keras.optimizers.SGD(0.1), keras.optimizers.Adafactor(0.1)
        ema = keras.optimizers.SGD(0.1, use_ema=True)

    def apply(optimizer, variable, then=lambda: None):
        @replicant.function
        def step():
            optimizer.apply([jnp.ones((4, 2))], [variable])
            return then()

        return step

    fails(coordinator, apply(ema, v), ArgumentError, r"SGD\(use_ema=True\) does not work with parameter servers")
    fails(coordinator, apply(adafactor, v), Exception, "Adafactor keeps '.*' of shape")
    fails(coordinator, apply(sgd, v, lambda: v.value), VariableError, "was read after an optimizer was applied to it")
    fails(coordinator, apply(sgd, outside), ArgumentError, "is in this process, not on servers")
    fails(coordinator, lambda: replicant.Variable(1.0), ContextError, "was made inside a scheduled function, on a worker")
    fails(coordinator, object, ArgumentTypeError, "A scheduled function returned <object .* of type object")
    with cut.scope():
        constrained = keras.Variable(np.ones((4, 2), "f4"))
        constrained.constraint = keras.constraints.NonNeg()
    fails(coordinator, apply(keras_sgd(cut), constrained), ArgumentError, "has a constraint and 2 shards")


def keras_sgd(strategy):
    with strategy.scope():
        return keras.optimizers.SGD(0.1)


def test_what_cannot_travel_is_named(cut):
    coordinator = ClusterCoordinator(cut)
    lock = threading.Lock()
    with pytest.raises(
        UnserializableError, match=r"The function '.*lambda>' cannot be sent to a worker: .*lock .*cannot be pickled"
    ):
        coordinator.schedule(lambda: lock.locked() or 1)
    other = replicant.OneDeviceStrategy("cpu:0")
    with pytest.raises(UnserializableError, match="only the ParameterServerStrategy itself exists on the workers"):
        coordinator.schedule(lambda: other.num_replicas_in_sync)
    with pytest.raises(ArgumentTypeError, match=r"args must be a tuple or list .* Write args=\(value,\)"):
        coordinator.schedule(lambda x: x, args=3)


def test_arguments_of_the_coordinator(cut):
    with pytest.raises(ArgumentError, match=r"max_staleness must be a whole number >= 0, or None for no bound. Received: -1"):
        ClusterCoordinator(cut, max_staleness=-1)
    with pytest.raises(ArgumentError, match="was made with max_staleness=None, which cannot change to 3"):
        ClusterCoordinator(cut, max_staleness=3)
    for make in (iter([]), 5):
        with pytest.raises(ArgumentTypeError, match="create_per_worker_dataset takes a dataset"):
            ClusterCoordinator(cut).create_per_worker_dataset(make)
    with pytest.raises(ArgumentTypeError, match="create_per_worker_resource takes a function; got 3"):
        ClusterCoordinator(cut).create_per_worker_resource(3)
    with pytest.raises(ArgumentError, match="embedding_lookup takes a variable; got 3"):
        embedding_lookup(3, [0])


def test_an_unknown_transport():
    with pytest.raises(ArgumentError, match=r"must be 'local', 'ray' or 'threads'\. Received: 'tcp'"):
        replicant.ParameterServerStrategy(transport="tcp")


def test_fresh_lambdas_are_one_function(cut):
    coordinator = ClusterCoordinator(cut)
    before = len(coordinator._dispatcher._functions._packed)
    assert coordinator.fetch([coordinator.schedule(lambda x: x + 1, args=(i,)) for i in range(5)]) == [1, 2, 3, 4, 5]
    assert len(coordinator._dispatcher._functions._packed) == before + 1


def test_waiting_has_an_end():
    strategy = replicant.ParameterServerStrategy(ONE_WORKER, transport="threads")
    try:
        coordinator = ClusterCoordinator(strategy)
        slow = coordinator.schedule(lambda: time.sleep(1.0) or 1)
        with pytest.raises(LostProcessError, match=r"1 closures have not ended within 0.01 s. worker 0 has"):
            coordinator.join(timeout=0.01)
        with pytest.raises(LostProcessError, match=r"Closure \d+ has not ended within 0.01 s"):
            slow.fetch(timeout=0.01)
        assert slow.fetch() == 1
        coordinator.join(timeout=60)
    finally:
        strategy.close()
    with pytest.raises(LostProcessError, match="has ended its workers and servers"):
        coordinator.join()


def test_one_function_at_a_time_is_never_stale():
    strategy = replicant.ParameterServerStrategy(transport="threads")
    try:
        coordinator = ClusterCoordinator(strategy, max_staleness=0)
        with strategy.scope():
            v = replicant.Variable(0.0)

        def read_then_write():
            v.assign(v.numpy() + 1)  # loses updates wherever two overlap

        for _ in range(30):
            coordinator.schedule(read_then_write)
        coordinator.join()
        assert v.numpy() == 30.0
        assert coordinator.stats()["staleness"][1:] == []
    finally:
        strategy.close()


@pytest.mark.long
def test_fit_trains_on_the_workers(cut):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(256, 8)).astype("f4")
    y = (x.sum(axis=1) > 0).astype("int32")
    keras.utils.set_random_seed(3)
    with cut.scope():
        model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    ended = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ended.append((epoch, sorted(logs))))
    history = model.fit(x, y, batch_size=32, epochs=6, validation_data=(x, y), callbacks=[callback], verbose=0).history
    assert ended == [(i, ["accuracy", "loss", "val_accuracy", "val_loss"]) for i in range(6)]
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["val_accuracy"][-1] > 0.9
    assert int(model.optimizer.iterations.value) == 6 * 8
    assert model.evaluate(x, y, verbose=0, return_dict=True)["loss"] == pytest.approx(history["val_loss"][-1], abs=1e-6)
    dataset = replicant.data.Dataset.from_tensor_slices((x, y)).batch(32)
    with pytest.raises(ArgumentError, match="needs steps_per_epoch: every worker reads its own copy of the dataset"):
        model.fit(dataset)
    with pytest.raises(ArgumentError, match="does not take class_weight="):
        model.fit(x, y, class_weight={0: 2.0})
    assert len(model.fit(dataset.repeat, steps_per_epoch=3, verbose=0).history["loss"]) == 1
