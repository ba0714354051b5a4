"""Two and three real processes, against what TensorFlow 2.21 gave in as many: training, and who gets what of a dataset."""

import json
import os
import sys
from pathlib import Path

import pytest
import test_autoshard as autoshard
from _compare import same
from test_autoshard import folder as folder  # noqa: PLC0414 - a fixture

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "processes"))  # test folders are no packages

import _group  # noqa: E402

# `make test` has the same programs in `processes`.
pytestmark = [pytest.mark.again, pytest.mark.slow]
FIT_WORKS = "fit, evaluate and predict equal one device for every batch"
TOLERANCE = 1e-5
SAMPLE = 1 if os.environ.get("REPLICANT_TEST_FULL") == "1" else 6  # every sixth case of the grid, which threads run completely


@pytest.fixture(scope="module")
def recorded_inputs():
    """Weights and rows that the recorded training began with."""
    recorded = json.loads((HERE / "figures" / "training_custom.json").read_text())
    return {key: recorded[key] for key in ("W0", "X", "Y")}


@pytest.fixture(scope="module", params=[2, 3], ids=["W=2", "W=3"])
def run(request, figures, recorded_inputs, folder, tmp_path_factory):
    """The number of workers, what was asked of them, and what each gave."""
    workers, own = request.param, tmp_path_factory.mktemp("workers")
    names = [name for name in figures if name.startswith(f"W={workers} ")]
    grid = json.loads((HERE / "figures" / "autoshard.json").read_text())["groups"][f"workers{workers}_replicas1"]
    asked = {
        **recorded_inputs,
        "folder": str(folder),
        "custom": {name: figures[name]["worker0"] for name in names if " custom|" in name},
        "fit": [name for name in names if " fit|" in name],
        "shares": sorted(name for name in grid if autoshard.GRID.fullmatch(name))[::SAMPLE],
    }
    (own / "cases.json").write_text(json.dumps(asked))
    group = _group.Group(HERE / "_worker_conformance.py", workers, own, environ={"CASES": str(own / "cases.json")})
    return workers, asked, group.ended_well()


def test_training(figures, report, run):
    _, asked, answers = run
    assert len(asked["custom"]) == 4
    for name in asked["custom"]:
        recorded = figures[name]
        others = [recorded["worker0"] | other for other in recorded.get("others", [{}] * (len(answers) - 1))]
        for answer, expected in zip(answers, [recorded["worker0"], *others], strict=True):
            found = answer["custom"][name]
            assert same(found, {key: expected[key] for key in found}, TOLERANCE), name
        report.passed(name)


def test_fit_which_tensorflow_refuses(figures, report, run):
    """With batches that divide, fit's mean loss is the custom loop's: so are the weights."""
    workers, asked, answers = run
    assert len(asked["fit"]) == 2
    expected = figures[f"W={workers} custom|sgd|24|12"]["worker0"]["final_weights"]
    for name in asked["fit"]:
        assert figures[name]["worker0"]["error"] == "ValueError"
        assert all(same(answer["fit"][name], expected, TOLERANCE) for answer in answers), name
        report.different(name, FIT_WORKS)


def test_shares_of_datasets(run, run_workers, folder):
    """What workers that are threads get, which `test_autoshard.py` compares with TensorFlow."""
    workers, asked, answers = run
    assert len(asked["shares"]) >= 20
    for name in asked["shares"]:
        match = autoshard.GRID.fullmatch(name)

        def make(match=match):
            made = autoshard.elements(match["source"], folder).batch(int(match["batch"]), match["drop"] == "True")
            return autoshard.with_policy(made, match["policy"])

        expected = autoshard.steps_of_workers(run_workers, make, workers, 1)
        assert [answer["shares"][name] for answer in answers] == expected, name


@pytest.mark.slow
def test_every_case_was_counted(figures, counted):
    assert counted == set(figures)
