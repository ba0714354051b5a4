"""``replicant doctor``: checks whether everything works on this machine."""

import argparse
import itertools
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._checkup import Result

SUMMARY = (
    "Check this machine: versions, settings, devices and cluster. Then run a self-test. The exit status is 1 if a check fails."
)

_SIGNS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}
_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}
_CLEAR = "\r\033[K"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``replicant doctor``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--no-self-test", action="store_true", help="only look at the machine, without starting devices or processes"
    )
    parser.add_argument(
        "--deadline", type=float, default=120.0, metavar="SECONDS", help="time limit for each check of the self-test (default: 120)"
    )


def main(arguments: argparse.Namespace) -> int:
    """Look at the machine, test it, and print each result as soon as it is known."""
    from ._checkup import CHECKS, FACTS, look, run_selftest

    names = [*FACTS, *([] if arguments.no_self_test else CHECKS)]
    found = itertools.chain(look(), () if arguments.no_self_test else run_selftest(list(CHECKS), arguments.deadline))
    if arguments.json:
        results = list(found)
        failed = any(result.state == "fail" for result in results)
        print(json.dumps({"ok": not failed, "checks": [result.as_dict() for result in results]}, indent=1))
        return int(failed)
    counts = _table(found, names)
    print(f"\n{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failed.")
    return int(counts["fail"] > 0)


def _table(found: Iterable["Result"], names: list[str]) -> dict[str, int]:
    """Print a line for each result and, on a terminal, the name of the current check. Returns the number of results by state."""
    counts, width, redraws = dict.fromkeys(_SIGNS, 0), max(map(len, names)), sys.stdout.isatty()
    waiting = iter(names)
    _looking(next(waiting, None), redraws=redraws)
    for result in found:
        counts[result.state] += 1
        print(f"{_CLEAR if redraws else ''}{_sign(result.state)}  {result.name:{width}}  {result.detail}", flush=True)
        for line in (*result.rows, *([f"-> {result.remedy}"] if result.remedy else [])):
            print(f"      {'':{width}}  {line}", flush=True)
        _looking(next(waiting, None), redraws=redraws)
    return counts


def _looking(name: str | None, *, redraws: bool) -> None:
    if name is not None and redraws:
        print(f"....  {name}", end="", flush=True)


def _sign(state: str) -> str:
    text = _SIGNS[state]
    return f"\033[{_COLOURS[state]}m{text}\033[0m" if sys.stdout.isatty() else text
