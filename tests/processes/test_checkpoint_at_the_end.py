"""What was not written in the background is told when the program ends, if nobody has asked before."""

import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import gc, os, sys, threading
import replicant
folder, later = sys.argv[1], replicant.CheckpointOptions(enable_async=True)
open(f"{folder}/file", "w").close()

def write(name):
    checkpoint = replicant.Checkpoint(x=1)
    checkpoint.write(f"{folder}/file/{name}", later)
    return checkpoint

def ended():
    for thread in threading.enumerate():
        if thread.name == "replicant-checkpoint":
            thread.join()

"""
PROGRAMS = {
    "dropped": ('one = write("one")\nended()\ndel one\ngc.collect()', ["one"]),
    "two": ('one, two = write("one"), write("two")', ["one", "two"]),
    "one was heard": (
        'one, two = write("one"), write("two")\ntry:\n    two.sync()\nexcept replicant.errors.CheckpointError:\n    pass',
        ["one"],
    ),
}


@pytest.mark.parametrize(("program", "names"), PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.long
def test_every_error_is_told(tmp_path: Path, program: str, names: list[str]) -> None:
    args = [sys.executable, "-c", BEGIN + program, str(tmp_path)]
    ended = subprocess.run(args, capture_output=True, text=True, timeout=120, check=True)
    errors = [line for line in ended.stderr.splitlines() if "file/" in line and "could not be written" in line]
    assert sorted(line.partition("file/")[2].split()[0] for line in errors) == names, ended.stderr
    assert ("CheckpointError: 2 checkpoints could not be written in the background:" in ended.stderr) == (len(names) == 2)
