"""The report of a run, and the table of the page, from the figures of training."""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _parts import BENCHMARKS, MODELS, Outcome, training_json

sys.path.append(str(BENCHMARKS))

from _figures import shown

FIT, LOOP, COMPILED, HAND = "Replicant fit", "Replicant loop", "PyTorch, torch.compile", "hand-written JAX"
NOT, EVERYTHING = "not measured", "Every part that was asked for was measured."
_HEADS = (
    "bfloat16, one GPU", "ms/step: `fit`", "loop", "torch.compile", "hand-written JAX",
    "times as fast as torch.compile: `fit`", "loop", "as hand-written JAX: `fit`", "loop",
    "peak memory / hand-written JAX's: `fit`", "loop",
)  # fmt: skip


def results_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the figures of training by model. Models that were not measured are not among them."""
    files = {model: training_json(folder, model) for model in MODELS}
    return {model: json.loads(file.read_text())["results"][0] for model, file in files.items() if file.exists()}


def missing(result: dict[str, Any]) -> list[str]:
    """Name the contenders of one model that have no figures, with the reason."""
    found = result["contenders"]
    return [
        f"{name}: {found[name]['failed'] if name in found else NOT}"
        for name in (FIT, LOOP, COMPILED, HAND)
        if not found.get(name, {}).get("seconds")
    ]


def page_table(results: dict[str, dict[str, Any]]) -> str:
    """Draw the table of docs/performance.md, with a row for each model."""
    lines = [f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"]
    lines += [f"| {' | '.join([model, *_cells(results.get(model))])} |" for model in MODELS]
    return "\n".join(lines)


def _cells(result: dict[str, Any] | None) -> list[str]:
    if result is None:
        return [NOT] * (len(_HEADS) - 1)
    found = result["contenders"]
    seconds = {name: found.get(name, {}).get("seconds", []) for name in (FIT, LOOP, COMPILED, HAND)}
    times = [f"{statistics.median(each) / result['steps'] * 1e3:.3g}" if each else NOT for each in seconds.values()]
    ratios = [shown(seconds[peer], seconds[own]) for peer in (COMPILED, HAND) for own in (FIT, LOOP)]
    memory = {name: found.get(name, {}).get("gpu_memory", 0) for name in (FIT, LOOP, HAND)}
    shares = [f"{memory[own] / memory[HAND]:.3f}" if memory[own] and memory[HAND] else NOT for own in (FIT, LOOP)]
    return [*times, *(text if text != "-" else NOT for text in ratios), *shares]


def report(head: str, outcomes: Sequence[Outcome], results: dict[str, dict[str, Any]]) -> str:
    """Return the report in Markdown: the page's table, what is missing, and a section for each part."""
    lines = [head, "", page_table(results), ""]
    lines += [f"* **{problem}**" for problem in problems(outcomes, results)] or [EVERYTHING]
    for outcome in outcomes:
        lines += ["", f"## {outcome.part.title} ({outcome.seconds:.0f} s)", "", outcome.text or NOT]
    return "\n".join(lines) + "\n"


def problems(outcomes: Sequence[Outcome], results: dict[str, dict[str, Any]]) -> list[str]:
    """Name what failed and what was not measured."""
    found = [f"{outcome.part.name}: {outcome.failed}" for outcome in outcomes if outcome.failed]
    names = {outcome.part.name for outcome in outcomes}
    return found + [f"{model}: {text}" for model, result in results.items() if model in names for text in missing(result)]
