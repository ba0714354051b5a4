"""Lowers the steps that are measured on a GPU for CUDA, on a machine without one: ``fit``'s, the loop's, and the hand-written one.

The models are those of ``training.py --models gpt2,resnet50,cnn_bf16``, in bfloat16, on one device, and a block of attention on one
and on two. Run: ``python benchmarks/gpu_steps.py [--only gpt2] [--write]``.
"""

import argparse
import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")
sys.path.append(str(Path(__file__).resolve().parent / "contenders"))

import jax
import keras
import numpy as np

import replicant
from _gpu import Facts, as_on_a_gpu, facts, lower

cases: Any = importlib.import_module("_cases")
models: Any = importlib.import_module("_models")
with_jax: Any = importlib.import_module("with_jax")
with_replicant: Any = importlib.import_module("with_replicant")

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- measured steps lowered for GPUs -->", "<!-- end of measured steps lowered for GPUs -->"
WAYS = ("fit", "loop", "hand-written JAX")
ROWS = 2  # of a batch per device: no row of the table depends on it


class Row(NamedTuple):
    """A row of the table: a case, a way to train it, and the number of devices."""

    case: str
    way: str
    devices: int


def attention(x: Any) -> Any:
    """Build a block of causal attention."""
    y = keras.layers.MultiHeadAttention(2, 64, name="attention")(x, x, use_causal_mask=True)
    return keras.layers.Dense(10, name="logits")(keras.layers.Add(name="sum")([x, y]))


def case_of(name: str) -> Any:
    """Return a case with a small batch."""
    if name == "attention":
        models.NETWORKS["attention"] = attention
        return cases.Case("attention", "attention", (32, 128), ROWS, 1, 1, policy="mixed_bfloat16")
    return dataclasses.replace(cases.GPU_CASES[name], batch=ROWS, gpu=False)


def rows() -> Iterator[Row]:
    """Yield all rows."""
    yield from (Row(name, way, 1) for name in cases.GPU_CASES for way in WAYS)
    yield from (Row("attention", way, n) for n in (1, 2) for way in WAYS)


def arguments(row: Row) -> argparse.Namespace:
    """Return the arguments that a contender gets."""
    case = case_of(row.case)
    case = dataclasses.replace(case, batch=ROWS * row.devices)
    return argparse.Namespace(case=case, way=row.way, replicas=row.devices, steps=1, compiled=False)


def data_of(case: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return one batch of zeros."""
    by_position = case.name in ("gpt2", "attention")
    labels = (case.batch, *case.shape[:1]) if by_position else (case.batch,)
    return np.zeros((case.batch, *case.shape), case.dtype), np.zeros(labels, "int32")


def program(row: Row) -> Callable[[], None]:
    """Return the program of a row of Replicant's."""

    def run() -> None:
        args, before = arguments(row), keras.mixed_precision.dtype_policy()
        own = {module: module.data for module in (models, with_replicant)}
        try:
            for module in own:
                module.data = lambda case, _: data_of(case)
            strategy = replicant.MirroredStrategy()
            if row.way == "fit":
                with strategy.scope():
                    model = models.make_model(args.case)
                models.fit_rounds(args.case, model, 1)()
            else:
                with_replicant.loop(args, strategy)()
        finally:
            for module, found in own.items():
                module.data = found
            keras.mixed_precision.set_global_policy(before)

    return run


def by_hand(row: Row) -> Facts:
    """Lower the step that is written by hand in JAX."""
    args, before = arguments(row), keras.mixed_precision.dtype_policy()
    try:
        with as_on_a_gpu():
            model, optimizer = models.make_model(args.case), keras.optimizers.Adam()
            optimizer.build(model.trainable_variables)
            groups = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
            state = tuple([jax.ShapeDtypeStruct(v.shape, v.dtype) for v in group] for group in groups)
            step, _ = with_jax.make_step(args, model, optimizer)
            text = step.trace(state, *data_of(args.case)).lower(lowering_platforms=("cuda",)).as_text()
    finally:
        keras.mixed_precision.set_global_policy(before)
    return facts(text, sum(map(len, state)))


def lowered(row: Row) -> Facts:
    """Lower the step of a row."""
    return by_hand(row) if row.way == WAYS[-1] else lower(program(row), row.devices)


def table(found: dict[Row, Facts]) -> str:
    """Draw the table in Markdown."""
    heads = [
        "model",
        "devices",
        "step",
        "products in bf16",
        "in float32",
        "overwritten",
        "all-reduce asked for",
        "cuDNN",
        "never there",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row, each in found.items():
        bfloat16 = each.products.get("bf16", 0)
        other = sum(each.products.values()) - bfloat16
        never = each.callbacks + each.moves + each.has_float64
        cells = [row.case, row.devices, row.way, bfloat16, other, f"{each.donated} of {each.state}"]
        cells += [each.exchanges.get("all_reduce", 0), each.kernels, never]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> int:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/performance.md")
    options = parser.parse_args()
    replicant.set_virtual_devices(2)
    found: dict[Row, Facts] = {}
    for row in rows():
        if options.only in row.case:
            print(row, flush=True, file=sys.stderr)
            found[row] = lowered(row)
    drawn = table(found)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{drawn}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    else:
        print(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
