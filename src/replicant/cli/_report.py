"""``replicant report``: what a job of ``replicant launch`` did with its time."""

import argparse
import shutil
import sys
from pathlib import Path

from .._whole_file import write_whole
from ..errors import CommandError
from ..launch.record._events import Events
from ..launch.record._goodput import Account, read_job
from ..launch.record._run_log import NAME, run_log_of
from ..launch.show._report_page import page_of
from ..launch.show._report_text import text_of

SUMMARY = "Show what a job of `replicant launch` did: a time line of its workers, its goodput, and the time lost to each cause."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``replicant report``."""
    parser.add_argument("run", metavar="RUN", type=Path, help=f"the --log-dir of the job, or its {NAME}")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page that a browser shows")
    parser.add_argument("--job", type=int, metavar="N", help="which of several jobs in the log, counted from 1 (default: the last)")


def main(arguments: argparse.Namespace) -> int:
    """Print the report, and write the page.

    Raises:
        ArgumentError: If RUN is a URL.
        CommandError: If there is no run log, or no such job in it, or if the page cannot be written.
    """
    path = run_log_of("RUN", arguments.run)
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            events = Events(file)
            job, count = read_job(events, arguments.job)
    except OSError as error:
        raise CommandError(
            f"{str(path)!r} cannot be read: {error.strerror}. Name the --log-dir of a job of `replicant launch`."
        ) from error
    if not count:
        raise CommandError(f"{str(path)!r}: this is not a run log of `replicant launch`: no job begins in it.")
    if job is None:
        raise CommandError(f"--job {arguments.job}: {str(path)!r} has {count} job(s), counted from 1.")
    _tell_damage(path, events, job)
    sys.stdout.write(text_of(job, shutil.get_terminal_size((100, 24)).columns))
    if arguments.html is not None:
        try:
            write_whole(arguments.html, page_of(job).encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise CommandError(f"--html {str(arguments.html)!r} cannot be written: {error.strerror}.") from error
        print(f"\npage: {arguments.html}")
    return 0


def _tell_damage(path: Path, events: Events, job: Account) -> None:
    if events.damaged:
        print(
            f"replicant report: {events.damaged} line(s) of {str(path)!r} cannot be read and are left out; the first is line "
            f"{events.first_damaged}.",
            file=sys.stderr,
        )
    if job.went_back:
        print(
            f"replicant report: the clock of this job went back {job.went_back} time(s). The report lets it stand still instead.",
            file=sys.stderr,
        )
