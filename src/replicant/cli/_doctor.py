"""``replicant doctor``: does everything work here?"""

import argparse
import json
import sys

SUMMARY = "Check this machine: versions, settings, devices, cluster; then a self-test. Exit status 1 if something does not work."

_SIGNS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}
_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``replicant doctor``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--no-self-test", action="store_true", help="only look: start no devices and no processes")
    parser.add_argument(
        "--deadline", type=float, default=120.0, metavar="SECONDS", help="that each check of the self-test may take (default: 120)"
    )


def main(arguments: argparse.Namespace) -> int:
    """Look, test, print."""
    from ._checkup import CHECKS, look, run_selftest

    results = look()
    if not arguments.no_self_test:
        results += run_selftest(list(CHECKS), arguments.deadline)
    failed = any(result.state == "fail" for result in results)
    if arguments.json:
        print(json.dumps({"ok": not failed, "checks": [result.as_dict() for result in results]}, indent=1))
        return int(failed)
    width = max(len(result.name) for result in results)
    for result in results:
        print(f"{_sign(result.state)}  {result.name:{width}}  {result.detail}")
        if result.remedy:
            print(f"      {'':{width}}  -> {result.remedy}")
    counts = {state: sum(result.state == state for result in results) for state in _SIGNS}
    print(f"\n{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failed.")
    return int(failed)


def _sign(state: str) -> str:
    text = _SIGNS[state]
    return f"\033[{_COLOURS[state]}m{text}\033[0m" if sys.stdout.isatty() else text
