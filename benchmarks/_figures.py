"""Medians of paired runs, their intervals, and the machine on which they were measured."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_RESAMPLES = 2000


def ratio(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Return the median over the rounds of a / b, and the 95 % bootstrap interval of that median.

    >>> ratio([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    (2.0, 2.0, 2.0)
    """
    each = np.asarray(a) / np.asarray(b)
    resampled = np.random.default_rng(0).choice(each, (_RESAMPLES, len(each)))
    low, high = np.quantile(np.median(resampled, 1), (0.025, 0.975))
    return float(np.median(each)), float(low), float(high)


def shown(a: Sequence[float], b: Sequence[float]) -> str:
    """Format ``ratio(a, b)``."""
    if not a or not b:
        return "-"
    middle, low, high = ratio(a, b)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the power with which y grows with x, by least squares of the logarithms.

    >>> round(slope([1, 10, 100], [3, 30, 300]), 6)
    1.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def machine() -> dict[str, Any]:
    """Return what the figures depend on, without anything that names the computer."""
    load = os.getloadavg() if hasattr(os, "getloadavg") else (float("nan"),)
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "load": round(load[0], 1),
    }


def processor() -> str:
    """Return the processor's name."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def gpu() -> str | None:
    """Return the name of the first GPU as NVIDIA's driver tells it, or None if there is none."""
    if not (command := shutil.which("nvidia-smi")):
        return None
    options = ["--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run([command, *options], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.partition("\n")[0].strip() or None if done.returncode == 0 else None


def slug(facts: dict[str, Any]) -> str:
    """Return the machine as part of a file name."""
    name = re.sub(r"[^a-z0-9]+", "-", facts["processor"].lower()).strip("-")[:40]
    return f"{name}-{facts['cores']}-cores"
