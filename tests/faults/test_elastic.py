"""Elastic workers never wait for a world that is gone: who is inside of an exchange, comes late or does not come at all."""

import io
import os
import re
from pathlib import Path

import pytest

from replicant.launch import Settings, Supervisor
from replicant.launch.team import _generations

PROGRAM = Path(__file__).with_name("_elastic_program.py")
START_SECONDS = 60.0  # nobody may need that long


def run(folder: Path, mode: str) -> tuple[str, str]:
    """What the workers print, and what the supervisor says."""
    out, err = io.StringIO(), io.StringIO()
    settings = Settings(
        (str(PROGRAM), mode), num_workers=3, elastic=(1, 3), max_restarts=3, start=START_SECONDS, log_dir=folder / "logs"
    )
    environ = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "NPROC")}
    code = Supervisor(settings, out, err, environ).run()
    assert code == 0, err.getvalue() + out.getvalue()[-3000:]
    assert "Starting all workers again" not in err.getvalue(), err.getvalue()
    return out.getvalue(), err.getvalue()


def times(text: str, pattern: str) -> list[float]:
    return [float(match[1]) for match in re.finditer(rf"\] {pattern} at ([0-9.]+)", text)]


@pytest.mark.slow
def test_who_leaves_its_world_lets_go_of_those_inside_of_an_exchange(tmp_path: Path) -> None:
    out, said = run(tmp_path, "skew")
    assert re.findall(r"Generation \d goes on with .*", said) == [
        "Generation 1 goes on with 2 worker(s): [0, 1].",
        "Generation 2 goes on with 3 worker(s): [0, 1, 2].",
    ]
    assert re.findall(r"\[([01])\] open (\d+) ", out) in ([("0", "0"), ("1", "0")], [("1", "0"), ("0", "0")])
    waited = min(times(out, r"step \d+ generation 2")) - times(out, "ordered")[0]
    assert waited < START_SECONDS / 2
    assert len(re.findall(r"\] done with 3", out)) == 3


@pytest.mark.long
def test_who_comes_after_the_others_were_told_to_form_anew_is_told_too(tmp_path: Path) -> None:
    out, said = run(tmp_path, "early")
    assert re.findall(r"Generation \d goes on with .*", said) == [
        "Generation 1 goes on with 2 worker(s): [1, 2].",
        "Generation 2 goes on with 3 worker(s): [0, 1, 2].",
    ]
    assert len(re.findall(r"\] done with 3", out)) == 3


@pytest.mark.long
def test_who_does_not_leave_its_step_is_replaced_and_the_others_wait_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_generations, "_LEAVE_SECONDS", 5.0)  # the exchange of rank 0 may have to be broken off, after a second
    out, said = run(tmp_path, "stuck")
    assert re.search(
        r"rank 1 \(.*\) did not leave its step for \d+ s when the workers were to form a new group, and was killed; its last step: "
        r"\d+",
        said,
    )
    assert "[0] done with" in out
    assert not [line for line in said.splitlines() if "rank 0 (" in line and " is slow: " not in line]


# Who has begun to register with JAX's coordination service cannot be told anything for six seconds.
@pytest.mark.cases("sockets-5.0")
@pytest.mark.parametrize(
    ("mode", "seconds"), [("connect", 10.0), *((mode, 5.0) for mode in ("backends", "mesh", "sockets", "step"))]
)
@pytest.mark.long_cases("sockets-5.0")
def test_who_dies_while_all_connect_costs_the_others_seconds(tmp_path: Path, mode: str, seconds: float) -> None:
    out, said = run(tmp_path, mode)
    assert len(re.findall(r"rank \d \(.*\) was ended by SIGKILL", said)) == 1, said
    waited = min(times(out, r"step 0 generation \d")) - times(out, "killed")[0]
    assert waited < seconds, said + out
    assert len(re.findall(r"\] done with", out)) >= 2
