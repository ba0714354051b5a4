"""The wheel, in an environment that has nothing else but what it says that it needs, and far from any clone.

`make package` does the same with packages from the index, and runs a new project's tests, too.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import replicant

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def call(*command: str | Path, cwd: Path, **environ: str) -> str:
    env = {"HOME": str(cwd), "PATH": os.defpath, "REPLICANT_COMPILATION_CACHE": str(ROOT / "build" / "programs"), **environ}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that is built from the sdist, as `python -m build` does it."""
    folder, copy = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("clone")  # building leaves files beside the sources
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src" / "replicant", copy / "src" / "replicant", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", folder, copy], capture_output=True, text=True, timeout=300, check=False
    )
    if "Could not find a version that satisfies the requirement setuptools" in done.stdout + done.stderr:
        pytest.skip("setuptools cannot be downloaded, with which the wheel is built")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(folder.glob("*.tar.gz"))) == 1
    (path,) = folder.glob("*.whl")
    return path


def requirements(name: str, found: set[str]) -> set[str]:
    """Add a distribution and all that it requires without extras."""
    if name not in found:
        found.add(name)
        for each in importlib.metadata.requires(name) or []:
            if "extra ==" not in each:
                try:
                    requirements(re.split(r"[^A-Za-z0-9._-]", each, maxsplit=1)[0].lower().replace("_", "-"), found)
                except importlib.metadata.PackageNotFoundError:
                    continue  # of another system or Python
    return found


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """A Python that finds the wheel and its requirements, which are links to those of this environment, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    needed = set[str]()
    for each in PROJECT["project"]["dependencies"]:
        requirements(re.split(r"[<>=]", each)[0], needed)
    for name in needed:
        files = importlib.metadata.files(name) or []
        for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
            (site / top).symlink_to(Path(importlib.metadata.distribution(name).locate_file(top)))
    return folder / "bin" / "python"


@pytest.mark.slow
def test_the_programs_run_from_the_wheel(python, tmp_path):
    where = call(python, "-c", "import replicant; print(replicant.__file__, replicant.__version__)", cwd=tmp_path)
    assert where.split() == [str(next(python.parents[1].glob("lib*/*/site-packages/replicant/__init__.py"))), replicant.__version__]
    (program,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(re.findall(r"^Epoch \d: loss", call(python, "-W", "error", "-c", program, cwd=tmp_path), re.MULTILINE)) == 5
    assert "0 failed" in call(python, "-m", "replicant", "doctor", cwd=tmp_path)
    call(python, "-m", "replicant", "new", "fish", "--template", "lm", cwd=tmp_path)  # which needs no other packages
    assert "Train fish." in call(python, "fish.py", "--help", cwd=tmp_path / "fish")


@pytest.mark.slow
def test_what_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"replicant_jax-{replicant.__version__}.dist-info/METADATA").decode()
    templates = {f"replicant/cli/templates/{name}/project.py.txt" for name in ("loop", "fit", "jax", "lm", "nnx", "ps")}
    assert {"replicant/py.typed", *templates} <= names
    assert {name.partition("/")[0] for name in names} == {"replicant", f"replicant_jax-{replicant.__version__}.dist-info"}
    assert f"\nVersion: {replicant.__version__}\n" in metadata
    assert "\nProvides-Extra: all\n" in metadata


def test_the_version_stands_in_one_place():
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"] == {"version": {"attr": "replicant.__version__"}}


def test_the_extra_all_has_every_extra_of_ours():
    extras = PROJECT["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.removeprefix("replicant-jax[").removesuffix("]").split(","))
    assert named == extras.keys() - {"all", "dev", "docs", "onnx", "tf", "torch", "tpu-plan"}


def test_another_system_is_told_what_to_do():
    program = "import sys; sys.platform = 'win32'; import replicant"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "UnsupportedSystemError: Replicant does not run on Windows: it locks files, " in done.stderr
    assert done.stderr.rstrip().endswith("where everything works that works on Linux.")
