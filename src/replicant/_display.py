"""Small HTML tables that show values in notebooks. All text in them is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_LONGEST = 200  # characters shown of a value: arrays shorten their own text, but other objects may not


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Make an HTML table of texts, with `head` above its columns.

    >>> table([("a<b", "1")], head=("name", "value"))
    '<table><tr><th>name</th><th>value</th></tr><tr><td>a&lt;b</td><td>1</td></tr></table>'
    """
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
        rows.append([str(i), *facts, _short(str(value))])
    head = ["replica", *(["array", "device"] if arrays else []), "value"]
    return titled(f"{kind} of {len(values)} replica{'' if len(values) == 1 else 's'}", table(rows, head))


def strategy(kind: str, devices: Sequence[str], facts: Sequence[tuple[str, str]]) -> str:
    """Show a strategy: its settings, and the device of each replica.

    >>> strategy("MirroredStrategy", ["cpu:0"], [("fused", "no")])
    '<div><b>MirroredStrategy</b><table><tr><td>fused</td><td>no</td></tr><tr><td>replica 0</td><td>cpu:0</td></tr></table></div>'
    """
    return titled(kind, table([*facts, *((f"replica {i}", device) for i, device in enumerate(devices))]))


def _where(value: Any) -> str:
    devices: Any = getattr(value, "devices", tuple)
    return ", ".join(sorted(map(str, devices()))) or "host"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."


def _row(cell: str, texts: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{cell}>{escape(text)}</{cell}>' for text in texts)}</tr>"
