"""``replicant report``: what a job of ``replicant launch`` did with its time."""

import argparse
import shutil
import sys
from pathlib import Path

from ..errors import CommandError
from ..launch._account import account, read_jobs
from ..launch._report_page import page_of
from ..launch._report_text import text_of
from ..launch._run_log import NAME
from ..storage._urls import local_path

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
    local_path("RUN", arguments.run)
    path = arguments.run / NAME if arguments.run.is_dir() else arguments.run
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            jobs = read_jobs(file)
    except OSError as error:
        raise CommandError(
            f"{str(path)!r} cannot be read: {error.strerror}. Name the --log-dir of a job of `replicant launch`."
        ) from error
    except CommandError as error:
        raise CommandError(f"{str(path)!r}: {error}") from error
    number = len(jobs) if arguments.job is None else arguments.job
    if not 1 <= number <= len(jobs):
        raise CommandError(f"--job {number}: {str(path)!r} has {len(jobs)} job(s), counted from 1.")
    job = account(jobs[number - 1])
    sys.stdout.write(text_of(job, shutil.get_terminal_size((100, 24)).columns))
    if arguments.html is not None:
        try:
            arguments.html.write_text(page_of(job), encoding="utf-8")
        except OSError as error:
            raise CommandError(f"--html {str(arguments.html)!r} cannot be written: {error.strerror}.") from error
        print(f"\npage: {arguments.html}")
    return 0
