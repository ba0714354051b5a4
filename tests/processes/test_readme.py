"""The README's program runs as printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_program_in_the_readme_runs_and_learns(tmp_path):
    (program,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    clean = {name: value for name, value in os.environ.items() if name not in {"NPROC", "XLA_FLAGS"}}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env={**clean, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^Epoch [1-5]: loss (\d\.\d{4})$", done.stdout, re.MULTILINE)]
    assert len(losses) == 5
    assert losses[-1] < 0.5 * losses[0]


def test_every_file_that_the_readme_links_to_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert "LICENSE" in links
    assert [link for link in links if not (README.parent / link).exists()] == []
