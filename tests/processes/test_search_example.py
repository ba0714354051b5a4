"""examples/search.py: a strategy for each trial, trials that are pruned and that fail, a search that goes on, and two workers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import replicant

ROOT = Path(__file__).resolve().parents[2]
REASON = "examples/search.py needs Optuna: pip install optuna"


def run_search(folder, *command):
    unset = ("NPROC", "XLA_FLAGS", "KERAS_BACKEND", "PYTHONWARNINGS")
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in unset},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def counts_of(output):
    return {
        state: int(number) for number, state in re.findall(r"(\d+) (\w+)", re.search(r"^.*Trials: (.*)$", output, re.MULTILINE)[1])
    }


@pytest.mark.slow
def test_a_search_goes_on_after_trials_that_fail_and_when_it_is_started_again(tmp_path):
    pytest.importorskip("optuna", reason=REASON)
    program = str(ROOT / "examples" / "search.py")
    options = ["--virtual-devices", "2", "--epochs", "4", "--storage", "sqlite:///search.db"]
    first = run_search(tmp_path, program, *options, "--trials", "6")
    assert counts_of(first.stdout) == {"complete": 5, "fail": 1}
    assert "The value nan is not acceptable" in first.stderr
    second = run_search(tmp_path, program, *options, "--trials", "2")
    assert sum(counts_of(second.stdout).values()) == 8
    assert re.search(r"^Best: accuracy 0\.[89]\d+ with \{'units': ", second.stdout, re.MULTILINE)


@pytest.mark.slow
def test_two_workers_try_the_same_values(tmp_path):
    pytest.importorskip("optuna", reason=REASON)
    program = [str(ROOT / "examples" / "search.py"), "--strategy", "multi_worker", "--trials", "5", "--epochs", "3"]
    done = run_search(tmp_path, "-m", "replicant", "launch", "--workers", "2", *program)
    assert sum(counts_of(done.stdout).values()) == 5
    assert len(re.findall(r"Best: accuracy", done.stdout)) == 1


def make(trial, optuna, monitor="loss"):
    from _trials import ReportToTrial

    with replicant.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(trial.suggest_float("rate", 0, 1)), "mse")
    x = np.ones((8, 2), "float32")
    return model.fit(x, x[:, :1], epochs=3, verbose=0, callbacks=[ReportToTrial(trial, monitor)]).history["loss"][-1]


def test_trials_that_are_pruned_fail_or_succeed():
    optuna = pytest.importorskip("optuna", reason=REASON)
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.9, n_warmup_steps=1))
    for rate in (0.1, 0.0, 0.2):
        study.enqueue_trial({"rate": rate})

    def objective(trial):
        if trial.number == 2:
            raise MemoryError("too large")
        return make(trial, optuna)

    study.optimize(objective, n_trials=3, catch=(MemoryError,))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "FAIL"]
    # The loss is (1 - 2w - b)^2, and a step of SGD takes 6 times the rate off the error: 1, 0.4, 0.16.
    assert study.trials[0].intermediate_values == pytest.approx({0: 1, 1: 0.16, 2: 0.0256}, abs=1e-6)
    assert study.trials[1].intermediate_values == {0: 1.0, 1: 1.0}  # pruned after the second epoch
    assert study.best_value == pytest.approx(0.0256, abs=1e-6)


def test_a_metric_that_fit_does_not_report():
    optuna = pytest.importorskip("optuna", reason=REASON)
    study = optuna.create_study()
    study.enqueue_trial({"rate": 0.1})
    with pytest.raises(ValueError, match=r"fit reports no 'val_loss'\. It reports \['loss'\]: choose one of these"):
        study.optimize(lambda trial: make(trial, optuna, "val_loss"), n_trials=1)


@pytest.mark.slow
def test_without_optuna_the_program_says_what_to_install(tmp_path):
    (tmp_path / "optuna.py").write_text("raise ImportError('hidden')")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "search.py")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "search.py needs Optuna: pip install optuna")


def test_a_shared_storage_is_for_one_worker(capsys):
    import search

    with pytest.raises(SystemExit):
        search.parse_options(["--strategy", "multi_worker", "--storage", "sqlite:///a.db"])
    assert "--storage is for one worker: each of several would add its own copy of a trial" in capsys.readouterr().err
