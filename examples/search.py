"""Search hyperparameters with Optuna. Each trial trains a model under a strategy of its own, on all devices in lockstep.

    pip install optuna
    python examples/search.py --trials 20
    replicant launch --workers 2 examples/search.py --strategy multi_worker
    python examples/search.py --trials 100 --storage sqlite:///search.db

Trials that do badly are pruned after some epochs. A trial whose loss is not finite, or that needs more memory than there is, has
failed, and the search goes on. With ``--storage``, a search that was ended goes on when you start it again. On several workers, all
search with the same seed: they see the same metrics, and so they try the same values and prune the same trials.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported

import replicant

STRATEGIES = {"mirrored": replicant.MirroredStrategy, "multi_worker": replicant.MultiWorkerMirroredStrategy}


def load() -> tuple[tuple, tuple]:
    """Make two moons of points that are hard to tell apart: those to train on, and those to validate with."""
    import numpy as np

    rng = np.random.default_rng(0)
    angle, label = rng.uniform(0, np.pi, 600), rng.integers(0, 2, 600)
    x = np.stack([np.cos(angle) + label, np.where(label, 0.4 - np.sin(angle), np.sin(angle))], axis=1)
    x = (x + rng.normal(0, 0.15, x.shape)).astype("float32")
    return (x[:400], label[:400]), (x[400:], label[400:])


def objective(trial, options: argparse.Namespace) -> float:
    """Train one model. Returns its accuracy after the last epoch."""
    import keras

    from _trials import ReportToTrial

    keras.utils.set_random_seed(options.seed)
    strategy = STRATEGIES[options.strategy]()  # the strategy of this trial
    with strategy.scope():
        units = trial.suggest_categorical("units", [4, 16, 64])
        layers = [keras.layers.Dense(units, activation="relu") for _ in range(trial.suggest_int("layers", 1, 3))]
        model: Any = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(trial.suggest_float("learning_rate", 1e-4, 1e2, log=True)), loss, metrics=["accuracy"])
    train, validation = load()
    callbacks = [keras.callbacks.TerminateOnNaN(), ReportToTrial(trial, "val_accuracy")]
    history = model.fit(
        *train, batch_size=64, epochs=options.epochs, validation_data=validation, callbacks=callbacks, verbose=0
    ).history
    is_finite = abs(history["loss"][-1]) < float("inf")
    return history["val_accuracy"][-1] if is_finite else float("nan")  # of which Optuna makes a failed trial


def main(argv: list[str] | None = None) -> int:
    """Search, and print the best trial. Returns the exit status."""
    options = parse_options(argv)
    try:
        import optuna  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("search.py needs Optuna: pip install optuna", file=sys.stderr)
        return 1
    if options.virtual_devices:
        replicant.set_virtual_devices(options.virtual_devices)  # before anything else starts JAX
    is_chief = STRATEGIES[options.strategy]().is_chief  # the workers meet before the first trial
    import jax

    optuna.logging.set_verbosity(optuna.logging.INFO if is_chief else optuna.logging.WARNING)
    study = optuna.create_study(
        study_name="search",
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=options.seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=1),
        storage=options.storage,
        load_if_exists=True,
    )
    study.optimize(lambda trial: objective(trial, options), n_trials=options.trials, catch=(jax.errors.JaxRuntimeError,))
    counts = Counter(trial.state.name.lower() for trial in study.trials)
    if is_chief:
        print("Trials:", ", ".join(f"{number} {state}" for state, number in sorted(counts.items())))
    if not counts["complete"]:
        print("No trial was completed.", file=sys.stderr)
        return 1
    if is_chief:
        print(f"Best: accuracy {study.best_value:.4f} with {study.best_params}")
    return 0


def parse_options(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Search hyperparameters.", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--strategy", choices=sorted(STRATEGIES), default="mirrored", help="how each trial is distributed")
    parser.add_argument("--virtual-devices", type=int, metavar="N", help="divide the CPU into N devices, to try things out")
    parser.add_argument("--trials", type=int, default=10, help="number of trials")
    parser.add_argument("--epochs", type=int, default=8, help="epochs of a trial that is not pruned")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random numbers, and of the values to try")
    parser.add_argument("--storage", metavar="URL", help="where Optuna keeps the search, for one worker")
    options = parser.parse_args(argv)
    if options.storage and options.strategy == "multi_worker":
        parser.error("--storage is for one worker: each of several would add its own copy of a trial")
    return options


if __name__ == "__main__":
    sys.exit(main())
