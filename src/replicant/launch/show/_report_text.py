"""The account of a job for a terminal."""

from collections.abc import Iterator

from ..console._console import plain
from ..record._goodput import COUNTED, DOWN, KINDS, REPEATED, STARTING, Account, Span, Worker, coarse

SIGNS = {COUNTED: "#", STARTING: ".", REPEATED: "~", DOWN: " "}
_LEAST_WIDTH = 20
_SLOW = 1.5  # times the median, from which a worker is marked
_MOST_LOSSES = 20  # causes that are listed
_LONGEST = 1000  # characters of a command or a cause
_FINE = 0.1  # columns; what is shorter does not decide what a column shows


def duration(seconds: float) -> str:
    """Return a time that people can read.

    >>> duration(0.42), duration(75), duration(7260)
    ('0.4 s', '1 min 15 s', '2 h 01 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02} min"


def outcome(job: Account) -> str:
    """Say how the job ended."""
    if job.code is None:
        return "no end yet: it runs, or its launcher was killed"
    return "ended well" if job.code == 0 else f"ended with exit code {job.code}"


def text_of(job: Account, width: int = 100) -> str:
    """Return a summary, a time line of each worker, what was lost to each cause, and a table of the workers."""
    whole = job.stop - job.start
    run, counted = sum(period.steps for period in job.periods), sum(period.counted_steps for period in job.periods)
    lines = [
        _short(job.command),
        f"{outcome(job)}; {duration(whole)}, {len(job.periods)} group(s) of workers, {len(job.saves)} checkpoint(s)",
        f"goodput {job.goodput:.1%}: {counted} of {run} steps counted",
        "",
    ]
    lines += [
        f"  {SIGNS[kind]} {kind:26} {duration(seconds):>12} {_share(seconds, whole):>6}" for kind, seconds in job.seconds.items()
    ]
    lines += ["", *_time_lines(job, max(_LEAST_WIDTH, width - 10)), ""]
    lines += _losses(job)
    lines += _rows(job)
    return "".join(f"{plain(line)}\n" for line in lines)


def _share(seconds: float, whole: float) -> str:
    return f"{seconds / whole:.1%}" if whole > 0 else "-"


def _time_lines(job: Account, width: int) -> list[str]:
    """A line for each worker and one for the checkpoints. What happened for the longest part of a column is its sign."""
    step = (job.stop - job.start) / width or 1.0
    columns = [(job.start + i * step, job.start + (i + 1) * step) for i in range(width)]
    kinds = list(_longest(coarse(job.spans, _FINE * step), columns))
    lines = []
    for rank, worker in sorted(job.workers.items()):
        signs = [
            SIGNS[kind] if any(span.start < stop and span.stop > start for span in worker.ran) else " "
            for kind, (start, stop) in zip(kinds, columns, strict=True)
        ]
        for at, _ in worker.failures:
            signs[min(width - 1, int((at - job.start) / step))] = "x"
        lines.append(f"rank {rank:<4} {''.join(signs)}".rstrip())
    marks = [" "] * width
    for at in job.saves:
        marks[min(width - 1, max(0, int((at - job.start) / step)))] = "|"
    return [*lines, f"saved     {''.join(marks)}".rstrip()]


def _longest(spans: list[Span], columns: list[tuple[float, float]]) -> Iterator[str]:
    """What the job did for the longest part of each column."""
    first = 0
    for start, stop in columns:
        inside: dict[str, float] = dict.fromkeys(KINDS, 0.0)
        while first < len(spans) and spans[first].stop <= start:
            first += 1
        for span in spans[first:]:
            if span.start >= stop:
                break
            inside[span.kind] += min(stop, span.stop) - max(start, span.start)
        yield max(inside, key=lambda kind: inside[kind])


def losses_of(job: Account) -> list[tuple[str, int, float]]:
    """The causes of losses, how often each occurred, and the seconds that it cost. The costliest first, the rest as one."""
    found: dict[str, list[float]] = {}
    for cause, seconds in job.losses:
        found.setdefault(_short(cause), []).append(seconds)
    rows = sorted(((cause, len(each), sum(each)) for cause, each in found.items()), key=lambda row: -row[2])
    rest = rows[_MOST_LOSSES:]
    if rest:
        rows[_MOST_LOSSES:] = [(f"{len(rest)} other causes", sum(row[1] for row in rest), sum(row[2] for row in rest))]
    return rows


def usual_seconds(job: Account) -> float | None:
    """The median of the workers' own seconds per step, or None if fewer than two are known."""
    own = sorted(each.own_seconds for each in job.workers.values() if each.own_seconds is not None)
    return own[(len(own) - 1) // 2] if len(own) > 1 else None


def own_and_waiting(worker: Worker, usual: float | None) -> tuple[str, str, str]:
    """The seconds of a worker's own per step, the share that it waited, and "slow" if it needs much more than usual."""
    seconds = worker.own_seconds
    return (
        "-" if seconds is None else f"{seconds:.4f}",
        f"{worker.waited / worker.stepping:.0%}" if worker.stepping else "-",
        "slow" if usual is not None and seconds is not None and seconds > _SLOW * usual else "",
    )


def _losses(job: Account) -> list[str]:
    lines = [
        f"  {duration(seconds):>12}  {cause}{f' ({times} times)' if times > 1 else ''}" for cause, times, seconds in losses_of(job)
    ]
    return ["lost, with the time until the next step:", *lines, ""] if lines else []


def _rows(job: Account) -> list[str]:
    usual, workers = usual_seconds(job), sorted(job.workers.items())
    names = [", ".join(worker.hosts) or "-" for _, worker in workers]
    width = max(20, *map(len, names)) if names else 20
    lines = [f"rank  {'host':{width}}  processes   steps   own s/step  waiting"]
    for (rank, worker), name in zip(workers, names, strict=True):
        own, wait, slow = own_and_waiting(worker, usual)
        lines.append(f"{rank:<5} {name:{width}}  {worker.processes:9} {worker.steps:7} {own:>12} {wait:>8}  {slow}".rstrip())
    return lines


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
