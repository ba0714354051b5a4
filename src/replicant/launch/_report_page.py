"""The account of a job as a page: one HTML file that needs nothing else."""

from collections.abc import Callable
from html import escape

from ._account import COUNTED, DOWN, REPEATED, STARTING, Account, Span
from ._report_text import duration, outcome

_COLOURS = {COUNTED: "#2a9d5c", STARTING: "#e9b44c", REPEATED: "#d1495b", DOWN: "#c9ccd1"}
_WIDTH, _LEFT, _ROW, _BAR, _MARKS = 1000, 90, 26, 18, 5
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1040px; padding: 0 1rem; color: #1d2126; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 1.6rem; }
code { background: #f1f2f4; padding: .1rem .3rem; }
svg { width: 100%; height: auto; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .2rem .9rem .2rem 0; text-align: right; }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left; } th { border-bottom: 1px solid #c9ccd1; font-weight: 600; }
.swatch { display: inline-block; width: .9rem; height: .9rem; margin-right: .4rem; vertical-align: -.1rem; }
text { font: 12px system-ui, sans-serif; fill: #1d2126; }
"""


def page_of(job: Account) -> str:
    """Return the page."""
    whole = job.stop - job.start
    run, counted = sum(period.steps for period in job.periods), sum(period.counted_steps for period in job.periods)
    facts = f"{counted} of {run} steps counted, {len(job.periods)} group(s) of workers, {len(job.saves)} checkpoint(s)."
    shares = [
        (_swatch(kind), kind, duration(seconds), f"{seconds / whole:.1%}" if whole > 0 else "-")
        for kind, seconds in job.seconds.items()
    ]
    body = [
        f"<h1>{job.goodput:.1%} of {duration(whole)} in steps that counted</h1>",
        f"<p><code>{escape(job.command)}</code><br>{escape(outcome(job))}; {facts}</p>",
        _picture(job),
        _table(("", "what", "time", "share"), shares),
    ]
    if job.losses:
        rows = [("", escape(cause), duration(seconds)) for cause, seconds in sorted(job.losses, key=lambda loss: -loss[1])]
        body += ["<h2>Lost, with the time until the next step</h2>", _table(("", "cause", "time"), rows)]
    body += ["<h2>Workers</h2>", _workers(job)]
    head = f"<meta charset='utf-8'><title>replicant report</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'>{head}{''.join(body)}</html>\n"


def _swatch(kind: str) -> str:
    return f"<span class='swatch' style='background:{_COLOURS[kind]}'></span>"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>{lines}</table>"


def _picture(job: Account) -> str:
    """A time line of each worker. Crosses are failures, and lines through all of them are checkpoints."""
    whole = job.stop - job.start or 1.0

    def x(at: float) -> float:
        return round(_LEFT + (at - job.start) / whole * (_WIDTH - _LEFT), 2)

    parts, height = [], _ROW * len(job.workers)
    for row, (rank, worker) in enumerate(sorted(job.workers.items())):
        top = row * _ROW
        parts.append(f"<text x='0' y='{top + 14}'>rank {rank}</text>")
        parts += [bar for ran in worker.ran for span in job.spans if (bar := _bar(x, top, span, ran))]
        for at, what in worker.failures:
            title = f"<title>rank {rank} {escape(what)}, after {duration(at - job.start)}</title>"
            parts.append(f"<text x='{x(at) - 4}' y='{top + 14}' style='font-weight:700'>&#10005;{title}</text>")
    for at in job.saves:
        line = f"<line x1='{x(at)}' x2='{x(at)}' y1='0' y2='{height}' stroke='#1d2126' stroke-opacity='.35'>"
        parts.append(f"{line}<title>checkpoint</title></line>")
    for i in range(_MARKS + 1):
        at = job.start + i * whole / _MARKS
        anchor = "start" if i == 0 else "end" if i == _MARKS else "middle"
        parts.append(f"<text x='{x(at)}' y='{height + 14}' text-anchor='{anchor}'>{duration(at - job.start)}</text>")
    return f"<svg viewBox='0 0 {_WIDTH} {height + 20}' role='img' aria-label='time line of the workers'>{''.join(parts)}</svg>"


def _bar(x: Callable[[float], float], top: int, span: Span, ran: Span) -> str:
    """What a process did in a span; nothing if it did not run then."""
    start, stop = max(span.start, ran.start), min(span.stop, ran.stop)
    if stop <= start:
        return ""
    place = f"x='{x(start)}' y='{top}' width='{max(0.5, x(stop) - x(start)):.2f}' height='{_BAR}'"
    return f"<rect {place} fill='{_COLOURS[span.kind]}'><title>{escape(span.kind)}, {duration(span.seconds)}</title></rect>"


def _workers(job: Account) -> str:
    rows = []
    for rank, worker in sorted(job.workers.items()):
        own = "-" if worker.own_seconds is None else f"{worker.own_seconds:.4f}"
        wait = f"{worker.waited / worker.stepping:.0%}" if worker.stepping else "-"
        hosts = escape(", ".join(worker.hosts) or "-")
        rows.append((str(rank), hosts, str(worker.processes), str(worker.steps), own, wait))
    return _table(("rank", "host", "processes", "steps", "own s per step", "waiting"), rows)
