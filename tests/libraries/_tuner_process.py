"""One process of KerasTuner: its chief, or a worker of one model on two machines. It writes what it has asked of the chief."""

import json
import os
from pathlib import Path

import replicant

is_oracle = os.environ["KERASTUNER_TUNER_ID"] == "chief"
strategy = None if is_oracle else replicant.MultiWorkerMirroredStrategy()

import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
import keras_tuner  # noqa: E402
import numpy as np  # noqa: E402
from keras_tuner.src.distribute import oracle_client  # noqa: E402

X = np.random.default_rng(0).normal(size=(21, 4)).astype(np.float32)
SENT: list[str] = []


class Noted:
    """KerasTuner's connection to its chief, and the names of the calls that go through."""

    def __init__(self, stub):
        self._stub = stub

    def __getattr__(self, name):
        def call(*args, **kwargs):
            SENT.append(name)
            return getattr(self._stub, name)(*args, **kwargs)

        return call


def build(hp):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(hp.Choice("units", [2, 4, 8]), "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


class Search(keras_tuner.RandomSearch):
    """Each trial ends on all workers before the next begins: KerasTuner lets a worker that is quicker ask for the old one again."""

    def on_trial_end(self, trial):
        super().on_trial_end(trial)
        if strategy is not None:
            float(strategy.reduce("SUM", strategy.run(lambda: jnp.ones(())), axis=None))


folder = os.environ["FOLDER"]
tuner = Search(
    build,
    objective=keras_tuner.Objective("loss", "min"),
    max_trials=3,
    seed=1,
    directory=f"{folder}/{'oracle' if is_oracle else strategy.topology.worker_index}",
    project_name="p",
    distribution_strategy=strategy,
)
if is_oracle:
    tuner.search(X, X[:, :1])  # serves until all trials have ended
else:
    assert isinstance(tuner.oracle, oracle_client.OracleClient)
    tuner.oracle.stub = Noted(tuner.oracle.stub)
    tuner.search(X, X[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0)
trials = (
    sorted((trial.hyperparameters.values["units"], trial.score) for trial in tuner.oracle.get_best_trials(3)) if is_oracle else []
)
Path(os.environ["ANSWER"]).write_text(json.dumps({"sent": SENT, "trials": trials}))
