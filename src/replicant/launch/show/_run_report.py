"""``replicant.run_report``: what a job of ``replicant launch`` did with its time, as numbers, as text and in a notebook."""

from html import escape
from pathlib import Path

from ...errors import ArgumentError, ArgumentTypeError
from ..record._events import Events
from ..record._goodput import Account, read_job
from ..record._run_log import run_log_of
from ._report_page import page_of
from ._report_text import text_of

_HEIGHT, _PER_WORKER, _MOST = 560, 40, 1000  # pixels of the page in a notebook


class RunReport:
    """What a job did with its time. Made by `replicant.run_report`.

    Printing it gives the text of ``replicant report``. A notebook shows its page, with a time line of each worker.

    Attributes:
        path: The run log.
        goodput: The share of the time in steps that counted, from 0 to 1.
        seconds: The seconds of each kind: in steps that counted, starting, in steps that were run again, and down.
    """

    def __init__(self, path: Path, job: Account):
        self.path = path
        self._job = job
        self.goodput, self.seconds = job.goodput, dict(job.seconds)

    def __str__(self) -> str:
        return text_of(self._job)

    def __repr__(self) -> str:
        return f"<RunReport of {str(self.path)!r}: {self.goodput:.1%} of {sum(self.seconds.values()):.1f} s in steps that counted>"

    def _repr_html_(self) -> str:
        height = min(_MOST, _HEIGHT + _PER_WORKER * len(self._job.workers))
        style = f"width:100%;height:{height}px;border:0"
        # A frame of its own keeps the page's style away from the notebook. Nothing in it may run.
        return f"<iframe sandbox='' style='{style}' title='replicant report' srcdoc='{escape(page_of(self._job))}'></iframe>"


def run_report(run: str | Path, job: int | None = None) -> RunReport:
    """Read what a job of ``replicant launch`` has done so far, or until it ended. The job may still run.

    Args:
        run: The ``--log-dir`` of the job, or the ``run.jsonl`` in it.
        job: Which of several jobs in the log, counted from 1. None is the last one.

    Raises:
        ArgumentError: If `run` is a URL, or no run log that can be read, or has no such job.
        ArgumentTypeError: If `run` is not a path.

    >>> import replicant, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "run.jsonl")
    >>> _ = path.write_text('{"t": 5.0, "kind": "job", "command": ["train.py"], "workers": 1}' + chr(10))
    >>> replicant.run_report(path).goodput
    0.0
    """
    if not isinstance(run, str | Path):
        raise ArgumentTypeError(f"run_report takes a path; got {run!r} of type {type(run).__name__}.")
    path = run_log_of("run_report", run)
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            found, count = read_job(Events(file), job)
    except OSError as error:
        raise ArgumentError(
            f"run_report: {str(path)!r} cannot be read: {error.strerror}. Name the --log-dir of a job of `replicant launch`."
        ) from error
    if not count:
        raise ArgumentError(f"run_report: {str(path)!r} is not a run log of `replicant launch`: no job begins in it.")
    if found is None:
        raise ArgumentError(f"run_report: job={job}: {str(path)!r} has {count} job(s), counted from 1.")
    return RunReport(path, found)
