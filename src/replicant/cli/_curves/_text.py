"""Curves for a terminal: a line for each run of each tag."""

import math

from ..._display import columns
from ._curves import Curves

HEAD = ("tag", "run", "points", "steps", "first", "last", "least", "most")


def rows_of(curves: Curves) -> list[tuple[str, ...]]:
    """Return the cells of a table of all curves, as text."""
    rows = []
    for tag, runs in curves.items():
        for run, points in runs.items():
            steps = [point.step for point in points]
            values = [point.value for point in points if math.isfinite(point.value)]
            span = f"{min(steps)} to {max(steps)}"
            ends = [f"{points[i].value:.6g}" for i in (0, -1)]
            rows.append(
                (tag, run, str(len(points)), span, *ends, *(f"{pick(values):.6g}" if values else "-" for pick in (min, max)))
            )
    return rows


def text_of(curves: Curves) -> str:
    """Return a table of all curves."""
    return "".join(f"  {line}\n" for line in columns([HEAD, *rows_of(curves)], left=(0, 1)))
