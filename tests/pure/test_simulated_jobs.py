"""The simulation of jobs with many workers: the launcher's own state machines, in virtual time."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def simulation():
    path = Path(__file__).parents[2] / "benchmarks" / "simulated_jobs.py"
    spec = importlib.util.spec_from_file_location("simulated_jobs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(2))
def test_every_loss_is_replaced_and_all_train_again(simulation, seed):
    job = simulation.Elastic(24, 0.5, 600.0, seed)
    job.run(simulation.DAY)
    assert job.losses > 5
    assert job.machine.generation >= job.losses  # each loss is a new group, unless several are lost at once
    assert len(job.members) >= 20
    assert 0.5 < job.useful / simulation.DAY / 24 < 1.0
    assert max(job.stops[1:]) < 60.0  # no group waits for a worker that is gone


def test_a_job_without_failures_loses_only_the_work_after_its_last_checkpoint(simulation):
    job = simulation.Elastic(8, 1e-9, 600.0, 0)
    job.run(simulation.DAY)
    assert (job.losses, job.useful) == (0, 8 * simulation.DAY)
    goodput, failures = simulation.started_again(8, 1e-9, 600.0, simulation.DAY, 0)
    assert failures == 0
    assert 1 - 700 / simulation.DAY < goodput < 1


def test_the_formula_agrees_with_the_simulation(simulation):
    for count, rate in ((64, 0.02), (256, 0.01)):
        goodput, failures = simulation.started_again(count, rate, 600.0, 100 * simulation.DAY, 1)
        assert failures > 100
        assert goodput == pytest.approx(simulation.formula(count, rate, 600.0, 50.0), abs=0.01)


@pytest.mark.slow
def test_a_thousand_workers_lose_some_and_go_on(simulation):
    job = simulation.Elastic(1024, 0.02, 600.0, 0)
    job.run(simulation.DAY / 10)
    assert job.losses >= 1
    assert job.machine.generation >= 2 * job.losses - 2
    assert len(job.members) >= 1020
