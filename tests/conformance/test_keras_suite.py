"""Keras's own tests of its trainer and its callbacks, as they are installed, under a MirroredStrategy with two devices.

A test may fail only if it fails without a strategy as well, or for a reason that REFUSED gives. By default each twelfth test is
run, and all of REFUSED; REPLICANT_TEST_FULL=1 runs all and compares the table in docs/differences.md.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import pytest
from _report import DIFFERENCES

HERE = Path(__file__).parent
pytestmark = pytest.mark.again
FULL = os.environ.get("REPLICANT_TEST_FULL") == "1"
EVERY = 1 if FULL else 12
DEADLINE = 3000 if FULL else 500  # seconds

# Not among them: tests of keras.distribution, and of callbacks that go to a server, that write with TensorFlow, or with Orbax.
MODULES = [
    "trainers.trainer_test",
    "trainers.compile_utils_test",
    "callbacks.backup_and_restore_test",
    "callbacks.callback_test",
    "callbacks.csv_logger_test",
    "callbacks.early_stopping_test",
    "callbacks.lambda_callback_test",
    "callbacks.learning_rate_scheduler_test",
    "callbacks.model_checkpoint_test",
    "callbacks.monitor_callback_test",
    "callbacks.reduce_lr_on_plateau_test",
    "callbacks.terminate_on_nan_test",
]

# Tests that pass without a strategy and not with one: why, and the words with which they must fail.
REFUSED = {
    "test_jit_fit_with_out_shardings_logic_distributed": (
        "it uses `keras.distribution` in the scope of a strategy; only one of them can place a model's variables",
        "MixedStrategyError",
    ),
}

OPTIONAL = ("tensorflow", "grain", "torch")
BEGIN, END = "<!-- begin: what tests/conformance/test_keras_suite.py found -->", "<!-- end -->"


def run(folder: Path, *, replicas: int, only: list[str] | None = None) -> dict[str, Any]:
    """What the plugin wrote down about the tests."""
    order = {"replicas": replicas, "every": EVERY, "always": list(REFUSED), "only": only, "results": str(folder / "results.json")}
    (folder / "order.json").write_text(json.dumps(order))
    (folder / "pytest.ini").write_text("[pytest]\n")  # Keras's tests, not our settings
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-p", "_keras_plugin", "-p", "no:cacheprovider", "-q"]
    command += ["-W", "ignore", "-c", str(folder / "pytest.ini"), "--continue-on-collection-errors", "--pyargs"]
    done = subprocess.run(
        command + [f"keras.src.{module}" for module in MODULES],
        cwd=folder,
        env=environment()
        | {"REPLICANT_KERAS_TESTS": str(folder / "order.json"), "TMPDIR": str(folder), "REPLICANT_FUSE_REPLICAS": "0"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (folder / "results.json").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((folder / "results.json").read_text())


def environment() -> dict[str, str]:
    unset = ("NPROC", "PYTHONWARNINGS", *(("XLA_FLAGS",) if FULL else ()))
    kept = {name: value for name, value in os.environ.items() if name not in unset and not name.startswith("PYTEST_")}
    kept |= {} if FULL else {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compile in a quarter of the time, as this process does
    return kept | {"PYTHONPATH": os.pathsep.join([str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Outcomes by test, with two devices; ``alike``: those that fail without a strategy as well."""
    if importlib.util.find_spec("keras.src.trainers.trainer_test") is None:
        pytest.skip(f"Keras {keras.__version__} was installed without its tests")
    results = run(tmp_path_factory.mktemp("two"), replicas=2)
    failed = [name for name, (outcome, _) in results["outcomes"].items() if outcome == "failed"]
    plain = run(tmp_path_factory.mktemp("none"), replicas=0, only=failed)["outcomes"]
    assert set(failed) <= set(plain)
    return results | {"alike": [name for name in failed if plain[name][0] == "failed"]}


def short(name: str) -> str:
    return name.rpartition("::")[2]


@pytest.mark.slow
def test_what_passes_on_one_device_passes_on_two(found: dict[str, Any]) -> None:
    outcomes = found["outcomes"]
    assert not [name for name, (outcome, _) in outcomes.items() if outcome == "uncollected"]
    failed = {name for name, (outcome, _) in outcomes.items() if outcome == "failed"} - set(found["alike"])
    unexplained = {name: outcomes[name][1][-1500:] for name in failed if short(name) not in REFUSED}
    assert not unexplained, "\n\n".join(f"{name}\n{text}" for name, text in unexplained.items())
    assert sum(outcome == "passed" for outcome, _ in outcomes.values()) > (150 if FULL else 15)


@pytest.mark.slow
def test_what_is_refused_is_refused_for_the_reason_given(found: dict[str, Any]) -> None:
    failed = {short(name): text for name, (outcome, text) in found["outcomes"].items() if outcome == "failed"}
    for name, (_, words) in REFUSED.items():
        assert words in failed.get(name, ""), f"{name} no longer fails with {words!r}: take it out of REFUSED"


@pytest.mark.slow
def test_what_fails_without_a_strategy_as_well_needs_what_is_not_installed(found: dict[str, Any]) -> None:
    for name in found["alike"]:
        assert "Error: No module named" in found["outcomes"][name][1] or "ImportError" in found["outcomes"][name][1], name


def section(found: dict[str, Any]) -> list[str]:
    """The table in docs/differences.md."""
    lines = ["| tests in keras/src | tests | passed | need TensorFlow, Grain or torch | refused | left out by Keras |"]
    lines += ["|---|---|---|---|---|---|"]
    for module in MODULES:
        own = {k: v for k, (v, _) in found["outcomes"].items() if k.startswith(f"keras.src.{module}::")}
        alike = len(set(own) & set(found["alike"]))
        counts = Counter(own.values())
        total = found["collected"].get(f"keras.src.{module}", 0)
        lines += [
            f"| {module} | {total} | {counts['passed']} | {alike} | {counts['failed'] - alike} | {counts['skipped']} |",
        ]
    return lines + ["", "Refused:", ""] + [f"- `{name}`: {reason}" for name, (reason, _) in REFUSED.items()]


@pytest.mark.slow
def test_the_documented_table(found: dict[str, Any]) -> None:
    """All of it if all tests were run, else what does not depend on running them."""
    text = DIFFERENCES.read_text()
    documented = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip().splitlines()
    if f"Keras {keras.__version__}" not in text:
        pytest.skip(f"docs/differences.md is about another version of Keras than {keras.__version__}")
    expected = section(found)
    if FULL:
        if present := [name for name in OPTIONAL if importlib.util.find_spec(name)]:
            pytest.skip(f"the table is about an environment without {', '.join(present)}")
        assert documented == expected, "write between the marks:\n\n" + "\n".join(expected)
    else:
        assert [line.split("|")[1:3] for line in documented] == [line.split("|")[1:3] for line in expected]
