"""Draws the scaling curve of a plan."""

import math

from ..errors import ArgumentError
from ._plan import Plan

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 560, 320, 56, 40, 16, 44


def scaling_plot(plan: Plan) -> str:
    """Draw the efficiency against the number of devices as SVG, with the plan's own number marked.

    Raises:
        ArgumentError: If the plan is for a CPU, which has no scaling.
    """
    rows = plan.scaling()
    if not rows:
        raise ArgumentError(
            f"{plan.target.text!r} has no scaling to draw, because all replicas share this machine's cores. Plan for 'gpu:8xh100' "
            "or 'v5e:16x16', or leave out --plot."
        )
    span = max(1.0, math.log2(rows[-1][0]))

    def place(num_devices: int, efficiency: float) -> tuple[float, float]:
        x = _LEFT + math.log2(num_devices) / span * (_WIDTH - _LEFT - _RIGHT)
        return round(x, 1), round(_TOP + (1 - efficiency) * (_HEIGHT - _TOP - _BOTTOM), 1)

    points = " ".join(f"{x},{y}" for x, y in (place(n, e) for n, _, e in rows))
    base = _HEIGHT - _BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">Efficiency, {plan.chip.name}, same batch on each device</text>',
    ]
    for percent in (0, 25, 50, 75, 100):
        _, y = place(1, percent / 100)
        lines.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{percent} %</text>')
    for n, _, efficiency in rows[:: max(1, len(rows) // 6)]:
        lines.append(f'<text x="{place(n, efficiency)[0]}" y="{base + 18}" text-anchor="middle">{n}</text>')
    lines.append(f'<text x="{(_LEFT + _WIDTH) // 2}" y="{_HEIGHT - 8}" text-anchor="middle">devices</text>')
    lines.append(f'<polyline points="{points}" fill="none" stroke="#1f6feb" stroke-width="2"/>')
    lines += [f'<circle cx="{x}" cy="{y}" r="3" fill="#1f6feb"/>' for x, y in (place(n, e) for n, _, e in rows)]
    mine = min(rows, key=lambda row: abs(row[0] - plan.target.num_devices))
    x, y = place(mine[0], mine[2])
    lines.append(f'<circle cx="{x}" cy="{y}" r="6" fill="none" stroke="#d1242f" stroke-width="2"/>')
    return "\n".join([*lines, "</svg>", ""])
