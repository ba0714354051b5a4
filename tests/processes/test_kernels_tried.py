"""Which versions of jaxlib get XLA's option for convolutions, and the trial that decides it for one that nobody knows."""

import json
import os
import subprocess
import sys

import pytest

from replicant.kernels.xla import _flag_trial
from replicant.kernels.xla._flags import OPTION, VALUE

PROGRAM = """
import json, os
with_option = {{"seconds": {seconds}, "sum": {sum}}}
print(json.dumps(with_option if "ynn" in os.environ["XLA_FLAGS"] else {{"seconds": 0.1, "sum": 1000.0}}))
"""
FLAG = f"{OPTION}={VALUE}"
LIMIT_SECONDS = 300


def environ(cache="0", **more):
    return {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {_flag_trial.CACHE: str(cache), **more}


@pytest.fixture
def program(tmp_path, monkeypatch):
    """What takes the place of the program that computes convolutions: ``program(seconds_with, sum_with)``."""

    def replace(seconds_with, sum_with):
        file = tmp_path / "program.py"
        file.write_text(PROGRAM.format(seconds=seconds_with, sum=sum_with))
        monkeypatch.setattr(_flag_trial, "_PROGRAM", file)

    return replace


@pytest.mark.parametrize("version", ["0.10.2", "0.11.0", "0.11.2", "0.12.0.1", "0.12.7"])
def test_versions_that_were_measured_are_not_tried(version, tmp_path):
    assert _flag_trial.objection(version, FLAG, environ(tmp_path / "cache")) == ""
    assert not (tmp_path / "cache").exists()


def test_a_version_that_was_measured_and_does_not_gain(monkeypatch):
    monkeypatch.setitem(_flag_trial.MEASURED, (0, 12), 0.9)
    assert _flag_trial.objection("0.12.1", FLAG, environ()) == "it does not pay with jaxlib 0.12.1"


def test_an_unknown_version_is_tried_once(tmp_path, program):
    program(0.05, 1000.0)
    assert _flag_trial.objection("0.99.1", FLAG, environ(tmp_path / "cache")) == ""
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.name == "conv-jaxlib-0.99.1.json"
    assert json.loads(kept.read_text()) == {"objection": ""}
    program(0.05, 1.0)
    assert _flag_trial.objection("0.99.1", FLAG, environ(tmp_path / "cache")) == ""
    changed = "with jaxlib 0.99.2, it changes the sum of a gradient from 1000 to 1"
    for _ in range(2):
        assert _flag_trial.objection("0.99.2", FLAG, environ(tmp_path / "cache")) == changed
        program(0.05, 1000.0)


@pytest.mark.parametrize(
    ("seconds", "total", "objection"),
    [
        (0.05, 1000.1, ""),
        (0.15, 1000.0, "it does not pay with jaxlib 1.0.0: 150.0 ms instead of 100.0"),
        (0.05, 1002.0, "with jaxlib 1.0.0, it changes the sum of a gradient from 1000 to 1002"),
    ],
)
def test_what_a_trial_finds(program, seconds, total, objection):
    program(seconds, total)
    assert _flag_trial.attempt("1.0.0", FLAG, environ()) == objection


def test_an_option_that_ends_the_process():
    found = _flag_trial.attempt("1.0.0", "--xla_there_is_no_such_option=1", environ())
    assert found.startswith("a process that tried it with jaxlib 1.0.0 ended with ")


def test_a_trial_that_takes_too_long():
    assert _flag_trial.attempt("1.0.0", FLAG, environ(), limit_seconds=0.01) == "a trial with jaxlib 1.0.0 took more than 0.01 s"


def test_while_one_process_tries_no_other_does(tmp_path, monkeypatch):
    kept = tmp_path / "conv-jaxlib-1.0.0.json"
    found = []

    def meanwhile(version, option, environ):
        found.append(_flag_trial.objection(version, option, environ))
        return "tried"

    monkeypatch.setattr(_flag_trial, "attempt", meanwhile)
    assert _flag_trial.objection("1.0.0", FLAG, environ(tmp_path)) == "tried"
    assert found == [f"it is being tried with jaxlib 1.0.0, or that trial never ended ({kept})"]
    assert _flag_trial.objection("1.0.0", FLAG, environ(tmp_path)) == "tried"


@pytest.mark.parametrize("left", ["", '{"more": 1}'])
def test_a_result_that_is_incomplete(tmp_path, left):
    kept = tmp_path / "conv-jaxlib-1.0.0.json"
    kept.write_text(left)
    assert _flag_trial.objection("1.0.0", FLAG, environ(tmp_path)) == f"{kept} is incomplete: remove it"


def test_no_folder_to_keep_it_in(tmp_path):
    (tmp_path / "file").write_text("")
    text = _flag_trial.objection("1.0.0", FLAG, environ(tmp_path / "file"))
    assert text.startswith("it was not tested with jaxlib 1.0.0, and the result of a trial cannot be kept (")
    assert str(tmp_path / "file") in text


def test_no_python_to_try_it_with(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "/opt/editor")
    text = "it was not tested with jaxlib 1.0.0, and no Python to try it with was found at '/opt/editor'"
    assert _flag_trial.objection("1.0.0", FLAG, environ(tmp_path)) == text


def test_the_folder_of_a_user(tmp_path):
    assert _flag_trial._folder({_flag_trial.CACHE: str(tmp_path)}) == tmp_path
    if sys.platform.startswith("linux"):
        assert _flag_trial._folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "replicant"


IMPORT = """
import importlib.metadata as m
real = m.version
m.version = lambda name: "0.99.1" if name == "jaxlib" else real(name)
import replicant, jax.numpy as jnp
print(replicant.kernels.status().kernels["conv"], float(jnp.ones(3).sum()))
"""


@pytest.mark.slow
def test_import_with_an_unknown_version(tmp_path):
    """The installed jaxlib computes convolutions. The trial is quiet, and the second start reads what the first has kept."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", IMPORT],
            env=environ(tmp_path, JAX_PLATFORMS="cpu"),
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=True,
        )
        kept = json.loads((tmp_path / "conv-jaxlib-0.99.1.json").read_text())["objection"]
        assert kept == "" or kept.startswith("it does not pay with jaxlib 0.99.1: ")
        assert done.stdout == f"{f'off: {kept}' if kept else 'on'} 3.0\n"
        assert done.stderr == ""
