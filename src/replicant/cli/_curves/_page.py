"""Curves as a part of the page of ``replicant report``: a picture for each tag, with the curves of all runs."""

import itertools
import math
from collections.abc import Iterator, Sequence
from html import escape

from ...launch.show._html import table
from ...summary import ScalarEvent
from ._curves import Curves
from ._text import HEAD, rows_of

_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f")
_WIDTH, _HEIGHT, _LEFT, _BELOW, _TOP = 1000, 260, 90, 20, 8  # in units of the picture
_MARKS = 5  # on each axis


def section_of(curves: Curves) -> list[str]:
    """Return the parts of the page."""
    parts = ["<h2>Curves</h2>"]
    for tag, runs in curves.items():
        names = "".join(
            f"<span class='swatch' style='background:{c}'></span>{escape(run)} "
            for c, run in zip(_all_colours(), runs, strict=False)
        )
        parts += [f"<h3>{escape(tag)}</h3>", _picture(tag, list(runs.values())), f"<p>{names}</p>"]
    return [*parts, table(HEAD, [[escape(cell) for cell in row] for row in rows_of(curves)], texts=(0, 1))]


def _all_colours() -> Iterator[str]:
    return itertools.cycle(_COLOURS)


def _picture(tag: str, curves: Sequence[Sequence[ScalarEvent]]) -> str:
    points = [point for curve in curves for point in curve if math.isfinite(point.value)]
    if not points:
        return "<p>No value is finite.</p>"
    (left, right), (low, high) = (
        _range([point.step for point in points]),
        _range([point.value for point in points]),
    )

    def x(step: float) -> float:
        return round(_LEFT + (step - left) / (right - left) * (_WIDTH - _LEFT), 1)

    def y(value: float) -> float:
        return round(_TOP + (1 - (value / 2 - low / 2) / (high / 2 - low / 2)) * (_HEIGHT - _TOP - _BELOW), 1)

    parts = []
    for i in range(_MARKS):
        value, step = low + i * (high / (_MARKS - 1) - low / (_MARKS - 1)), left + i * (right - left) / (_MARKS - 1)
        anchor = "start" if i == 0 else "end" if i == _MARKS - 1 else "middle"
        parts.append(
            f"<line x1='{_LEFT}' x2='{_WIDTH}' y1='{y(value)}' y2='{y(value)}' stroke='currentColor' stroke-opacity='.15'/>"
        )
        parts.append(f"<text x='{_LEFT - 8}' y='{y(value) + 4}' text-anchor='end'>{value:.4g}</text>")
        parts.append(f"<text x='{x(step)}' y='{_HEIGHT - 4}' text-anchor='{anchor}'>{step:.6g}</text>")
    for colour, curve in zip(_all_colours(), curves, strict=False):
        for piece in _finite_pieces(_thinned([(x(point.step), point.value) for point in curve])):
            places = [(at, y(value)) for at, value in piece]
            line = " ".join(f"{at},{height}" for at, height in places)
            parts.append(f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='1.5'/>")
            if len(places) == 1:
                parts.append(f"<circle cx='{places[0][0]}' cy='{places[0][1]}' r='3' fill='{colour}'/>")
    return f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{escape(tag)} by step'>{''.join(parts)}</svg>"


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = 0.5 if low == high == 0 else abs(low) / 2
    return (low - margin, high + margin) if low == high else (low, high)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points without those that none could see: of each unit of width first, lowest, highest and last, unless one is not finite."""
    if len(points) <= 4 * _WIDTH:
        return list(points)
    kept: list[tuple[float, float]] = []
    for _, group in itertools.groupby(points, key=lambda point: int(point[0])):
        column = list(group)
        if any(not math.isfinite(value) for _, value in column):
            kept += column
            continue
        by_value = sorted(range(len(column)), key=lambda i: column[i][1])
        kept += [column[i] for i in sorted({0, by_value[0], by_value[-1], len(column) - 1})]
    return kept


def _finite_pieces(points: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """The parts of a curve between values that are NaN or infinite, which are gaps in it."""
    for finite, group in itertools.groupby(points, key=lambda point: math.isfinite(point[1])):
        if finite:
            yield list(group)
