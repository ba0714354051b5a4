"""A contender's side of the benchmark: a process that trains one round whenever its parent writes a line.

Its answers are lines of JSON on standard output. The first one follows the first round, which also compiles. What libraries print
goes to standard error. A round that takes longer than ``--deadline`` seconds ends the process with a traceback of all threads.
"""

import argparse
import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from _cases import ALL_CASES
from _energy import energy, used

try:
    import resource
except ImportError:  # Windows
    resource = None

LIBRARIES = ("jax", "keras", "replicant", "tensorflow", "tensorflow-cpu", "torch")


class Round(NamedTuple):
    """The mean loss of a round's steps, and the processor seconds and peak memory of the contender's other processes."""

    loss: float
    seconds_elsewhere: float = 0.0
    memory_elsewhere: int = 0


def parse(extra: Callable[[argparse.ArgumentParser], Any] = lambda _: None) -> argparse.Namespace:
    """Read the command line of a contender."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=ALL_CASES)
    parser.add_argument("--way", choices=("fit", "loop"), default="loop")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="with torch.compile, or jit_compile=True")
    parser.add_argument("--steps", type=int, help="the steps of a round (default: those of the case)")
    parser.add_argument("--deadline", type=float, default=120, help="the seconds for a round (default: %(default)s)")
    extra(parser)
    args = parser.parse_args()
    args.case = ALL_CASES[args.case]
    args.steps = args.steps or args.case.steps
    return args


def serve(args: argparse.Namespace, make: Callable[[argparse.Namespace], Callable[[], Round]]) -> None:
    """Make the contender, and train rounds until standard input ends."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        faulthandler.dump_traceback_later(args.deadline, exit=True)
        train = make(args)
        answer(answers, train, {"libraries": {name: v for name in LIBRARIES if (v := installed(name))}}, gpu=args.case.gpu)
        faulthandler.cancel_dump_traceback_later()
        for _ in sys.stdin:
            faulthandler.dump_traceback_later(args.deadline, exit=True)
            answer(answers, train, {}, gpu=args.case.gpu)
            faulthandler.cancel_dump_traceback_later()


def answer(answers: Any, train: Callable[[], Round], facts: dict[str, Any], *, gpu: bool) -> None:
    """Train one round, and write its figures."""
    start, processor, joules = time.perf_counter(), time.process_time(), energy()
    loss, elsewhere, memory = train()
    figures = {
        "loss": loss,
        "seconds": time.perf_counter() - start,
        "processor": time.process_time() - processor + elsewhere,
        "memory": peak_memory() + memory,
        "joules": used(joules, energy()),
    }
    if gpu:
        figures["gpu_memory"] = peak_gpu_memory()
    print(json.dumps(figures | facts), file=answers, flush=True)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had at once, or 0 where the system does not tell."""
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def peak_gpu_memory() -> int:
    """Return the most bytes of the GPU's memory that arrays of this process have had at once, or 0 if its library does not tell."""
    if jax := sys.modules.get("jax"):
        return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    torch = sys.modules.get("torch")
    return torch.cuda.max_memory_allocated() if torch else 0


def installed(name: str) -> str | None:
    """Return the version of a library that is imported."""
    if name.removesuffix("-cpu") not in sys.modules:
        return None
    try:
        return version(name)
    except PackageNotFoundError:
        return None
