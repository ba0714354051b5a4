"""examples/resume_after_kill.py: a program that kills itself ends with the curve of one that does not."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("with_sklearn")

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "resume_after_kill.py"


@pytest.mark.slow
def test_the_curves_are_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--kills", "1", "--seed", "2"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, killed, after, *plot, last = done.stdout.splitlines()
    assert first == "undisturbed: 69 steps"
    # Step 5 is saved in the background: the kill comes after that save or in the middle of it, and both must lose nothing.
    assert killed in [f"killed in step 8; the checkpoint has {steps} steps" for steps in (0, 5)]
    assert after == "after 1 kills: 69 steps"
    assert "#" in "".join(plot)  # where the curves lie over each other
    assert not set("".join(plot)) & set(".o")
    assert last == "All 69 losses are the same, to the last bit."
    assert list(tmp_path.iterdir()) == []
