"""What CI runs in its time: .ci/in_time.py."""

import os
import runpy
import sys
import time
from pathlib import Path

import pytest

ci = runpy.run_path(str(Path(__file__).resolve().parents[2] / ".ci" / "in_time.py"))
QUICK, LARGE = ci["Kind"]("quick", "test-quick SHARE={share}", 3, 10.0), ci["Kind"]("large", "package", 1, 100.0)


@pytest.mark.parametrize(
    ("commit", "shares"),
    [
        ("0", ["test-quick SHARE=1/3", "package", "test-quick SHARE=2/3", "test-quick SHARE=3/3"]),
        ("1", ["package", "test-quick SHARE=1/3", "test-quick SHARE=2/3", "test-quick SHARE=3/3"]),
        ("4", ["test-quick SHARE=3/3", "package", "test-quick SHARE=1/3", "test-quick SHARE=2/3"]),
        ("000000000004ffff", ["test-quick SHARE=3/3", "package", "test-quick SHARE=1/3", "test-quick SHARE=2/3"]),
    ],
)
def test_the_commit_chooses_where_all_shares_begin(commit, shares):
    assert [str(share) for share in ci["order"](commit, [QUICK, LARGE])] == [f"make {share}" for share in shares]


def test_every_share_is_there_once():
    for python in ("3.11", "3.13", "3.14"):
        kinds = ci["kinds"](python)
        shares = ci["order"]("659d7de90a", kinds)
        assert len(set(map(str, shares))) == len(shares) == sum(kind.count for kind in kinds)
        assert not any(f"VERSIONS={python} " in str(share) for share in shares)


@pytest.mark.parametrize(
    ("took", "slowness", "left", "expected"),
    [
        ({}, 1.0, 100.0, "package"),
        ({}, 1.0, 99.0, "test-quick SHARE=1/3"),  # the first does not fit; another one does
        ({}, 2.0, 19.0, None),  # a machine that is half as fast
        ({"quick": [4.0, 6.0]}, 2.0, 6.0, "test-quick SHARE=1/3"),  # what was measured counts, and not the table
        ({"quick": [4.0, 12.0]}, 1.0, 11.0, None),
        ({"large": [100.0]}, 9.0, 100.0, "package"),
        ({}, 1.0, -5.0, None),
    ],
)
def test_the_first_share_that_fits_is_next(took, slowness, left, expected):
    share = ci["following"](ci["order"]("1", [QUICK, LARGE]), took, slowness, left)
    assert (share and str(share)) == (expected and f"make {expected}")


def test_a_command_that_does_not_end_in_time_is_stopped():
    assert ci["run"](f"{sys.executable} -c 3")[0] == 0
    assert ci["run"](f"{sys.executable} -c raise(SystemExit(3))")[0] == 3
    begin = time.monotonic()
    assert ci["run"]("sleep 60", 0.1)[0] is None
    assert time.monotonic() - begin < 30


@pytest.fixture
def make(tmp_path, monkeypatch):
    """``make(fails)`` puts a `make` on the path. It notes what it is asked for, and fails if `fails` is in that, or all of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def put(fails: str = "nothing", *, whole: bool = False) -> Path:
        pattern = fails if whole else f"*{fails}*"
        (tmp_path / "make").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncase "$*" in {pattern}) exit 2;; esac\n')
        (tmp_path / "make").chmod(0o755)
        return tmp_path / "asked"

    return put


def test_all_shares_run_if_there_is_time(make, capsys):
    asked = make()
    assert ci["main"]("0", 0.0) == 0
    version = "{}.{}".format(*sys.version_info)
    shares = [str(share).removeprefix("make ") for share in ci["order"]("0", ci["kinds"](version))]
    assert asked.read_text().splitlines() == ["check", "test", *shares]
    assert "CI ran in 0 minutes:" in (said := capsys.readouterr().out)
    assert "left out" not in said


def test_the_check_and_the_tests_run_even_if_there_is_no_time_for_more(make, capsys):
    asked = make()
    assert ci["main"]("0", 2400.0) == 0
    assert asked.read_text().splitlines() == ["check", "test"]
    assert "left out: 24 of 24 of make test-long SHARE=..." in capsys.readouterr().out


@pytest.mark.parametrize(("fails", "last"), [("check", "check"), ("test", "test"), ("again", "test-again SHARE=1/6")])
def test_a_failure_ends_it(make, fails, last, capsys):
    asked = make(fails)
    assert ci["main"]("0", 0.0) == 1
    assert asked.read_text().splitlines()[-1] == last
    assert "CI has failed" in capsys.readouterr().out


@pytest.fixture
def last_failed(tmp_path):
    """Two tests that pytest says have failed."""
    names = tmp_path / ".pytest_cache/v/cache/lastfailed"
    names.parent.mkdir(parents=True)
    names.write_text('{"tests/pure/test_b.py::test_two": true, "tests/pure/test_a.py::test_one": true}')


@pytest.mark.usefixtures("last_failed")
@pytest.mark.parametrize(
    ("fails", "command", "how"),
    [
        ("'test'", "test", "once, and then passed"),
        ("'test-again SHARE=1/6'", "test-again SHARE=1/6", "once, and then passed"),
        ("'test'|'test PROCESSES=0 ARGS'*", "test", "twice"),
    ],
)
def test_tests_that_failed_are_run_once_more(make, capsys, fails, command, how):
    asked = make(fails, whole=True)
    assert ci["main"]("0", 0.0) == (how == "twice")
    lines = asked.read_text().splitlines()
    assert lines[lines.index(command) + 1] == f"{command} PROCESSES=0 ARGS=--last-failed"
    said = capsys.readouterr().out
    for name in ("tests/pure/test_a.py::test_one", "tests/pure/test_b.py::test_two"):
        assert f"failed {how}: {name}" in said


@pytest.mark.usefixtures("last_failed")
def test_a_check_that_failed_is_not_run_again(make):
    asked = make("check")
    assert ci["main"]("0", 0.0) == 1
    assert asked.read_text().splitlines() == ["check"]


def test_a_share_that_was_stopped_is_left_out_and_has_not_failed(make, monkeypatch, capsys):
    make()
    monkeypatch.setitem(ci["main"].__globals__, "run", lambda command, limit=None: (0 if limit is None else None, 1.0))
    assert ci["main"]("0", 0.0) == 0
    said = capsys.readouterr().out
    assert "make test-long SHARE=1/24: stopped, for want of time" in said
    assert "left out: 24 of 24 of make test-long SHARE=..." in said
