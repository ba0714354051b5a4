"""The table of what each launcher says agrees with the detector, in every environment that the tests record."""

import dataclasses
import random
import re

import pytest

from replicant.cli._checkup._facts import cluster_variables
from replicant.cluster import Membership, detect
from replicant.cluster._survey import Seen, survey
from replicant.errors import ClusterError

from ._launcher_environments import RECOGNISED, REFUSED, env

ENVIRONMENTS = {name: env(row[0]) for table in (RECOGNISED, REFUSED) for name, row in table.items()}


def concluded(environ):
    try:
        return detect(environ), None
    except ClusterError as error:
        return None, str(error)


def agree(environ):
    """Check that the table says what the detector does, and nothing that is not there."""
    detection, error = concluded(environ)
    found = survey(environ)
    rows = {role: [row for row in found.seen if row.role == role] for role in ("counts", "wrong", "also", "several", "seen")}
    assert len({row.launcher for row in found.seen if row.role != "several"}) == len(found.seen) - len(rows["several"])
    for row in found.seen:
        assert all(re.match("[A-Za-z0-9_]+", variable)[0] in environ for variable in row.variables)
    if error is not None:
        assert found.detection is None
        assert found.refusal == error
        assert found.seen[0].role == "wrong"
        assert found.seen[0].says == error
        assert not rows["counts"]
        return
    assert repr(found.detection) == repr(detection)
    assert found.refusal == detection.doubt
    assert bool(rows["several"]) == bool(detection.doubt)
    for row in rows["several"]:
        if row.says == "one of several":
            assert all(variable in detection.doubt for variable in row.variables)
    if detection.source == "nothing":
        assert not rows["counts"]
    else:
        (counts,) = rows["counts"]
        assert counts == Seen(detection.source, "counts", repr(detection.membership)[11:-1], detection.because)
    others = {row.launcher: row.says for row in found.seen if row.role not in ("counts", "seen") and row.says != "one of several"}
    assert others == {source: re.sub(r"^unusable: |^Membership\(|\)$", "", said) for source, said in detection.others}


@pytest.mark.parametrize("environ", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_the_survey_agrees_with_the_detector(environ):
    agree(environ)


VALUES = ("", "0", "1", "2", "x", "-1", "9" * 40, "a:1", "n[1-2]", '["a","b"]', "{}", "{", "\x1b[2J", "a,b")


def test_the_survey_agrees_with_the_detector_where_variables_are_missing_or_wrong():
    """Two environments are mixed, some variables are left out, and one gets another value."""
    chance = random.Random(0)
    environments = list(ENVIRONMENTS.values())
    for _ in range(1500):
        environ = chance.choice(environments) | chance.choice([{}, chance.choice(environments)])
        names = sorted(environ)
        for name in chance.sample(names, chance.randint(0, min(3, len(names)))):
            del environ[name]
        if environ:
            environ[chance.choice(sorted(environ))] = chance.choice(VALUES)
        agree(environ)


@pytest.mark.parametrize("environ", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_what_is_printed_is_readable(environ):
    detection, _ = concluded(environ)
    lines = [*survey(environ).lines(), *str(detection or "").splitlines()]
    longest = max((len(word) for line in lines for word in line.split()), default=0)
    assert all(len(line) <= max(100, 40 + longest) for line in lines)
    assert all(line == line.rstrip() and line.isprintable() for line in lines)
    result = cluster_variables(environ)
    assert result.rows == tuple(survey(environ).lines())
    assert result.state == ("fail" if survey(environ).refusal else "warn" if detection.conflicts else "ok")


def test_the_table():
    environ = env("RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2")
    environ |= env("SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_TASKS_PER_NODE=1(x2) HOROVOD_RANK=1 HOROVOD_SIZE=4 AZUREML_NODE_COUNT=1")
    environ |= {"JAX_COORDINATOR_PORT": "5"}
    assert survey(environ).lines() == [
        "counts   torchrun  process 0 of 1 (RANK=0, WORLD_SIZE=1, LOCAL_WORLD_SIZE=2)",
        "several  Slurm     process 1 of 2, coordinator n1:5 (SLURM_JOB_ID=7, SLURM_PROCID=1,",
        "                   SLURM_STEP_ID=0, SLURM_STEP_NUM_TASKS=2, SLURM_STEP_NODELIST=n[1-2],",
        "                   SLURM_STEP_TASKS_PER_NODE=1(x2))",
        "several  torchrun  one of several (WORLD_SIZE=1, RANK=0, LOCAL_WORLD_SIZE=2)",
        "several  Horovod   one of several (HOROVOD_SIZE=4, HOROVOD_RANK=1)",
        "seen     Azure ML  no number of processes (AZUREML_NODE_COUNT=1)",
    ]
    result = cluster_variables(environ)
    assert (result.state, result.detail) == ("fail", "torchrun: process 0 of 1")
    assert result.rows[4] == "several  torchrun  one of several (WORLD_SIZE=1, RANK=0, LOCAL_WORLD_SIZE=2)"
    assert result.remedy.startswith("strategies over workers refuse to start here: RANK=0, WORLD_SIZE=1 and LOCAL_WORLD_SIZE=2 say")


def test_a_source_that_cannot_be_used():
    environ = env("RANK=2 WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=1 SLURM_JOB_ID=7")
    assert survey(environ).lines() == [
        "wrong    torchrun  cannot be used (RANK=2, WORLD_SIZE=2)",
        "also     Slurm     process 0 of 1 (SLURM_JOB_ID=7)",
    ]
    assert survey(environ).detection is None
    last = "refused  torchrun: RANK=2 is outside WORLD_SIZE=2: it must be from 0 to 1."
    assert str(survey(environ)).splitlines() == [*survey(environ).lines(), last]
    result = cluster_variables(environ)
    assert (result.state, result.remedy) == ("fail", "fix what the message names")
    assert result.detail == "torchrun: RANK=2 is outside WORLD_SIZE=2: it must be from 0 to 1."


def test_nothing_is_there():
    assert str(survey({})) == "no variable describes a cluster"
    assert survey({}).detection.membership == Membership(0, 1, local_rank=0, num_local_processes=1)
    result = cluster_variables({})
    assert (result.state, result.detail, result.rows) == ("ok", "nothing: process 0 of 1 (no variable describes a cluster)", ())


def test_values_cannot_write_to_a_terminal():
    printed = str(survey({"RANK": "a\x1b[2J\nb" * 100, "WORLD_SIZE": "2\u202e\r", "MASTER_ADDR": "\x9bm"}))
    assert re.fullmatch(r"[\x20-\x7e\n]*", printed)
    assert "a\\x1b[2J\\nb" in printed
    found = dataclasses.replace(detect({}), because=("A=\x1b[2J\n",))
    assert str(found).splitlines()[-1] == "  because       A=\\x1b[2J\\n"
    long = dataclasses.replace(found, because=(f"A={'x' * 1000}",))
    assert str(long).splitlines()[-2:] == [f"  because       A={'x' * 194}", "                ..."]
