"""One worker, which repeats the training that was recorded from TensorFlow, and reads its shares of datasets.

The environment variable CASES names a file that says which cases to run, and ANSWER the file to write.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import replicant

strategy = replicant.MultiWorkerMirroredStrategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import test_autoshard as autoshard  # noqa: E402

from replicant import GradientTape, compute_average_loss  # noqa: E402
from replicant.data import Dataset  # noqa: E402

asked = json.loads(Path(os.environ["CASES"]).read_text())
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.05),
}


def new_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])
    model.set_weights([np.asarray(w, np.float32) for w in asked["W0"]])
    return model


def data_of(num_rows):
    return np.asarray(asked["X"][:num_rows], np.float32), np.asarray(asked["Y"][:num_rows], np.int32)


def lists(arrays):
    return [np.asarray(array).tolist() for array in arrays]


def custom(case):
    with strategy.scope():
        model, optimizer = new_model(), OPTIMIZERS[case["optimizer"]]()
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(x, y):
        with GradientTape() as tape:
            predictions = model(x, training=True)
            loss = compute_average_loss(loss_object(y, predictions), global_batch_size=case["global_batch"])
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        accuracy.update_state(y, predictions)
        return loss

    @replicant.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(train_step, args=batch), axis=None)

    dataset = Dataset.from_tensor_slices(data_of(case["N"])).batch(case["global_batch"])
    batches = strategy.experimental_distribute_dataset(dataset)
    sizes, losses, accuracies = [], [], []
    for _ in range(case["epochs"]):
        for batch in batches:
            sizes.append([len(x) for x in strategy.experimental_local_results(batch[0])])
            losses.append(float(step(batch)))
        accuracies.append(float(accuracy.result()))
        accuracy.reset_state()
    return {
        "per_replica_sizes": sizes,
        "loss_per_step": losses,
        "accuracy_per_epoch": accuracies,
        "final_weights": lists(model.get_weights()),
        "iterations": int(optimizer.iterations),
    }


def fit(num_rows, batch_size, as_dataset):
    with strategy.scope():
        model = new_model()
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = data_of(num_rows)
    data = (Dataset.from_tensor_slices((x, y)).batch(batch_size),) if as_dataset else (x, y)
    model.fit(*data, epochs=2, verbose=0, **({} if as_dataset else {"batch_size": batch_size, "shuffle": False}))
    return lists(model.get_weights())


def shares(name):
    match = autoshard.GRID.fullmatch(name)
    made = autoshard.elements(match["source"], Path(asked["folder"])).batch(int(match["batch"]), match["drop"] == "True")
    batches = strategy.experimental_distribute_dataset(autoshard.with_policy(made, match["policy"]))
    return [lists(strategy.experimental_local_results(batch)) for batch in batches]


answer = {
    "custom": {name: custom(case) for name, case in asked["custom"].items()},
    "fit": {name: fit(24, 12, as_dataset="as_ds" in name) for name in asked["fit"]},
    "shares": {name: shares(name) for name in asked["shares"]},
}
Path(os.environ["ANSWER"]).write_text(json.dumps(answer))
