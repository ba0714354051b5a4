"""How a job is now, for a terminal, as a page, and as JSON."""

import dataclasses
import json
from html import escape

from ..console._console import plain
from ._html import document, table
from ._report_text import duration
from ._status import View, WorkerView

COLUMNS = ("rank", "host", "pid", "does", "step", "steps/s", "own s/step", "last step")
REFRESH_SECONDS = 5


def headline(view: View, launcher: str = "runs") -> str:
    """Say in one line how the job is.

    Args:
        view: The job.
        launcher: "runs", "is gone", or why that is not known.
    """
    if view.code is not None:
        state = "ended well" if view.code == 0 else f"ended with exit code {view.code}"
        return f"{view.program}: {state} after {duration(view.seconds)}"
    if launcher == "is gone":
        return f"{view.program}: its launcher is gone, without having ended the job; the last news is shown"
    running = "running" if launcher == "runs" else f"running, if its launcher does ({launcher}),"
    return (
        f"{view.program}: {running} for {duration(view.seconds)}, generation {view.generation}, {view.alive} of "
        f"{len(view.workers)} worker(s) alive"
    )


def facts(view: View) -> list[str]:
    """What else is to be said about the whole job."""
    rate = "" if view.rate is None else f", {view.rate:.3g} steps/s"
    lines = [f"step {view.step}{rate}"]
    if view.saved is None:
        lines.append("no checkpoint yet")
    else:
        step, ago = view.saved
        lines.append(f"last checkpoint: {'' if step is None else f'step {step}, '}{duration(ago)} ago")
    if view.slowest is not None:
        worker, others = view.slowest
        lines.append(f"slowest: rank {worker.rank} ({worker.own:.4f} s of its own per step; the others {others:.4f} s)")
    if view.last_failure is not None:
        rank, kind, ago = view.last_failure
        who = "" if rank < 0 else f" of rank {rank}"
        lines.append(f"{view.failures} failure(s); the last, {duration(ago)} ago{who}: {kind}")
    return lines


def text_of(view: View, launcher: str = "runs") -> str:
    """Return a headline, facts, and a table of the workers."""
    rows = [COLUMNS, *map(_cells, view.workers)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = [headline(view, launcher), *(f"  {fact}" for fact in facts(view)), ""]
    for row in rows:
        cells = [
            cell.ljust(width) if i in (1, 3) else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "".join(f"{plain(line)}\n" for line in lines)


def page_of(view: View) -> str:
    """Return a page that a browser loads again every few seconds as long as the job runs."""
    refresh = "" if view.code is not None else f"<meta http-equiv='refresh' content='{REFRESH_SECONDS}'>"
    body = [
        f"<h1>{escape(headline(view))}</h1>",
        f"<p>{'<br>'.join(escape(fact) for fact in facts(view))}</p>",
        table(COLUMNS, ([escape(cell) for cell in _cells(worker)] for worker in view.workers), texts=(1, 3)),
    ]
    return document(f"replicant: {view.program}", body, refresh)


def json_of(view: View) -> str:
    """Return the same for programs."""
    return json.dumps(dataclasses.asdict(view), allow_nan=False) + "\n"


def _cells(worker: WorkerView) -> tuple[str, ...]:
    return (
        str(worker.rank),
        worker.host or "-",
        "-" if worker.pid is None else str(worker.pid),
        worker.state or "-",
        str(worker.step),
        "-" if worker.rate is None else f"{worker.rate:.3g}",
        "-" if worker.own is None else f"{worker.own:.4f}",
        "-" if worker.idle is None else f"{duration(worker.idle)} ago",
    )
