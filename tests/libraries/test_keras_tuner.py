"""KerasTuner: a search with a strategy, and one whose trials are trained by two workers, of which only the chief reports."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import keras
import keras_tuner
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))  # test folders are no packages

import _group

SCRIPT = Path(__file__).parent / "_tuner_process.py"
X = np.random.default_rng(0).normal(size=(21, 4)).astype(np.float32)
REPORTS = {"UpdateTrial", "EndTrial"}


def build(hp: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(hp.Choice("units", [2, 4, 8]), "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def searched(folder: Path, strategy: Any = None) -> tuple[Any, list[Any], list[np.ndarray]]:
    """Return the tuner, its trials by their units, and the weights of the best model."""
    objective = keras_tuner.Objective("loss", "min")
    tuner = keras_tuner.RandomSearch(
        build, objective=objective, max_trials=3, seed=1, directory=str(folder), project_name="p", distribution_strategy=strategy
    )
    tuner.search(X, X[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0)
    trials = sorted((trial.hyperparameters.values["units"], trial.score) for trial in tuner.oracle.get_best_trials(3))
    with strategy.scope() if strategy else contextlib.nullcontext():
        return tuner, trials, tuner.get_best_models()[0].get_weights()


def test_searches_as_on_one_device(strategy: Any, tmp_path: Path) -> None:
    _, expected, best = searched(tmp_path / "alone")
    tuner, found, weights = searched(tmp_path / "strategy", strategy)
    assert len(expected) == 3
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for mine, wanted in zip(weights, best, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5)
    assert (tuner.oracle.multi_worker, tuner.oracle.should_report) == (False, True)


def test_only_the_chief_of_two_workers_reports(tmp_path: Path) -> None:
    for name in ("oracle", "workers"):
        (tmp_path / name).mkdir()
    given = {"KERASTUNER_ORACLE_IP": "127.0.0.1", "KERASTUNER_ORACLE_PORT": str(_group.free_port()), "FOLDER": str(tmp_path)}
    alone = dict.fromkeys(("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS"))
    oracle = _group.Group(SCRIPT, 1, tmp_path / "oracle", environ=given | alone | {"KERASTUNER_TUNER_ID": "chief"})
    workers = _group.Group(SCRIPT, 2, tmp_path / "workers", environ=given | {"KERASTUNER_TUNER_ID": "tuner0"})
    try:
        chief, other = (set(answer["sent"]) for answer in workers.ended_well())
        [answer] = oracle.ended_well()
    finally:
        oracle.kill()
        workers.kill()
    assert chief >= REPORTS
    assert "CreateTrial" in other
    assert not other & (REPORTS | {"UpdateSpace"})
    np.testing.assert_allclose(answer["trials"], searched(tmp_path / "alone")[1], rtol=1e-5, atol=1e-5)
