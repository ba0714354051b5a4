"""`replicant run` becomes the program: its arguments, signals, exit codes and settings are those of that process."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from replicant import cli
from replicant.cli import _run

SHOW = """
import json, os, sys
names = ["GLIBC_TUNABLES", "LD_PRELOAD", "JAX_NUM_CPU_DEVICES", "NPROC", "REPLICANT_COMPILATION_CACHE", "XLA_FLAGS"]
names.append("KERAS_BACKEND")
set_ = {name: os.environ[name] for name in names if name in os.environ}
print(json.dumps([sys.argv[1:], sys.path[0], sorted(os.sched_getaffinity(0)), set_]))
"""
KEEP = "glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=2147483647"
SAID = f"replicant run: GLIBC_TUNABLES={KEEP}\n"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cores and allocators are set as Linux has them")


def environment(**more: str) -> dict[str, str]:
    foreign = (
        "GLIBC_TUNABLES",
        "MALLOC_",
        "LD_PRELOAD",
        "JAX_",
        "NPROC",
        "REPLICANT_COMPILATION_CACHE",
        "XLA_FLAGS",
        "KERAS_BACKEND",
    )
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | more


def run(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "replicant", "run", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment(**environ), capture_output=True, text=True, timeout=120, check=False)


def shown(done: subprocess.CompletedProcess[str]) -> list:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_script_and_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "show.py").write_text(SHOW)
    done = run("folder/show.py", "--quiet", "--", "-m", "a b", "", cwd=tmp_path)
    arguments, path, cores, variables = shown(done)
    assert arguments == ["--quiet", "--", "-m", "a b", ""]
    assert Path(path) == tmp_path / "folder"
    assert cores == sorted(os.sched_getaffinity(0))
    assert variables == {"GLIBC_TUNABLES": KEEP}  # and nothing that importing Replicant adds
    assert done.stderr == SAID


def test_all_settings(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    options = ["--cores", str(core), "--threads", "3", "--devices", "2", "--cache", "programs"]
    done = run(*options, "-c", SHOW, "-x", cwd=tmp_path, GLIBC_TUNABLES="glibc.malloc.arena_max=2")
    arguments, _, cores, variables = shown(done)
    assert (arguments, cores) == (["-x"], [core])
    ours = {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "3", "REPLICANT_COMPILATION_CACHE": str(tmp_path / "programs")}
    assert variables == {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2", **ours}
    told = "; ".join(f"{name}={value}" for name, value in ours.items())
    assert done.stderr == f"replicant run: cores {core}; {told}; as you set it: GLIBC_TUNABLES=glibc.malloc.arena_max=2\n"


@pytest.mark.long
def test_jax_gets_the_devices_and_a_module_runs(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "part.py").write_text(
        "import replicant, jax, sys\n"
        "print(__name__, jax.device_count(), sys.argv[1:], replicant.MirroredStrategy().placement.fused)\n"
    )
    options = ["--devices", "3", "--unfused", "--quiet", "-m", "package.part", "-v"]
    done = run(*options, cwd=tmp_path, REPLICANT_COMPILATION_CACHE="0")
    assert (done.stdout, done.stderr, done.returncode) == ("__main__ 3 ['-v'] False\n", "", 0)


@pytest.mark.long
def test_the_exit_code_is_that_of_the_program(tmp_path: Path) -> None:
    assert run("-c", "raise SystemExit(7)", cwd=tmp_path).returncode == 7
    assert run("-c", "import os; os.abort()", cwd=tmp_path).returncode == -signal.SIGABRT


def test_signals_reach_the_program(tmp_path: Path) -> None:
    program = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(33))
print(os.getpid(), flush=True)
signal.pause()
"""
    command = [sys.executable, "-m", "replicant", "run", "--quiet", "-c", program]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert int(process.stdout.readline()) == process.pid  # it is the same process
            process.terminate()
            assert process.wait(60) == 33
        finally:
            process.kill()


def test_another_allocator_is_loaded(tmp_path: Path) -> None:
    ray = importlib.util.find_spec("ray")
    if ray is None:
        pytest.skip("Ray is not installed, whose package contains a real allocator")
    library = Path(str(ray.origin)).parent / "core" / "libjemalloc.so"
    (tmp_path / "libjemalloc.so.2").symlink_to(library)
    program = "import ctypes; print(hasattr(ctypes.CDLL(None), 'mallctl'))"
    done = run("--allocator", "jemalloc", "-c", program, cwd=tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert (done.stdout, done.stderr) == ("True\n", f"replicant run: LD_PRELOAD={tmp_path / 'libjemalloc.so.2'}\n")


FIT = """
import sys, threading
import keras, numpy as np
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.arange(14, dtype="float32").reshape(7, 2)
model.fit(rows, rows[:, :1], batch_size=4, verbose=0)
import replicant
seen = []
thread = threading.Thread(target=lambda: seen.append(replicant.get_strategy()))
thread.start(), thread.join()
strategy = replicant.get_strategy()
assert seen == [strategy] and replicant.has_strategy() and replicant.in_cross_replica_context()
with strategy.scope():
    print(strategy.num_replicas_in_sync, len(model.weights[0].value.devices()), __name__, sys.argv[1:], sys.path[0])
"""


@pytest.mark.long
def test_a_program_without_a_strategy_gets_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    first = "import os\nos.environ['JAX_NUM_CPU_DEVICES'] = '3'\n"  # before Keras and JAX are imported, so it has its effect
    (tmp_path / "folder" / "train.py").write_text(first + FIT)
    done = run("--strategy", "mirrored", "folder/train.py", "-x", cwd=tmp_path, REPLICANT_FUSE_REPLICAS="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"3 3 __main__ ['-x'] {tmp_path / 'folder'}\n"
    assert done.stderr == SAID.replace("run: ", "run: strategy mirrored; ")


UNDER_STRATEGY = {
    "a scope of its own": (
        "import replicant\nwith replicant.MirroredStrategy().scope(): pass",
        (1, "", "but `replicant run --strategy` has made MirroredStrategy(['cpu:0']) the strategy of the whole program."),
    ),
    "a run of its own": (
        "import replicant\nreplicant.OneDeviceStrategy('cpu:0').run(lambda: 1)",
        (1, "", "Leave --strategy out, or let the program use replicant.get_strategy()."),
    ),
    "nothing to distribute": (
        "print(1)",
        (0, "1\n", "--strategy mirrored had no effect, because the program made no model, variable or distributed data."),
    ),
    "nothing, and it exits": ("import sys, replicant\nsys.exit()", (0, "", "--strategy mirrored had no effect")),
    "its own exit code": ("import sys, replicant\nsys.exit(7)", (7, "", "")),
    "another backend": (
        "import os\nos.environ['KERAS_BACKEND'] = 'tensorflow'\nimport keras",
        (1, "", "KERAS_BACKEND is 'tensorflow' when Keras is imported, but strategies need Keras on JAX. Set it to"),
    ),
    "an error": ("import replicant\nraise OSError('own')", (1, "", "OSError: own")),
    "virtual devices": (
        "import replicant\nreplicant.set_virtual_devices(2)\nprint(replicant.get_strategy().num_replicas_in_sync)",
        (0, "2\n", ""),
    ),
    "a child process": (
        """import subprocess, sys, replicant
print(replicant.has_strategy(), flush=True)
subprocess.run([sys.executable, '-c', 'import replicant; print(replicant.has_strategy())'])""",
        (0, "True\nFalse\n", ""),
    ),
}


@pytest.mark.cases("a scope of its own", "another backend")
@pytest.mark.parametrize(("program", "expected"), UNDER_STRATEGY.values(), ids=UNDER_STRATEGY)
@pytest.mark.long
def test_a_program_under_a_strategy(tmp_path: Path, program: str, expected: tuple[int, str, str]) -> None:
    done = run("--strategy", "mirrored", "--quiet", "-c", program, cwd=tmp_path, JAX_NUM_CPU_DEVICES="1")
    code, printed, told = expected
    assert (done.returncode, done.stdout) == (code, printed), done.stderr
    assert told in done.stderr
    assert bool(done.stderr) == bool(told)


@pytest.mark.slow
def test_a_module_under_a_strategy_starts_processes(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "part.py").write_text("""
import multiprocessing, sys
import replicant
def child(number):
    return number + 1, replicant.has_strategy()
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(child, [1]), replicant.has_strategy(), sys.argv[1:])
""")
    done = run("--strategy", "mirrored", "--quiet", "-m", "package.part", "-v", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("[(2, False)] True ['-v']\n", 0), done.stderr


WRONG = [
    (["missing.py"], "The script 'missing.py' does not exist (looked in {cwd}). To run a module, write -m missing.py."),
    (["--cores", "9999", "-c", "1"], "--cores 9999: this process may not use 9999. Choose from "),
    (["--allocator", "fast", "-c", "1"], "--allocator 'fast' is not known. It is one of jemalloc, mimalloc, tcmalloc, or the path"),
    (["--devices", "0", "-c", "1"], "--devices must be from 1 to 1024. Got 0."),
    (["--strategy", "fast", "-c", "1"], "--strategy 'fast' is not known. It is one of: mirrored."),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=["missing", "cores", "allocator", "devices", "strategy"])
def test_mistakes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Before anything is started, so that this process can be the one that is told."""

    def start(*command: object) -> None:
        raise AssertionError(f"{command} is started, in place of the tests")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_run, "_given", environment)
    monkeypatch.setattr(os, "execve", start)
    assert cli.main(["run", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("replicant run: " + message.format(cwd=tmp_path))


@pytest.mark.long
def test_code_or_a_module(tmp_path: Path) -> None:
    done = run("-m", "-c", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert "not allowed with argument" in done.stderr


@pytest.mark.long
def test_what_cannot_be_loaded_is_not_announced(tmp_path: Path) -> None:
    (tmp_path / "libjemalloc.so").write_text("not a library")
    done = run("--allocator", "./libjemalloc.so", "-c", "print('ran')", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "libjemalloc.so cannot be loaded: " in done.stderr
