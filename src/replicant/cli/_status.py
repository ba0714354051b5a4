"""``replicant launch --status``: how a running job is, from its run log."""

import os
import sys
import time
from pathlib import Path

from ..errors import CommandError
from ..launch.record._events import Event, Events
from ..launch.record._run_log import process_start, run_log_of
from ..launch.show._status import Status
from ..launch.show._status_text import text_of


def show(run: Path) -> int:
    """Print how the last job in a run log is.

    Returns:
        0 if the job runs or has ended well, otherwise 1.

    Raises:
        CommandError: If there is no run log.
    """
    path = run_log_of("RUN", run)
    status = None
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for event in Events(file):
                if event["kind"] == "job":
                    status = Status(event)
                elif status is not None and event.get("job") == status.first.get("job"):
                    status.take(event)
    except OSError as error:
        raise CommandError(f"--status {str(run)!r} cannot be read: {error.strerror}. Name the --log-dir of a job.") from error
    if status is None:
        raise CommandError(f"--status {str(path)!r}: this is not a run log of `replicant launch`: no job begins in it.")
    view, launcher = status.view(time.time()), launcher_of(status.first)
    sys.stdout.write(text_of(view, launcher))
    return 0 if view.code == 0 or (view.code is None and launcher != "is gone") else 1


def launcher_of(first: Event) -> str:
    """Say whether the launcher of a job runs: "runs", "is gone", or why this is not known."""
    host, pid, began = (first.get(name) for name in ("host", "pid", "began"))
    if host != os.uname().nodename:
        return f"on the host {host}"
    if type(pid) is not int or not isinstance(began, str):
        return "which this log does not say"
    return "runs" if process_start(pid) == began else "is gone"
