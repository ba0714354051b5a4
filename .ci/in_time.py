"""Runs `make check` and `make test`, and then shares of the other tests, as many as fit in 40 minutes. The commit chooses which.

    python .ci/in_time.py COMMIT SECONDS_ALREADY_USED

A share begins only if the time that it will probably take is left. One that runs when 45 minutes have passed is stopped, and counts
as left out. Tests that fail are run once more, in one process of their own: the exit status is 1 if one fails again. A table says
what ran, for how long, what was left out, and which tests failed only once: each of those is a fault to be found.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")  # where pytest keeps the names of the tests that failed last
BUDGET, END = 40 * 60.0, 45 * 60.0
GRACE = 30.0  # for pytest to end what its tests have started
TEST_SECONDS = 1000.0  # how long `make test` takes on the machine on which the table's seconds were measured: two cores


@dataclasses.dataclass(frozen=True)
class Kind:
    """Shares of one kind. Each takes about `seconds`."""

    name: str
    command: str
    count: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Share:
    """One share, such as the second of twelve."""

    kind: Kind
    number: int

    def __str__(self) -> str:
        """What to type to repeat it."""
        return f"make {self.kind.command.format(share=f'{self.number}/{self.kind.count}')}"


def kinds(python: str) -> list[Kind]:
    """All but `make check` and `make test`, on this line of Python: the versions are those of the others."""
    others = [line for line in ("3.11", "3.12", "3.13") if line != python]
    versions = [Kind(line, f"test-versions VERSIONS={line} KERAS=3.12.0 SHARE={{share}}", 4, 240.0) for line in others]
    return [
        Kind("long", "test-long SHARE={share}", 24, 150.0),
        Kind("again", "test-again SHARE={share}", 6, 120.0),
        Kind("slow", "test-slow SHARE={share}", 24, 150.0),
        Kind("chaos", "test-chaos SHARE={share} RUNS=1", 12, 120.0),
        Kind("package", "package", 1, 150.0),
        *versions,
    ]


def order(commit: str, kinds: Sequence[Kind]) -> list[Share]:
    """All shares: one of each kind, then a second one of each, and so on. The commit chooses with which it begins."""
    others, first = divmod(int(commit[:12], 16), len(kinds))
    rotated = [*kinds[first:], *kinds[:first]]
    return [
        Share(kind, (others + turn) % kind.count + 1)
        for turn in range(max(kind.count for kind in kinds))
        for kind in rotated
        if turn < kind.count
    ]


def following(shares: Sequence[Share], took: Mapping[str, Sequence[float]], slowness: float, left: float) -> Share | None:
    """The first share that will probably take no more than is `left`: as long as the longest of its kind, or as in the table."""
    return next((share for share in shares if max(took.get(share.kind.name, [slowness * share.kind.seconds])) <= left), None)


def run(command: str, limit: float | None = None) -> tuple[int | None, float]:
    """Run a command. Returns its exit status, or None if it was stopped at its limit, and its seconds."""
    print(f"== {command}", flush=True)
    begin = time.monotonic()
    environ = {name: os.environ[name] for name in ("HOME", "PATH", "REPLICANT_TEST_SEED") if name in os.environ}
    process = subprocess.Popen(command.split(), env=environ, start_new_session=True)
    try:
        return process.wait(limit), time.monotonic() - begin
    except subprocess.TimeoutExpired:
        return None, time.monotonic() - begin
    finally:
        _end(process)


def run_again(command: str, limit: float | None = None) -> tuple[int | None, list[str]]:
    """Run the tests that have failed again. Returns the exit status, which is 1 if nothing names them, and a line for each."""
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    if not failed or not command.startswith("make test"):
        return 1, []
    status, _ = run(f"{command} PROCESSES=0 ARGS=--last-failed", limit)
    return status, [f"         failed {'once, and then passed' if status == 0 else 'twice'}: {name}" for name in failed]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what still runs, with its children: as a user does who presses control and C, and then by force."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                continue


def main(commit: str, used: float) -> int:
    """Run everything that there is time for, and print the table."""
    begin = time.monotonic() - used
    lines, took, failed = [f"{used:5.0f} s  make setup"], {}, False
    for command in ("make check", "make test"):
        status, seconds = run(command)
        lines.append(f"{seconds:5.0f} s  {command}")
        if status:
            status, tests = run_again(command, END - (time.monotonic() - begin))
            lines += tests
        if status != 0:
            print("\n".join([f"CI has failed: {command}", *lines]))
            return 1
    slowness = seconds / TEST_SECONDS
    left_out = order(commit, kinds("{}.{}".format(*sys.version_info)))
    while not failed and (share := following(left_out, took, slowness, BUDGET - (time.monotonic() - begin))):
        status, seconds = run(str(share), END - (time.monotonic() - begin))
        if status is None:
            lines.append(f"{seconds:5.0f} s  {share}: stopped, for want of time")
            break
        left_out.remove(share)
        took.setdefault(share.kind.name, []).append(seconds)
        again, tests = run_again(str(share), END - (time.monotonic() - begin)) if status else (0, [])
        failed = again != 0
        lines += [f"{seconds:5.0f} s  {share}{': FAILED' if failed else ''}", *tests]
    counts = {share.kind: sum(other.kind == share.kind for other in left_out) for share in left_out}
    lines += [f"left out: {count} of {kind.count} of make {kind.command.format(share='...')}" for kind, count in counts.items()]
    print("\n".join([f"CI {'has failed' if failed else 'ran'} in {(time.monotonic() - begin) / 60:.0f} minutes:", *lines]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
