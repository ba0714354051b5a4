"""Damaged files of every format: an error of ours or the right values, within 5 seconds and 200 MB (see `mutations.py`)."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("mutations.py")
SHARES = 6
FORMATS = 65


def found(seed, count, *formats):
    """What reading so many damaged files of each format gave. A reader that ends the process fails the test."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(PROGRAM), str(seed), str(count), *formats]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=3600)
    assert done.returncode == 0, f"seed {seed}, after {done.stdout[-300:]}: {done.stderr[-3000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_few_damaged_files_of_each_format():
    results = found(0, 15)
    assert len(results) == FORMATS
    for each in results:
        assert each["wrong"] == [], each
        assert each["files"] == 15
    assert sum(each["errors"] for each in results) > 15 * FORMATS // 3


@pytest.mark.long
def test_the_harness_finds_what_is_wrong():
    """A reader that forgets a check is noticed: without its last line, a file has other values."""
    program = (
        f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r}); import mutations, pathlib, tempfile, json\n"
        "mutations.FORMATS = {'text': lambda path: (mutations.text(path)[0], lambda: ['line'], mutations.text(path)[2])}\n"
        "print(json.dumps(mutations.try_format('text', pathlib.Path(tempfile.mkdtemp()) / 'a', 0, 5)))\n"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["wrong"]) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_two_thousand_damaged_files_of_each_format(share):
    seed = int(os.environ.get("REPLICANT_TEST_SEED") or random.SystemRandom().randrange(1 << 30))
    print(f"seed {seed}: python {PROGRAM} {seed} 2000")
    names = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r}); import mutations; print(*mutations.FORMATS, sep='|')",
        ],
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    formats = names.stdout.strip().split("|")[share::SHARES]
    for each in found(seed, 2000, *formats):
        print(each["format"], each["errors"], "errors", f"{each['seconds']:.2f} s", f"{each['mb']:.0f} MB")
        assert each["wrong"] == [], (seed, each)
