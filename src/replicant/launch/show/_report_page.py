"""The account of a job as a page: one HTML file that needs nothing else."""

from collections.abc import Callable, Iterator, Sequence
from html import escape

from ..record._goodput import COUNTED, DOWN, REPEATED, STARTING, Account, Span, Worker, coarse
from ._html import document, table
from ._report_text import duration, losses_of, outcome, own_and_waiting, usual_seconds

_COLOURS = {COUNTED: "var(--counted)", STARTING: "var(--starting)", REPEATED: "var(--repeated)", DOWN: "var(--down)"}
_WIDTH, _LEFT, _ROW, _BAR, _MARKS = 1000, 90, 26, 18, 5
_LOW_ROW, _LOW_BAR = 14, 11  # with many workers
_MANY = 32
_MOST_BARS = 20_000  # in a picture, about
_CROSS = 6.0  # units between two failures of a worker that are drawn apart


def page_of(job: Account, more: Sequence[str] = ()) -> str:
    """Return the page, with more HTML at its end."""
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
        _picture(job) if job.workers else "<p>No worker has started yet.</p>",
        table(("", "what", "time", "share"), shares, texts=(0, 1)),
    ]
    if job.losses:
        rows = [(escape(cause), str(times), duration(seconds)) for cause, times, seconds in losses_of(job)]
        body += ["<h2>Lost, with the time until the next step</h2>", table(("cause", "times", "time"), rows, texts=(0,))]
    if job.workers:
        body += ["<h2>Workers</h2>", _workers(job)]
    return document("replicant report", [*body, *more])


def _swatch(kind: str) -> str:
    return f"<span class='swatch' style='background:{_COLOURS[kind]}'></span>"


def _picture(job: Account) -> str:
    """A time line of each worker. Crosses are failures, and lines through all of them are checkpoints."""
    whole = job.stop - job.start or 1.0
    row, bar = (_ROW, _BAR) if len(job.workers) <= _MANY else (_LOW_ROW, _LOW_BAR)
    spans = coarse(job.spans, whole * max(1 / _WIDTH, len(job.workers) / _MOST_BARS))

    def x(at: float) -> float:
        return round(_LEFT + (at - job.start) / whole * (_WIDTH - _LEFT), 2)

    parts, height = [], row * len(job.workers)
    for number, (rank, worker) in enumerate(sorted(job.workers.items())):
        top = number * row
        parts.append(f"<text x='0' y='{top + bar - 2}' style='font-size:{min(12, bar)}px'>rank {rank}</text>")
        parts += [_bar(x, top, bar, span) for span in _both(spans, worker.ran)]
        parts += _crosses(job, worker, x, top + bar - 2)
    marks = {round(x(at)): at for at in job.saves}
    for place in marks:
        line = f"<line x1='{place}' x2='{place}' y1='0' y2='{height}' stroke='var(--mark)' stroke-opacity='.35'>"
        parts.append(f"{line}<title>checkpoint</title></line>")
    for i in range(_MARKS + 1):
        at = job.start + i * whole / _MARKS
        anchor = "start" if i == 0 else "end" if i == _MARKS else "middle"
        parts.append(f"<text x='{x(at)}' y='{height + 14}' text-anchor='{anchor}'>{duration(at - job.start)}</text>")
    return f"<svg viewBox='0 0 {_WIDTH} {height + 20}' role='img' aria-label='time line of the workers'>{''.join(parts)}</svg>"


def _both(spans: Sequence[Span], ran: Sequence[Span]) -> Iterator[Span]:
    """Yield the parts of spans in which a process ran. Both are in the order of their times."""
    first = 0
    for each in ran:
        while first < len(spans) and spans[first].stop <= each.start:
            first += 1
        for span in spans[first:]:
            if span.start >= each.stop:
                break
            yield Span(span.kind, max(span.start, each.start), min(span.stop, each.stop))


def _bar(x: Callable[[float], float], top: int, height: int, span: Span) -> str:
    place = f"x='{x(span.start)}' y='{top}' width='{max(0.5, x(span.stop) - x(span.start)):.2f}' height='{height}'"
    return f"<rect {place} fill='{_COLOURS[span.kind]}'><title>{escape(span.kind)}, {duration(span.seconds)}</title></rect>"


def _crosses(job: Account, worker: Worker, x: Callable[[float], float], y: int) -> Iterator[str]:
    """The failures of a worker. Of those that would lie on each other, the first is drawn, with their number."""
    places: dict[int, list[tuple[float, str]]] = {}
    for at, what in worker.failures:
        places.setdefault(int(x(at) // _CROSS), []).append((at, what))
    for (at, what), *others in places.values():
        more = f", and {len(others)} more" if others else ""
        title = f"<title>rank {worker.rank} {escape(what)}, after {duration(at - job.start)}{more}</title>"
        yield f"<text x='{x(at) - 4}' y='{y}' style='font-weight:700;fill:var(--mark)'>&#10005;{title}</text>"


def _workers(job: Account) -> str:
    rows, usual = [], usual_seconds(job)
    for rank, worker in sorted(job.workers.items()):
        own, wait, slow = own_and_waiting(worker, usual)
        hosts = escape(", ".join(worker.hosts) or "-")
        rows.append((str(rank), hosts, str(worker.processes), str(worker.steps), own, wait, slow))
    return table(("rank", "host", "processes", "steps", "own s per step", "waiting", ""), rows, texts=(1, 6))
