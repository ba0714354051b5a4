"""The cases and contenders of training, for parts that train one of them themselves."""

import argparse
import importlib
import os
import sys
from typing import Any

from _parts import BENCHMARKS

os.environ.setdefault("KERAS_BACKEND", "jax")
for folder in (BENCHMARKS, BENCHMARKS / "contenders"):
    sys.path.append(str(folder))

cases: Any = importlib.import_module("_cases")
DRY: bool = cases.DRY


def contender() -> Any:
    """Return the module of Replicant's contender. It is imported before Keras, because it sets options of JAX."""
    return importlib.import_module("with_replicant")


def models() -> Any:
    """Return the module of the models."""
    return importlib.import_module("_models")


def strategy() -> Any:
    """Return a strategy for the GPU, or in a dry run for the CPU."""
    import replicant

    return replicant.MirroredStrategy(["cpu:0" if DRY else "gpu:0"])


def arguments(name: str, way: str = "loop", steps: int | None = None) -> argparse.Namespace:
    """Return the arguments that a contender gets for a case."""
    case = cases.ALL_CASES[name]
    return argparse.Namespace(case=case, way=way, replicas=1, steps=steps or case.steps, compiled=False)


def peak() -> int:
    """Return the most bytes of the device's memory that arrays have had at once, or 0 if the device does not tell."""
    import jax

    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
