"""What tests train with variables in slices, in several processes and on one device for comparison."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

import replicant
from replicant.data import Dataset

NUM_ROWS, BATCH, CLASSES = 20, 8, 4  # the last batch has 4 rows
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
MEAN_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "loss scaling": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
    "moving average": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2),
}


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels."""
    draw = np.random.default_rng(0)
    return draw.normal(size=(NUM_ROWS, 6)).astype("float32"), draw.integers(0, CLASSES, NUM_ROWS)


def mlp() -> keras.Model:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(CLASSES)])


def cnn() -> keras.Model:
    layers = keras.layers
    convolution = layers.Conv2D(8, 2, padding="same", use_bias=False)  # a bias before the normalization has no gradient
    normal = [layers.Reshape((3, 2, 1)), convolution, layers.BatchNormalization(), layers.ReLU()]
    return keras.Sequential([keras.Input((6,)), *normal, layers.Flatten(), layers.Dense(CLASSES)])


def transformer() -> keras.Model:
    layers = keras.layers
    given = keras.Input((6,))
    x = layers.Dense(16)(layers.Reshape((6, 1))(given))
    normal = layers.LayerNormalization()(x)
    attention = layers.MultiHeadAttention(2, 8, use_bias=False)  # a bias of the keys has no gradient
    x = x + attention(normal, normal, use_causal_mask=True)
    x = x + layers.Dense(16)(layers.Dense(32, activation="gelu")(layers.LayerNormalization()(x)))
    return keras.Model(given, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def micro_batches(strategy: Any, folder: str = "", *, steps: int = 2) -> dict[str, Any]:
    """Train in micro-batches of one row or two, with `fit` and with a custom loop."""
    del folder
    keras.utils.set_random_seed(3)
    with strategy.scope():
        fitted, model, optimizer = mlp(), mlp(), keras.optimizers.Adam(0.01)
        fitted.compile(keras.optimizers.Adam(0.01), MEAN_LOSS, metrics=["accuracy"])
    replicant.keras.use_micro_batches(fitted, steps)
    history = fitted.fit(*rows(), batch_size=BATCH, epochs=2, verbose=0, shuffle=False).history

    def loss_of(x: Any, y: Any) -> Any:
        return replicant.compute_average_loss(LOSS(y, model(x, training=True)), global_batch_size=BATCH)

    gradients_of = replicant.value_and_grad(loss_of, model.trainable_variables, accumulate_steps=steps)

    def step(batch: Any) -> Any:
        loss, gradients = gradients_of(*batch)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    batches = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(rows()).batch(BATCH))
    losses = [float(strategy.reduce("SUM", strategy.run(step, args=(batch,)))) for batch in batches]
    weights = [lists(each.get_weights()) for each in (fitted, model)]
    return {"loss": history["loss"], "accuracy": history["accuracy"], "losses": losses, "fitted": weights[0], "model": weights[1]}


def memory_refused(strategy: Any, folder: str) -> str:
    """Return what `memory` says under a strategy over several workers."""
    del folder
    with strategy.scope():
        model = mlp()
        model.compile("sgd", MEAN_LOSS)
    try:
        return str(strategy.memory(model, rows()))
    except replicant.errors.ArgumentError as error:
        return str(error)


def loop(strategy: Any, optimizer_name: str, model_name: str) -> Any:
    """Train with a custom loop. Return the losses, the model and the optimizer."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model, optimizer = MODELS[model_name](), OPTIMIZERS[optimizer_name]()

    def step(batch: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(LOSS(batch[1], model(batch[0], training=True)), global_batch_size=BATCH)
            scaled = optimizer.scale_loss(loss) if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else loss
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    total = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(step, args=(batch,))))
    batches = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(rows()).batch(BATCH))
    losses = [float(total(batch)) for _ in range(2) for batch in batches]
    return losses, model, optimizer


_trained: dict[tuple[Any, ...], Any] = {}


def trained(strategy: Any, *names: str) -> Any:
    """Return what `loop` returns. It trains once for all cases of a process, which leave the weights as they are."""
    key = (strategy, *names)
    if key not in _trained:
        _trained[key] = loop(strategy, *names)
    return _trained[key]


def train(strategy: Any, how: str) -> dict[str, Any]:
    """Train as `how` says, such as "fit adam mlp", and return numbers that do not depend on devices."""
    way, optimizer_name, model_name = how.split(",")
    if way == "loop":
        losses, model, optimizer = trained(strategy, optimizer_name, model_name)
        return {"losses": losses, "weights": lists(model.get_weights()), "slots": lists(v.numpy() for v in optimizer.variables)}
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = MODELS[model_name]()
        model.compile(OPTIMIZERS[optimizer_name](), MEAN_LOSS)
    x, y = rows()
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return {
        "losses": history.history["loss"],
        "evaluate": float(model.evaluate(x, y, batch_size=BATCH, verbose=0)),
        "predict": model.predict(x, batch_size=BATCH, verbose=0).tolist(),
        "weights": lists(model.get_weights()),
    }


def own_variables(strategy: Any) -> dict[str, Any]:
    """Assign and read variables without Keras, with `value_and_grad`."""
    with strategy.scope():
        weight = replicant.Variable(np.arange(16, dtype="float32").reshape(4, 4), name="weight")
    ids = strategy.experimental_distribute_values_from_function(lambda context: np.float32(context.replica_id_in_sync_group))

    def step(x: Any) -> Any:
        _, (gradient,) = replicant.value_and_grad(lambda: (weight.value() * x).sum() / 2, [weight])()
        total = replicant.get_replica_context().all_reduce("SUM", gradient)
        weight.assign_sub(total)
        return total

    strategy.run(step, args=(ids,))
    stepped = weight.numpy().tolist()
    pieces = [list(shard.data.shape) for shard in weight._ref.get_raw()[0].addressable_shards]
    shown = repr(weight)
    weight.assign(weight.value() * 2)
    again = weight.numpy().tolist()
    weight.assign_add(np.ones((4, 4), "float32"))
    strategy.run(step, args=(ids,))
    copies = [np.asarray(copy).tolist() for copy in weight.values]
    return {
        "stepped": stepped, "pieces": pieces, "shown": shown, "doubled": again, "added": weight.numpy().tolist(), "copies": copies,
        "row": np.asarray(weight[1]).tolist(), "sum": float((weight + 1).sum()),
        "function": np.asarray(replicant.function(lambda: weight.value() * 2)()).tolist(),  # outside of the scope, without `run`
    }  # fmt: skip


class Counter(keras.layers.Layer):
    """Has a weight of which each replica has a copy. Keras saves their sum."""

    def build(self, shape: Any) -> None:
        self.total = keras.Variable(0.0, trainable=False, synchronization="on_read", aggregation="sum")

    def call(self, x: Any) -> Any:
        return x


def counted(strategy: Any, folder: str) -> float:
    """Save and load a model with a counter. Return what it has counted."""
    with strategy.scope():
        model, other = (keras.Sequential([keras.Input((6,)), Counter(), keras.layers.Dense(16)]) for _ in range(2))
    strategy.run(lambda: model.layers[0].total.assign_add(1.0))
    model.save_weights(f"{folder}/counted.weights.h5")
    other.load_weights(f"{folder}/counted.weights.h5")
    return float(other.layers[0].total.numpy())


def model_files(strategy: Any, folder: str) -> dict[str, Any]:
    """Save and load the model of a loop and of a fit, in Keras's files."""
    _, model, _ = trained(strategy, "adam", "mlp")
    weights = lists(model.get_weights())
    model.save_weights(f"{folder}/loop.weights.h5")
    with strategy.scope():
        other = mlp()
        other.load_weights(f"{folder}/loop.weights.h5")
    x, y = rows()
    predicted = other.predict(x, batch_size=BATCH, verbose=0).tolist()
    keras.utils.set_random_seed(3)
    with strategy.scope():
        fitted = mlp()
        fitted.compile("adam", MEAN_LOSS)
    checkpoint = keras.callbacks.ModelCheckpoint(f"{folder}/best.keras", monitor="loss", save_best_only=True)
    fitted.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[checkpoint])
    fitted.save(f"{folder}/model.keras")
    keras.saving.save_model(fitted, f"{folder}/function.keras")
    with strategy.scope():
        loaded = keras.models.load_model(f"{folder}/model.keras")
    slots = lists(v.numpy() for v in loaded.optimizer.variables)
    loaded.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
    table: list[str] = []
    fitted.summary(print_fn=lambda line, **_: table.append(line))
    return {
        "weights": weights,
        "loaded": lists(other.get_weights()),
        "predicted": predicted,
        "fitted": lists(fitted.get_weights()),
        "slots": slots,
        "continued": lists(loaded.get_weights()),
        "counted": counted(strategy, folder),
        "table": "Total params" in "\n".join(table),
        "explained": [str(strategy.explain(fitted)), str(strategy.explain(fitted.optimizer))],
    }


class Product(keras.layers.Layer):
    """A layer whose output Keras finds by tracing its `call`."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 2048))

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, self.kernel)


def large(strategy: Any, folder: str) -> dict[str, Any]:
    """Make, assign, load and train a kernel of 16 MiB. Return the shapes of this worker's pieces, and sums over parts of it."""
    keras.utils.set_random_seed(5)
    pieces, sums = [], []

    def note(kernel: Any) -> None:
        pieces.append([list(shard.data.shape) for shard in kernel._value.addressable_shards])
        sums.append(np.asarray(kernel.numpy())[::512].sum(axis=1).tolist())

    with strategy.scope():
        given = keras.Input((2048,))
        model = keras.Model(given, Product()(given))
    (kernel,) = model.weights
    note(kernel)
    kernel.assign(np.arange(2048 * 2048, dtype="float32").reshape(2048, 2048) % 7)
    note(kernel)
    path = replicant.Checkpoint(model=model).save(f"{folder}/ckpt")
    kernel.assign(np.zeros((2048, 2048), "float32"))
    replicant.Checkpoint(model=model).restore(path)
    note(kernel)
    x = np.ones((6, 2048), "float32") / 2048
    sums.append(model.predict(x, verbose=0)[:, ::512].tolist())
    y = np.ones((6, 2048), "float32")
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    sums += [np.asarray(model.train_on_batch(x, y)).tolist() for _ in range(2)]
    sums += model.fit(x, y, batch_size=4, epochs=2, verbose=0).history.values()
    sums.append(np.abs(model.optimizer.variables[-1].numpy())[::512].sum(axis=1).tolist())
    sums.append(keras.Model(given, model.output * 2).predict(x, verbose=0)[:, ::512].tolist())  # made outside of the scope
    sums.append(float(jax.jit(lambda: jnp.mean(kernel.value))()))  # on all workers, outside of a program of ours
    note(kernel)
    return {"pieces": pieces, "sums": sums}


def checkpoints(strategy: Any, folder: str) -> dict[str, Any]:
    """Train, save a checkpoint in the background, lose the weights and go back."""
    losses, model, optimizer = trained(strategy, "adam", "mlp")
    checkpoint = replicant.Checkpoint(model=model, optimizer=optimizer)
    manager = replicant.CheckpointManager(checkpoint, folder, max_to_keep=2)
    path = manager.save(options=replicant.CheckpointOptions(enable_async=True))
    saved = lists(model.get_weights())
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    checkpoint.restore(path).assert_consumed()  # which waits for the save
    manifest = json.loads((Path(path or "") / "manifest.json").read_text())
    return {
        "name": Path(path or "").name,
        "files": sorted(file.name for file in Path(path or "").iterdir()),
        "writers": [part["writer"] for part in manifest.get("parts", [])],
        "saved": saved,
        "restored": lists(model.get_weights()),
        "losses": losses,
    }


def goes_on(strategy: Any, folder: str) -> dict[str, Any]:
    """Restore what `checkpoints` has saved, on any number of devices, and take a step."""
    keras.utils.set_random_seed(9)
    with strategy.scope():
        model, optimizer = mlp(), OPTIMIZERS["adam"]()
    checkpoint = replicant.Checkpoint(model=model, optimizer=optimizer)
    checkpoint.restore(replicant.latest_checkpoint(folder)).assert_consumed()

    def step(x: Any, y: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(LOSS(y, model(x, training=True)), global_batch_size=BATCH)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))

    for batch in strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(rows()).batch(BATCH)):
        strategy.run(step, args=batch)
    return {"weights": lists(model.get_weights()), "slots": lists(v.numpy() for v in optimizer.variables)}


def backup(strategy: Any, folder: str) -> list[Any]:
    """Train in fit with backups after every step, and say where it is. Return the weights."""
    keras.utils.set_random_seed(4)
    x, y = rows()

    class Told(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            print(f"epoch {self.epoch} batch {batch}", flush=True)
            time.sleep(0.5 if os.environ.get("SLOWLY") else 0)

    with strategy.scope():
        model = mlp()
        model.compile("adam", MEAN_LOSS)
    backups = replicant.keras.callbacks.BackupAndRestore(folder, save_freq=1, delete_checkpoint=False)
    model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[backups, Told()])
    return lists(model.get_weights())


def lists(arrays: Any) -> list[Any]:
    """Return arrays as JSON can hold them."""
    return [np.asarray(array).tolist() for array in arrays]
