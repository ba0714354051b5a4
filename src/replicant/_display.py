"""Tables in text, and small HTML tables and pictures that show values in notebooks.

All text in HTML is escaped, and shortened. Showing a value changes nothing, ends within seconds, and never raises.
"""

import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any

_LONGEST = 200  # characters shown of a value: arrays shorten their own text, but other objects may not
_MOST_ROWS = 32  # of a table, beside the last one
_MOST_BYTES = 1 << 20  # of an array whose numbers are shown: they have to come from a device
_MOST_SECONDS = 5.0  # of waiting for an array that is still being computed


def table_of(title: str, rows: Mapping[str, str]) -> str:
    """Make a message with a row for each worker, or whatever has a name.

    >>> print(table_of("They differ:", {"worker 0": "a", "worker 10": "b"}))
    They differ:
      worker 0   a
      worker 10  b
    """
    width = max(map(len, rows), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {text}" for name, text in rows.items())])


def columns(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """Make the lines of a table in text. The columns whose numbers are in `left` begin at one place; the others end at one place.

    >>> columns([("step", "program"), ("9", "train"), ("10", "test")], left=(1,))
    ['step  program', '   9  train', '  10  test']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        lines.append("  ".join(each.ljust(n) if i in left else each.rjust(n) for i, (each, n) in enumerate(cells)).rstrip())
    return lines


def hanging(first: str, text: str, width: int = 100) -> list[str]:
    """Make lines of a text, the first of which begins with `first`, and the others with as many blanks.

    >>> hanging("doubt  ", "one of several, as HOROVOD_SIZE=4 says", width=30)
    ['doubt  one of several, as', '       HOROVOD_SIZE=4 says']
    """
    wrapped = textwrap.wrap(text, max(20, width - len(first)), break_long_words=False, break_on_hyphens=False)
    return [(first if i == 0 else " " * len(first)) + line for i, line in enumerate(wrapped or [""])]


def printable(text: str) -> str:
    r"""Return the text on one line, with everything escaped that a terminal would obey.

    >>> print(printable("a\x1b[2J\n"))
    a\x1b[2J\n
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Make an HTML table of texts, with `head` above its columns.

    >>> table([("a<b", "1")], head=("name", "value"))
    '<table><tr><th>name</th><th>value</th></tr><tr><td>a&lt;b</td><td>1</td></tr></table>'
    """
    rows = [list(row) for row in rows]
    if len(rows) > _MOST_ROWS + 2:
        more = [f"... {len(rows) - _MOST_ROWS - 1} more ...", *[""] * (len(rows[0]) - 1)]
        rows = [*rows[:_MOST_ROWS], more, rows[-1]]
    lines = [_row("th", head)] if head else []
    return f"<table>{''.join([*lines, *(_row('td', row) for row in rows)])}</table>"


def titled(title: str, html: str) -> str:
    """Put a bold title above a piece of HTML.

    >>> titled("PerReplica of 2", "<table></table>")
    '<div><b>PerReplica of 2</b><table></table></div>'
    """
    return f"<div><b>{escape(title)}</b>{html}</div>"


def replicas(kind: str, values: Sequence[Any], first_id: int = 0) -> str:
    """Show a value that exists once per replica: one row per replica, with the shape, dtype and device of arrays.

    >>> replicas("PerReplica", ["<a>", 2])
    '<div><b>PerReplica of 2 replicas</b><table><tr><th>replica</th><th>value</th></tr><tr><td>0</td><td>&lt;a&gt;</td></tr><tr><td>1</td><td>2</td></tr></table></div>'
    """  # noqa: E501 - the expected output of a doctest is one line
    arrays = all(hasattr(value, "shape") and hasattr(value, "dtype") for value in values)
    rows = []
    for i, value in enumerate(values, start=first_id):
        facts = [f"{value.dtype}{list(value.shape)}", _where(value)] if arrays else []
        rows.append([str(i), *facts, shown(value)])
    head = ["replica", *(["array", "device"] if arrays else []), "value"]
    return titled(f"{kind} of {len(values)} replica{'' if len(values) == 1 else 's'}", table(rows, head))


def strategy(kind: str, devices: Sequence[str], facts: Sequence[tuple[str, str]]) -> str:
    """Show a strategy: its settings, and the device of each replica.

    >>> strategy("MirroredStrategy", ["cpu:0"], [("fused", "no")])
    '<div><b>MirroredStrategy</b><table><tr><td>fused</td><td>no</td></tr><tr><td>replica 0</td><td>cpu:0</td></tr></table></div>'
    """
    return titled(kind, table([*facts, *((f"replica {i}", device) for i, device in enumerate(devices))]))


def shown(value: Any) -> str:
    """Return the text of a value, shortened, or why there is none.

    >>> shown("x" * 1000) == "x" * 196 + " ..."
    True
    """
    if _safely(getattr(value, "is_deleted", bool)) is True:
        return "deleted: a later step has taken its memory"
    if getattr(value, "nbytes", 0) > _MOST_BYTES:
        return f"{value.nbytes / (1 << 20):,.1f} MiB, not shown"
    if not _is_ready(value):
        return "still being computed"
    return short(_safely(lambda: str(value)))


def _is_ready(value: Any) -> bool:
    """Wait a little for an array that is still being computed."""
    is_ready, deadline = getattr(value, "is_ready", None), time.monotonic() + _MOST_SECONDS
    while is_ready is not None and not _safely(is_ready):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _safely(read: Callable[[], Any]) -> Any:
    """Return what `read` returns, or which error it has raised."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - an object of any library; showing it must not stop a notebook
        return f"cannot be shown ({type(error).__name__})"


def _where(value: Any) -> str:
    devices: Any = getattr(value, "devices", tuple)
    found = _safely(devices)
    return found if isinstance(found, str) else ", ".join(sorted(map(str, found))) or "host"


def short(text: str) -> str:
    """Shorten a text."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."


def _row(cell: str, texts: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{cell}>{escape(text)}</{cell}>' for text in texts)}</tr>"


_WIDTH, _HEIGHT, _LEFT, _BELOW, _TOP = 420, 150, 44, 34, 12  # of a curve's picture, in units of its own


def curve(title: str, points: Sequence[tuple[int, float]]) -> str:
    """Draw shares between 0 and 1 over counts that double, as an SVG picture in the colours of its surroundings.

    >>> curve("efficiency", [(1, 1.0), (2, 0.5)]).count("<circle")
    2
    """
    if not points:
        return ""
    step = (_WIDTH - _LEFT - 16) / max(1, len(points) - 1)
    tall = _HEIGHT - _BELOW - _TOP
    places = [(round(_LEFT + i * step, 1), round(_TOP + (1 - min(1.0, max(0.0, y))) * tall, 1)) for i, (_, y) in enumerate(points)]
    grid = [(share, _TOP + (1 - share) * tall) for share in (0.0, 0.5, 1.0)]
    parts = [
        *[f"<line x1='{_LEFT}' x2='{_WIDTH - 16}' y1='{y}' y2='{y}' stroke='currentColor' stroke-opacity='.2'/>" for _, y in grid],
        *[f"<text x='{_LEFT - 6}' y='{y + 4}' text-anchor='end'>{share:.0%}</text>" for share, y in grid],
        f"<polyline points='{' '.join(f'{x},{y}' for x, y in places)}' fill='none' stroke='#4e79a7' stroke-width='2'/>",
    ]
    for (x, y), (count, share) in zip(places, points, strict=True):
        parts.append(f"<circle cx='{x}' cy='{y}' r='3' fill='#4e79a7'><title>{count}: {share:.1%}</title></circle>")
        parts.append(f"<text x='{x}' y='{_HEIGHT - _BELOW + 16}' text-anchor='middle'>{count}</text>")
    parts.append(f"<text x='{_LEFT}' y='{_HEIGHT - 3}'>{escape(title)}</text>")
    style = f"width:{_WIDTH}px;max-width:100%;font:11px system-ui,sans-serif;color:inherit"
    return (
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' style='{style}' fill='currentColor' role='img' aria-label='{escape(title)}'>"
        f"{''.join(parts)}</svg>"
    )
