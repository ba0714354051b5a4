"""Draws log-log plots as small SVG files, with a dotted line for the expected slope."""

import math
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 480, 300, 64, 44, 34, 16
_STYLE = "text{font:12px sans-serif;fill:#888}.g{stroke:#8884}.m{stroke:#3578c8;fill:none;stroke-width:2}.d{fill:#3578c8}"
_EXPECTED = ".e{stroke:#d07020;stroke-dasharray:2 4;fill:none;stroke-width:1.5}"
Points = Sequence[tuple[float, float]]


class _Axes:
    def __init__(self, points: Points):
        self._x = _decades([x for x, _ in points])
        self._y = _decades([y for _, y in points])

    def at(self, x: float, y: float) -> str:
        """Return the place of a point in the drawing."""
        across = _share(x, self._x) * (WIDTH - LEFT - RIGHT) + LEFT
        down = HEIGHT - BOTTOM - _share(y, self._y) * (HEIGHT - BOTTOM - TOP)
        return f"{across:.1f},{down:.1f}"

    def grid(self) -> list[str]:
        """Draw a line and a number for each power of ten."""
        found = []
        for power in range(self._x[0], self._x[1] + 1):
            x = self.at(10.0**power, 10.0 ** self._y[0]).split(",")[0]
            found.append(f'<path class="g" d="M{x},{TOP}V{HEIGHT - BOTTOM}"/>')
            found.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_number(power)}</text>')
        for power in range(self._y[0], self._y[1] + 1):
            y = self.at(10.0 ** self._x[0], 10.0**power).split(",")[1]
            found.append(f'<path class="g" d="M{LEFT},{y}H{WIDTH - RIGHT}"/>')
            found.append(f'<text x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{_number(power)}</text>')
        return found


def plot(path: Path, *, title: str, x_name: str, y_name: str, measured: Points, expected: Points) -> None:
    """Write one plot. All numbers must be positive."""
    axes = _Axes([*measured, *expected])
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f"<title>{escape(title)}</title><style>{_STYLE}{_EXPECTED}</style>",
        f'<text x="{LEFT}" y="14">{escape(title)}</text>',
        f'<text x="{LEFT}" y="29">{escape(y_name)}; dotted: expected slope</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_name)}</text>',
        *axes.grid(),
        f'<polyline class="e" points="{" ".join(axes.at(*p) for p in expected)}"/>',
        f'<polyline class="m" points="{" ".join(axes.at(*p) for p in measured)}"/>',
        *(f'<circle class="d" r="3" cx="{p[0]}" cy="{p[1]}"/>' for p in (axes.at(*p).split(",") for p in measured)),
        "</svg>",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
    return low, max(high, low + 1)


def _share(value: float, decades: tuple[int, int]) -> float:
    low, high = decades
    return (math.log10(value) - low) / (high - low)


def _number(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 3 else f"1e{power}"
