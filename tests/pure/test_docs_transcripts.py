"""The transcripts in the documentation, ``--help`` of every command among them, are those of today's commands."""

import runpy
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
REMEDY = "it has changed; if that is meant: python docs/transcripts.py"

tool = runpy.run_path(str(DOCS / "transcripts.py"))
written = {name: text for page in DOCS.glob("*.md") for name, text in tool["places"](page.read_text()).items()}


def test_the_places_are_these():
    assert sorted(written) == ["checkpoint", "clusters", "doctor", "help", "launch", "migrate", "new", *sorted(tool["PLANS"])]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse wraps otherwise from Python 3.13 on")
@pytest.mark.parametrize("name", ["help", "migrate", "new"])
def test_a_transcript_is_that_of_today(name):
    assert written[name] == tool["transcript"](name), REMEDY


def test_the_transcript_of_a_checkpoint_is_that_of_today():
    assert written["checkpoint"] == tool["transcript"]("checkpoint"), REMEDY


def test_the_transcripts_of_all_environments_are_those_of_today():
    assert written["clusters"] == tool["transcript"]("clusters"), (
        "it has changed; if that is meant: python docs/transcripts.py clusters"
    )


def test_the_transcript_of_the_doctor_has_all_lines():
    from replicant.cli._checkup import CHECKS, FACTS

    for name in (*FACTS, *CHECKS):
        assert f"\nok    {name} " in written["doctor"], REMEDY


def test_the_transcript_of_the_launcher_tells_of_the_restart():
    assert tool["LAUNCHED"] in written["launch"], REMEDY
    assert "was ended by SIGKILL" in written["launch"]
    assert "Starting all workers again as generation 1 (restart 1 of 1)." in written["launch"]
    assert "2 replicas trained epochs [1, 2, 3, 4]" in written["launch"]


@pytest.mark.parametrize("name", sorted(tool["PLANS"]))
def test_the_transcript_of_a_plan_has_the_rows_of_a_plan(name):
    assert f"$ {tool['PLANS'][name]}\n" in written[name], REMEDY
    for row in ("topology", "who reads what", "weights", "optimizer state", "does it fit", "estimated step", "bound by", "figures"):
        assert f"\n{row} " in written[name], REMEDY


def test_the_pictures_are_those_that_the_code_draws():
    drawn = runpy.run_path(str(DOCS / "pictures.py"))["PICTURES"]
    for name, draw in drawn.items():
        assert (DOCS / "pictures" / name).read_text() == draw(), "python docs/pictures.py"
    batch_of_five = [text for text in drawn["sharding.svg"]().split(">") if text.startswith(("0<", "4<"))]
    assert len(batch_of_five) == 6
