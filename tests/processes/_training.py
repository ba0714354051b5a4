"""The programs that tests run in several processes, and in one for comparison: custom loops, fit, and the methods of strategies."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import AxisType, Mesh

import replicant
from replicant.data import AutoShardPolicy, Dataset, Options

NUM_ROWS, BATCH = 22, 8  # the last batch has 6 rows: 3 and 3, 2 2 2, or 2 2 2 0


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(NUM_ROWS, 6)).astype(np.float32), rng.integers(0, 3, NUM_ROWS).astype(np.int32)


def custom_loop(strategy: Any, *, dropout: float = 0.0, seed: int | None = 1) -> dict[str, Any]:
    """Train a model with a metric and Adam for two epochs."""
    if seed is not None:
        keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dropout(dropout), keras.layers.Dense(3)]
        )
        optimizer, accuracy = keras.optimizers.Adam(0.05), keras.metrics.SparseCategoricalAccuracy()
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(x: Any, y: Any) -> Any:
        with replicant.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = replicant.compute_average_loss(loss_object(y, predictions), global_batch_size=BATCH)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        accuracy.update_state(y, predictions)
        return loss

    @replicant.function
    def distributed_train_step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(train_step, args=batch))

    dataset = Dataset.from_tensor_slices(rows()).shuffle(NUM_ROWS, seed=3).batch(BATCH)
    batches = strategy.experimental_distribute_dataset(dataset)
    losses, accuracies = [], []
    for _ in range(2):
        losses += [float(distributed_train_step(batch)) for batch in batches]
        accuracies.append(float(accuracy.result()))
        accuracy.reset_state()
    return {"losses": losses, "accuracies": accuracies, "weights": _lists(model.get_weights())}


def fit(strategy: Any) -> dict[str, Any]:
    """Train a model with batch statistics in fit for two epochs, then evaluate and predict. All have a smaller last batch."""
    keras.utils.set_random_seed(2)
    x, y = rows()
    with strategy.scope():
        layers = [keras.layers.Dense(5, use_bias=False), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return {
        "history": history.history,
        "evaluate": [float(value) for value in model.evaluate(x, y, batch_size=BATCH, verbose=0)],
        "predict": model.predict(x, batch_size=BATCH, verbose=0).tolist(),
        "weights": _lists(model.get_weights()),
    }


class TwoOptimizers(keras.Model):
    """A model with a step in TensorFlow's form and an optimizer for each of its two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(3)
        self.optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1, momentum=0.9)]
        self.total = keras.metrics.Mean(name="loss")

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with replicant.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, self.second(self.first(x)), from_logits=True)
            loss = keras.ops.mean(losses)
        parts = [self.first.trainable_variables, self.second.trainable_variables]
        for optimizer, part, gradients in zip(self.optimizers, parts, tape.gradient(loss, parts), strict=True):
            optimizer.apply_gradients(zip(gradients, part, strict=True))
        self.total.update_state(losses)
        return {"loss": self.total.result()}


def own_step(strategy: Any) -> dict[str, Any]:
    """Train a model with a step of its own in fit for two epochs, with a smaller last batch."""
    keras.utils.set_random_seed(2)
    x, y = rows()
    with strategy.scope():
        model = TwoOptimizers()
        model.compile()
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    slots = _lists(variable.value for optimizer in model.optimizers for variable in optimizer.variables)
    by_number = {str(i): slot for i, slot in enumerate(slots)}
    return {"history": history.history, "weights": _lists(model.get_weights()), "slots": by_number}


def values(strategy: Any) -> dict[str, Any]:
    """Return what run, reduce, gather, variables and values from functions give."""
    n = strategy.num_replicas_in_sync
    ids = strategy.experimental_distribute_values_from_function(lambda context: np.float32(context.replica_id_in_sync_group))
    stairs = strategy.experimental_distribute_values_from_function(
        lambda context: np.full((context.replica_id_in_sync_group + 1, 2), context.replica_id_in_sync_group, np.float32)
    )
    numbers = strategy.experimental_distribute_values_from_function(lambda context: 10 * context.replica_id_in_sync_group)
    with strategy.scope():
        total = replicant.Variable(float(n), aggregation="SUM")
        own = replicant.Variable(0.0, synchronization="ON_READ", aggregation="SUM")

    def step(x: Any, number: Any) -> Any:
        context = replicant.get_replica_context()
        total.assign_add(x)
        own.assign_add(x + number)
        return context.all_reduce("MEAN", x), x + 1, context.all_gather(x[None], 0)

    mean, added, gathered = strategy.run(step, args=(ids, numbers))
    (first,) = strategy.run(lambda x: (x * 2,), args=(stairs,))
    result = {
        "sum": float(strategy.reduce("SUM", ids)),
        "mean of rows": float(strategy.reduce("MEAN", stairs, axis=(0, 1))),
        "gather": np.asarray(strategy.gather(stairs, 0)).tolist(),
        "total": float(total.value()),
        "own": float(own.value()),
        "all_reduce": float(np.asarray(mean)),
        "all_gather": np.asarray(gathered).tolist(),
        "ragged": np.asarray(strategy.gather(first, 0)).tolist(),
        "local": [float(x) for x in strategy.experimental_local_results(added)],
        "local stairs": [np.shape(x)[0] for x in strategy.experimental_local_results(stairs)],
    }
    total.assign(7.0)  # on the host, before the next step
    strategy.run(lambda x: total.assign_add(x - x + 1), args=(ids,))
    return result | {"assigned": float(total.value())}


def meshes(strategy: Any) -> list[Any]:
    """Return what the user computes beside a strategy: without a mesh, with one of all devices, and with one of this worker's."""

    def numbers() -> list[Any]:
        with strategy.scope():
            variable = replicant.Variable(jnp.ones(3), aggregation="SUM")
        ids = strategy.experimental_distribute_values_from_function(lambda context: 1.0 * context.replica_id_in_sync_group)
        strategy.run(lambda x: variable.assign_add(jnp.ones(3) * x), args=(ids,))
        variable.assign_sub(jnp.full(3, 2.0))  # this array lies on the mesh that is set
        total = jnp.ones(()) + strategy.reduce("SUM", ids)
        gathered = strategy.gather(strategy.run(lambda x: x[None], args=(ids,)), 0) * jnp.full(strategy.num_replicas_in_sync, 2.0)
        return _lists([total, variable + 1, variable.value() * jnp.ones(3), gathered])

    found = [numbers()]
    for devices in (jax.devices(), jax.local_devices()[::-1]):
        with jax.set_mesh(Mesh(np.array(devices), ("x",), axis_types=(AxisType.Explicit,))):
            found.append(numbers())
    return found


def own_data(strategy: Any) -> dict[str, Any]:
    """Read datasets of which the workers have their own parts, of unequal lengths."""
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    off = strategy.experimental_distribute_dataset(Dataset.range(7).batch(4).with_options(options))
    uneven = strategy.distribute_datasets_from_function(lambda context: Dataset.range(3 + 4 * context.input_pipeline_id).batch(2))
    texts = Dataset.from_tensor_slices((np.arange(5), np.array([f"row {i}" for i in range(5)]))).batch(4)

    def local(value: Any) -> list[Any]:
        return [np.asarray(x).tolist() for x in strategy.experimental_local_results(value)]

    shuffled = strategy.experimental_distribute_dataset(Dataset.range(20).shuffle(20).batch(4))
    unseeded = [x for batch in shuffled for x in local(batch)]
    named = [
        [local(strategy.run(lambda number, name: (number, name), args=batch)[1]), int(strategy.reduce("SUM", batch[0], axis=0))]
        for batch in strategy.experimental_distribute_dataset(texts)
    ]
    iterator = iter(uneven)
    next(iterator)
    state = iterator.state()
    rest = [local(batch) for batch in iterator]
    again = iter(uneven)
    again.restore(state)
    return {
        "off": [local(batch) for batch in off],
        "uneven": [[local(batch), np.asarray(strategy.gather(batch, 0)).tolist()] for batch in uneven],
        "texts": named,
        "unseeded": unseeded,
        "rest": [rest, [local(batch) for batch in again]],
    }


def summaries(strategy: Any, folder: str) -> list[bool]:
    """Write a summary on every worker."""
    loss = strategy.reduce("SUM", strategy.run(lambda: replicant.get_replica_context().replica_id_in_sync_group))
    writer = replicant.summary.create_file_writer(folder)
    with writer.as_default():
        written = replicant.summary.scalar("loss", loss, step=1)
    writer.close()
    return [written, strategy.extended.experimental_between_graph]


def checkpoints(strategy: Any, folder: str) -> dict[str, Any]:
    """Save and restore checkpoints together."""

    def name(path: str) -> str:
        return Path(path).name

    with strategy.scope():
        counter = replicant.Variable(1.0)
        own = replicant.Variable(0.0, synchronization="ON_READ", aggregation="SUM")
    strategy.run(lambda: own.assign_add(replicant.get_replica_context().replica_id_in_sync_group.astype("float32")))
    manager = replicant.CheckpointManager(replicant.Checkpoint(counter=counter, own=own), folder, max_to_keep=2)
    paths = []
    for value in (2.0, 3.0, 4.0):
        counter.assign(value)
        paths.append(name(manager.save() or ""))
    counter.assign(0.0)
    own.assign(0.0)
    restored = name(manager.restore_or_initialize() or "")
    strategy.run(lambda: own.assign_add(0.0 * own.value()))  # each replica gets its copy back
    strategy.run(lambda: counter.assign(counter.value() + 1))
    names = sorted(each.name for each in Path(folder).iterdir() if not each.name.startswith("."))
    return {
        "paths": paths,
        "restored": restored,
        "counter": float(counter.value()),
        "own": float(own.value()),
        "found": names,
        "copies": [float(x) for x in own.values],
    }


def callbacks(strategy: Any, folder: str) -> dict[str, Any]:
    """Interrupt and resume a fit with callbacks that write files."""
    x, y = rows()

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise KeyboardInterrupt

    def train(name: str, *, interrupt: bool) -> list[Any]:
        keras.utils.set_random_seed(4)
        with strategy.scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
            model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        used = [
            replicant.keras.callbacks.BackupAndRestore(f"{folder}/{name}", save_freq=1),
            keras.callbacks.CSVLogger(f"{folder}/{name}-{strategy.topology.worker_index}.csv"),
            keras.callbacks.ModelCheckpoint(f"{folder}/{name}-{strategy.topology.worker_index}.weights.h5", save_weights_only=True),
        ]
        try:
            model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[*used, *[Interrupt()] * interrupt])
        except KeyboardInterrupt:
            return train(name, interrupt=False)
        return _lists(model.get_weights())

    plain, resumed = train("plain", interrupt=False), train("resumed", interrupt=True)
    return {"plain": plain, "resumed": resumed}


def cases(names: str, strategy: Any, folder: str) -> dict[str, Any]:
    """Return the results of the named cases."""
    made = {
        "values": lambda: values(strategy),
        "loop": lambda: custom_loop(strategy),
        "dropout": lambda: custom_loop(strategy, dropout=0.4),
        "unseeded": lambda: custom_loop(strategy, seed=None),
        "fit": lambda: fit(strategy),
        "meshes": lambda: meshes(strategy),
        "own_step": lambda: own_step(strategy),
        "own_data": lambda: own_data(strategy),
        "checkpoints": lambda: checkpoints(strategy, f"{folder}/checkpoints"),
        "callbacks": lambda: callbacks(strategy, folder),
        "summaries": lambda: summaries(strategy, f"{folder}/summaries"),
    }
    return {name: made[name]() for name in names.split()}


def _lists(arrays: Any) -> list[Any]:
    return [np.asarray(array).tolist() for array in arrays]
