"""``replicant report``: what a job of ``replicant launch`` did with its time, and the curves of event files."""

import argparse
import shutil
import sys
from pathlib import Path

from .._whole_file import write_whole
from ..errors import CommandError
from ..launch.record._events import Events
from ..launch.record._goodput import Account, read_job
from ..launch.record._run_log import NAME, run_log_of
from ..launch.show._html import document
from ..launch.show._report_page import page_of
from ..launch.show._report_text import text_of
from ._escaped import escaped

SUMMARY = (
    "Show what a job of `replicant launch` did: a time line of its workers, its goodput, and the time lost to each cause; or the "
    "curves of event files."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``replicant report``."""
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help=f"the --log-dir of the job, or its {NAME}")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page that a browser shows")
    parser.add_argument("--job", type=int, metavar="N", help="which of several jobs in the log, counted from 1 (default: the last)")
    parser.add_argument(
        "--events",
        nargs="+",
        metavar="DIR",
        default=[],
        help="show the scalars of TensorBoard's event files in these folders, those with the same tag in one picture",
    )


def main(arguments: argparse.Namespace) -> int:
    """Print the report, and write the page.

    Raises:
        ArgumentError: If RUN is a URL.
        CommandError: If there is no run log, or no such job in it, or if the page cannot be written.
        SummaryError: If a folder of --events has no event files, or a damaged one.
    """
    from . import _curves

    if arguments.run is None and not arguments.events:
        raise CommandError("Name the --log-dir of a job, or folders with event files: replicant report --events DIR.")
    job = None if arguments.run is None else _job(run_log_of("RUN", arguments.run), arguments.job)
    curves = _curves.read_curves(arguments.events, _tell_cut_off) if arguments.events else {}
    if job is not None:
        sys.stdout.write(text_of(job, shutil.get_terminal_size((100, 24)).columns))
    if arguments.events:
        sys.stdout.write(escaped(("\n" if job else "") + (_curves.text_of(curves) if curves else "There are no scalars.\n")))
    if arguments.html is not None:
        _write_page(arguments.html, job, _curves.section_of(curves) if curves else [])
    return 0


def _job(path: Path, number: int | None) -> Account:
    """Read the run log."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            events = Events(file)
            job, count = read_job(events, number)
    except OSError as error:
        raise CommandError(
            f"{str(path)!r} cannot be read: {error.strerror}. Name the --log-dir of a job of `replicant launch`."
        ) from error
    if not count:
        raise CommandError(f"{str(path)!r}: this is not a run log of `replicant launch`: no job begins in it.")
    if job is None:
        raise CommandError(f"--job {number}: {str(path)!r} has {count} job(s), counted from 1.")
    _tell_damage(path, events, job)
    return job


def _write_page(file: Path, job: Account | None, curves: list[str]) -> None:
    page = document("replicant report", ["<h1>Curves of event files</h1>", *curves]) if job is None else page_of(job, curves)
    try:
        write_whole(file, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise CommandError(f"--html {str(file)!r} cannot be written: {error.strerror}.") from error
    print(f"\npage: {file}")


def _tell_cut_off(message: str) -> None:
    print(escaped(f"replicant report: {message} That record is left out."), file=sys.stderr)


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
