"""One of some workers that train by local SGD: writes what their weights are."""

import contextlib
import json
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import replicant

STEPS = int(sys.argv[1])
OUTER = json.loads(sys.argv[2])
PARTS = sys.argv[3].split(",")
strategy = replicant.LocalSGDStrategy(local_steps=STEPS, **OUTER)

import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

Dataset = replicant.data.Dataset
RANK, N = strategy.topology.worker_index, strategy.topology.num_workers
FOLDER = Path(os.environ["ANSWER"]).parent
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(26, 4)).astype(np.float32), rng.normal(size=(26, 1)).astype(np.float32)
BATCHES = [7, 4, 0]  # of each worker in "uneven"


def weights_of(model):
    return [np.asarray(w).tolist() for w in model.get_weights()]


def dense_model(optimizer, *layers):
    keras.utils.set_random_seed(RANK)  # the chief's weights count
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        model.compile(optimizer, "mse", metrics=["mae"])
    return model


def looped(batches, steps, variable=None):
    """A custom loop of linear regression by SGD."""
    with strategy.scope():
        weight = replicant.Variable(np.full((4, 1), 1.0 + RANK, np.float32)) if variable is None else variable
        count = replicant.Variable(np.int32(0), trainable=False)
        seen = replicant.Variable(np.float32(0), trainable=False)

    def replica_step(x, y):
        with replicant.GradientTape() as tape:
            loss = jnp.mean((x @ weight.value() - y) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        count.assign_add(1)
        seen.assign_add(1.0)

    rounds = strategy.rounds([weight, count, seen])
    for _ in range(steps):
        for batch in rounds.over(batches):
            strategy.run(replica_step, args=batch)
    return {
        "weight": weight.numpy().tolist(),
        "count": int(count.numpy()),
        "seen": float(seen.numpy()),
        "rounds": rounds.num_rounds,
    }


def alike():
    """A custom loop over global batches, of which each worker takes its share; the last ones are smaller."""
    return looped(strategy.experimental_distribute_dataset(Dataset.from_tensor_slices((X, Y)).batch(12)), 2)


def uneven():
    """Each worker has a number of batches of its own, of another size."""
    size = RANK + 2
    rows = [np.arange(i * size, (i + 1) * size) % 26 for i in range(BATCHES[RANK])]
    return looped([(jnp.asarray(X[i]), jnp.asarray(Y[i])) for i in rows], 1)


def fit():
    """`fit` on arrays, on a dataset, and with fewer steps than a round has; what is evaluated."""
    model = dense_model(keras.optimizers.SGD(0.1))
    history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, validation_data=(X, Y)).history
    evaluated = model.evaluate(X, Y, verbose=0)
    predicted = model.predict(X[:3], verbose=0).tolist()
    after = weights_of(model)
    data = Dataset.from_tensor_slices((X, Y)).shuffle(26).batch(8)
    model.fit(data, epochs=2, verbose=0)
    unknown = Dataset.from_generator(lambda: iter([(X[:6], Y[:6]), (X[6:10], Y[6:10])]))
    model.fit(unknown, epochs=2, verbose=0)
    return {
        "weights": after,
        "val_loss": history["val_loss"],
        "evaluated": evaluated,
        "predicted": predicted,
        "after datasets": weights_of(model),
    }


def statistics():
    """Statistics of batches become the mean; what draws random numbers goes on by itself."""
    model = dense_model(
        keras.optimizers.Adam(0.01), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.5, seed=RANK)
    )
    model.fit(X[:24], Y[:24], batch_size=12, shuffle=False, verbose=0)
    norm = model.layers[0]
    seed = model.layers[1].seed_generator.state
    return {"mean": np.asarray(norm.moving_mean).tolist(), "weights": weights_of(model), "seed": np.asarray(seed).tolist()}


class Power(keras.callbacks.Callback):
    def __init__(self, last):
        super().__init__()
        self.last, self.seen = last, 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen == self.last:
            raise RuntimeError("gone")


def resume():
    """An interrupted `fit`, and an interrupted loop, in the middle of a round: they go on as if they had not been interrupted."""

    def trained(name, last=0):
        backup = replicant.keras.callbacks.BackupAndRestore(FOLDER / name, save_freq=1)
        model = dense_model(keras.optimizers.Adam(0.05), keras.layers.Dropout(0.3, seed=RANK))
        model.fit(X, Y, batch_size=6, epochs=3, verbose=0, callbacks=[backup, Power(last)])
        return weights_of(model)

    uninterrupted = trained("one")
    with contextlib.suppress(RuntimeError):
        trained("other", last=7)
    found: dict[str, Any] = {"fit": [uninterrupted, trained("other")]}

    def loop(stop=0, path=None):
        model = dense_model(keras.optimizers.Adam(0.05))
        optimizer = model.optimizer
        with strategy.scope():
            optimizer.build(model.trainable_variables)
        rounds = strategy.rounds(model.weights)

        def step(x, y):
            with replicant.GradientTape() as tape:
                loss = replicant.compute_average_loss(jnp.sum((model(x, training=True) - y) ** 2, -1))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))

        batches = iter(strategy.experimental_distribute_dataset(Dataset.from_tensor_slices((X, Y)).repeat(2).batch(6)))
        checkpoint = replicant.Checkpoint(model=model, optimizer=optimizer, rounds=rounds, batches=batches)
        if path is not None:
            checkpoint.restore(path).assert_consumed()
        for number, batch in enumerate(rounds.over(batches), start=1):
            strategy.run(step, args=batch)
            if number == stop:
                break
        if stop:
            return checkpoint.save(f"{strategy.own_folder(FOLDER / 'loop')}/ckpt")
        return weights_of(model)

    whole = loop()
    found["loop"] = [whole, loop(path=loop(stop=4))]
    try:
        replicant.Checkpoint(x=replicant.Variable(1.0)).save(f"{FOLDER}/ckpt")
    except replicant.errors.CheckpointError as error:
        found["refused"] = str(error)
    return found


class Steps(keras.callbacks.Callback):
    """Counts the steps of this call of `fit`: in a list outside, because a backup restores what callbacks have."""

    def __init__(self, last):
        super().__init__()
        self.last = last
        counted.clear()

    def on_train_batch_end(self, batch, logs=None):
        counted.append(batch)
        if len(counted) == self.last:
            raise RuntimeError("gone")


counted: list[int] = []


def newest(folder):
    return max((folder / f"worker-{RANK}").glob("backup-*"), key=lambda path: int(path.name.partition("-")[2]))


def older(folder):
    if RANK == 1:
        shutil.rmtree(newest(folder))


def damaged(folder):
    if RANK == 0:
        file = newest(folder) / "arrays.bin"
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)


def gone(folder):
    if RANK == 1:
        shutil.rmtree(folder / "worker-1")


def foreign(folder):
    """What a worker left there that is no more."""
    if RANK == 0:
        shutil.copytree(folder / "worker-0", folder / f"worker-{N}")


def lost():
    """Interrupted fits whose workers have not the same backups: all go on from the newest one that all have."""

    def trained(folder, last=0):
        backup = replicant.keras.callbacks.BackupAndRestore(folder, save_freq=2)
        model = dense_model(keras.optimizers.Adam(0.05), keras.layers.Dropout(0.3, seed=RANK))
        try:
            model.fit(X, Y, batch_size=6, epochs=4, verbose=0, callbacks=[backup, Steps(last)])
        except RuntimeError:
            backup.sync()
        return weights_of(model), len(counted)

    found = {"uninterrupted": trained(FOLDER / "never")}
    for change in (older, damaged, gone, foreign):
        folder = FOLDER / change.__name__
        trained(folder, last=14 + RANK)
        change(folder)
        strategy.workers.exchange("changed", "")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            weights, steps = trained(folder)
        strategy.workers.exchange("ended", "")
        skipped = [str(each.message) for each in told if "Skipped" in str(each.message)]
        left = sorted(str(path.relative_to(folder)) for path in folder.rglob("backup-*"))
        found[change.__name__] = [weights, steps, skipped, left]
    return found


def rounds_apart():
    """One worker loops once more than the other: nobody waits for ever."""
    try:
        looped([(jnp.asarray(X), jnp.asarray(Y))], 1 + RANK)
    except replicant.errors.WorkerError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


answer = {name: globals()[name]() for name in PARTS}
Path(os.environ["ANSWER"]).write_text(json.dumps(answer))
