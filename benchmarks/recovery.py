"""Measures how long a job takes to go on after one of its hosts is lost, and how soon workers that are cut off end.

The hosts are Linux namespaces of this machine (``tests/hosts/_bench.py``), which needs root. Three workers train on three of them.

* ``restart``: all processes of `replicant launch --hosts` on a host are killed. The launcher starts the job again there.
* ``elastic, closed``: a host's processes are killed, and the kernel closes their connections. The two others go on.
* ``elastic, cut``: a host is cut off for ever, and nobody hears of it. The two others go on, and its worker, the minority, ends.

The time runs to the end of the first step that was not made before, or to the end of the minority's process. Run:
``python benchmarks/recovery.py``.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _figures import machine

HOSTS = 3
STRUCK = 2
SECONDS = 150.0  # for a job to start, or to go on
STEP_SECONDS = 0.05
STEPS_PER_BACKUP = 10
ON_THEIR_WAY = 3  # steps that may still end when a host is struck; they do not count
TESTS = Path(__file__).resolve().parents[1] / "tests"
_LIST = "for file in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $file; echo; done 2>/dev/null; true"
_KILL = "kill -9 $(grep -la -e 'recovery.py' -e '._agent import main' /proc/[0-9]*/cmdline | cut -d/ -f3 | grep -vx $$); true"


def contestant(kind: str, folder: Path) -> None:
    """Train for ever, and write the number and the time of every step to a file."""
    import keras
    import numpy as np

    import replicant

    rank = os.environ["JAX_PROCESS_ID"]

    class Steps(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            del logs
            model: Any = self.model
            self.step = int(np.asarray(model.optimizer.iterations))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del batch, logs
            self.step += 1
            with (folder / f"steps-{rank}").open("a") as file:
                file.write(f"{self.step} {time.monotonic()}\n")
            time.sleep(STEP_SECONDS)

    def train() -> None:
        keras.utils.set_random_seed(1)
        draw = np.random.default_rng(0)
        x, y = draw.normal(size=(960, 32)).astype("float32"), draw.integers(0, 10, 960)
        with replicant.MultiWorkerMirroredStrategy().scope():
            model: Any = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
            model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        backup = replicant.keras.callbacks.BackupAndRestore(str(folder / "backup"), save_freq=STEPS_PER_BACKUP)
        model.fit(x, y, batch_size=48, epochs=1000, verbose=0, callbacks=[backup, Steps()])

    if kind == "elastic":
        replicant.run_elastic(train)
    else:
        train()


def steps_of(folder: Path, rank: int) -> list[tuple[int, float]]:
    """The steps that a worker has made, with their times."""
    path = folder / f"steps-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(step), float(when)) for step, when in map(str.split, lines)]


class Job:
    """A job on the hosts of a bench, with a launcher on the first one."""

    def __init__(self, bench: Any, folder: Path, programs: str, kind: str, heartbeat: int):
        self._bench, self._folder, self._kind = bench, folder, kind
        (folder / "job").mkdir()
        self.log = folder / "launcher"
        self._run = [__file__, "--folder", str(folder / "job"), "--contestant", kind]
        environ = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "NPROC": "1"}
        environ |= {"REPLICANT_COMPILATION_CACHE": programs, "PYTHONUNBUFFERED": "1"}
        command = self._elastic(heartbeat) if kind == "elastic" else self._started_again(heartbeat)
        self.launcher = bench.hosts[0].start(command, self.log, environ)

    def _started_again(self, heartbeat: int) -> list[str]:
        sshd: Any = importlib.import_module("_sshd")
        sshd.connect(self._bench, self._folder / "ssh", range(1, HOSTS))
        names = ",".join(host.name for host in self._bench.hosts)
        options = ["--hosts", names, "--max-restarts", "1", "--heartbeat", str(heartbeat)]
        return [sys.executable, "-m", "replicant", "launch", *options, *self._run]

    def _elastic(self, heartbeat: int) -> list[str]:
        tests, _bench = TESTS / "hosts", importlib.import_module("_bench")
        for host in self._bench.hosts:
            log = self._folder / f"agent-{host.name}"
            host.start([sys.executable, "-I", "-S", str(tests / "_agent.py"), host.address, "2300"], log)
            assert _bench.wait_until(lambda log=log: log.read_text() == "listens\n", SECONDS)
        settings = {"command": self._run, "num_workers": HOSTS, "elastic": [HOSTS - 1, HOSTS]}
        settings |= {"heartbeat": heartbeat, "log_dir": str(self._folder / "logs")}
        addresses = [host.address for host in self._bench.hosts]
        told = json.dumps({"address": addresses[0], "workers": addresses, "settings": settings})
        return [sys.executable, str(tests / "_elastic_launcher.py"), told]

    def steps(self) -> list[tuple[int, float]]:
        """The steps of the first worker."""
        return steps_of(self._folder / "job", 0)

    def wait_for(self, is_true: Callable[[], bool]) -> None:
        """Wait until something is true. The job must go on."""
        deadline = time.monotonic() + SECONDS
        while not is_true():
            if time.monotonic() > deadline or self.launcher.poll() is not None:
                logs = [self.log, *sorted((self._folder / "logs").glob("*.log"))]
                raise SystemExit("\n".join(log.read_text()[-2000:] for log in logs))
            time.sleep(0.005)

    def strike(self, how: str) -> float:
        """Strike a host. Returns when that was."""
        host = self._bench.hosts[STRUCK]
        began = time.monotonic()
        if how == "restart":
            subprocess.run([*host._enter, "--", "sh", "-c", _KILL], check=True, timeout=30, capture_output=True)
        elif how == "elastic, closed":
            host.power_off()
        else:
            self._bench.cut(STRUCK)
        return began

    def goes_on(self, last: int) -> float:
        """Wait for a step that was not made before. Returns when it ended. `last` was made when a host was struck."""
        new = last + ON_THEIR_WAY
        self.wait_for(lambda: any(step > new for step, _ in self.steps()))
        return next(when for step, when in self.steps() if step > new)

    def minority_ends(self) -> float:
        """Wait until no worker runs on the host that was struck. Returns when that was."""
        host = self._bench.hosts[STRUCK]
        self.wait_for(lambda: "--contestant elastic" not in host.run("sh", "-c", _LIST))
        return time.monotonic()


def measure(row: str, heartbeat: int, programs: str) -> list[float]:
    """Return the seconds of one run of a row until the job goes on and, after a cut, until the minority has ended."""
    sys.path[:0] = [str(TESTS / "hosts"), str(TESTS / "processes")]
    _bench: Any = importlib.import_module("_bench")
    with tempfile.TemporaryDirectory() as text, _bench.Bench(HOSTS, Path(text) / "hosts") as bench:
        job = Job(bench, Path(text), programs, "restart" if row == "restart" else "elastic", heartbeat)
        job.wait_for(lambda: len(job.steps()) > 3 * STEPS_PER_BACKUP)
        began = job.strike(row)
        last = job.steps()[-1][0]
        ended = [job.minority_ends() - began] if row == "elastic, cut" else []
        return [job.goes_on(last) - began, *ended]


ROWS = ("restart", "elastic, closed", "elastic, cut")


def main() -> None:
    """Measure, and print a row for each kind of loss."""
    parser = argparse.ArgumentParser(description="Measure the time to go on after the loss of a host.")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--heartbeat", type=int, default=5)
    parser.add_argument("--rows", nargs="*", default=ROWS, choices=ROWS)
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        contestant(options.contestant, options.folder)
        return
    print(f"{machine()}; --heartbeat {options.heartbeat}; {options.runs} runs each\n")
    print("| | median | least | most | load before each run |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as programs:
        for row in options.rows:
            measure(row, options.heartbeat, programs)  # compiles what the others read
            found, loads = list[list[float]](), list[str]()
            for _ in range(options.runs):
                loads.append(f"{os.getloadavg()[0]:.0f}")
                found.append(measure(row, options.heartbeat, programs))
            for name, each in zip((row, f"{row}: the minority"), zip(*found, strict=True), strict=False):
                middle = statistics.median(each)
                print(f"| {name} | {middle:.1f} | {min(each):.1f} | {max(each):.1f} | {', '.join(loads)} |", flush=True)


if __name__ == "__main__":
    main()
