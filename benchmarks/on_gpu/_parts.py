"""The parts of the measurement: programs of their own, each with a deadline. What they print is their section of the report."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHMARKS, ROOT = HERE.parent, HERE.parents[1]
MODELS = ("gpt2", "resnet50", "cnn_bf16")
_TO_END = 5.0  # seconds that a part has to end after it was asked to


@dataclasses.dataclass(frozen=True)
class Part:
    """One part.

    Args:
        name: Its name on the command line.
        title: Its title in the report.
        command: What it runs, without the interpreter.
        seconds: Its deadline.
        least: The seconds that parts before it leave to it. With less, it is not begun.
    """

    name: str
    title: str
    command: tuple[str, ...]
    seconds: float
    least: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a part: what it printed, its seconds, and the reason why it has no figures, or not all of them."""

    part: Part
    text: str = ""
    seconds: float = 0.0
    failed: str | None = None


def training_json(folder: Path, model: str) -> Path:
    """Return the file in which a training part leaves its figures."""
    return folder / f"{model}.json"


def all_parts(folder: Path, python_of_peers: str, *, dry: bool) -> list[Part]:
    """Return all parts, the most important ones first.

    Args:
        folder: Where parts leave figures.
        python_of_peers: The interpreter that has PyTorch.
        dry: Whether sizes are tiny.
    """
    minutes, rounds = ("0.5", "3") if dry else ("1.2", "6")
    compared = ("--contenders", "Replicant", "torch.compile", "hand-written", "--peers-python", python_of_peers)
    limits = ("--replicas", "1", "--rounds", rounds, "--minutes", minutes, "--deadline", "80")
    training = [
        Part(
            model,
            f"Training: {model}",
            (str(BENCHMARKS / "training.py"), "--models", model, *limits, *compared, "--json", str(training_json(folder, model))),
            180 if dry else 120,
            70,
        )
        for model in MODELS
    ]
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "gpu"))
    own = {name: (str(HERE / f"{name}.py"),) for name in ("starts", "executions", "saves", "reads", "predictions")}
    return [
        *training,
        Part("starts", "Start to first step, and compile time", (*own["starts"], "--peers-python", python_of_peers), 150, 70),
        Part("executions", "`fit` with steps_per_execution", own["executions"], 60, 25),
        Part("saves", "A checkpoint in the background", own["saves"], 60, 25),
        Part("predictions", "Plan against run", own["predictions"], 90, 40),
        Part("reads", "Input from files", own["reads"], 90, 50),
        Part("tests", "tests/gpu", tests, 90, 40),
    ]


def run(part: Part, seconds: float, environment: Mapping[str, str]) -> Outcome:
    """Run a part for at most so many seconds, and end all of its processes."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, *part.command], stdout=out, stderr=log, env={**os.environ, **environment}, start_new_session=True
        )
        failed = None
        try:
            if code := process.wait(seconds):
                failed = f"exit code {code}"
        except subprocess.TimeoutExpired:
            failed = f"not finished within {seconds:.0f} s"
        finally:
            end_group(process)
        out.seek(0)
        log.seek(0)
        text, errors = (file.read().decode(errors="replace").strip() for file in (out, log))
    if failed and (lines := [line for line in (errors or text).splitlines() if line.strip()]):
        failed += f": {lines[-1].strip()[:200]}"
    return Outcome(part, text, time.monotonic() - began, failed)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask a process and those that it has started to end, and kill what is left."""
    for number, seconds in ((signal.SIGTERM, _TO_END), (signal.SIGKILL, _TO_END)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def run_all(parts: Sequence[Part], end: float, environment: Mapping[str, str]) -> Iterator[Outcome]:
    """Run parts one after the other until ``time.monotonic`` reaches `end`. None stops the others. Yields what became of each.

    Args:
        parts: The parts.
        end: The time at which the last one has ended.
        environment: Variables of the environment besides those of this process.
    """
    for i, part in enumerate(parts):
        left = end - time.monotonic() - 2 * _TO_END
        seconds = min(part.seconds, max(part.least, left - sum(later.least + _TO_END for later in parts[i + 1 :])))
        outcome = Outcome(part, failed="not measured: no time was left") if left < part.least else run(part, seconds, environment)
        print(f"{part.name}: {outcome.failed or 'done'}, {outcome.seconds:.0f} s", file=sys.stderr, flush=True)
        yield outcome
