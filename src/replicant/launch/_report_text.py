"""The account of a job for a terminal."""

from ._account import COUNTED, DOWN, KINDS, REPEATED, STARTING, Account, Span

SIGNS = {COUNTED: "#", STARTING: ".", REPEATED: "~", DOWN: " "}
_LEAST_WIDTH = 20
_SLOW = 1.5  # times the median, from which a worker is marked


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
        f"{job.command}",
        f"{outcome(job)}; {duration(whole)}, {len(job.periods)} group(s) of workers, {len(job.saves)} checkpoint(s)",
        f"goodput {job.goodput:.1%}: {counted} of {run} steps counted",
        "",
    ]
    lines += [
        f"  {SIGNS[kind]} {kind:26} {duration(seconds):>12} {_share(seconds, whole):>6}" for kind, seconds in job.seconds.items()
    ]
    lines += ["", *_time_lines(job, max(_LEAST_WIDTH, width - 10)), ""]
    lines += _losses(job)
    lines += ["rank  host                  processes   steps   own s/step  waiting", *_rows(job)]
    return "\n".join(lines) + "\n"


def _share(seconds: float, whole: float) -> str:
    return f"{seconds / whole:.1%}" if whole > 0 else "-"


def _time_lines(job: Account, width: int) -> list[str]:
    """A line for each worker and one for the checkpoints. What happened for the longest part of a column is its sign."""
    step = (job.stop - job.start) / width or 1.0
    columns = [(job.start + i * step, job.start + (i + 1) * step) for i in range(width)]
    kinds = [_longest(job.spans, *column) for column in columns]
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


def _longest(spans: list[Span], start: float, stop: float) -> str:
    inside: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    for span in spans:
        inside[span.kind] += max(0.0, min(stop, span.stop) - max(start, span.start))
    return max(inside, key=lambda kind: inside[kind])


def _losses(job: Account) -> list[str]:
    lines = [f"  {duration(seconds):>12}  {cause}" for cause, seconds in sorted(job.losses, key=lambda loss: -loss[1])]
    return ["lost, with the time until the next step:", *lines, ""] if lines else []


def _rows(job: Account) -> list[str]:
    own = sorted(each.own_seconds for each in job.workers.values() if each.own_seconds is not None)
    usual = own[(len(own) - 1) // 2] if own else 0.0
    lines = []
    for rank, worker in sorted(job.workers.items()):
        seconds = worker.own_seconds
        wait = f"{worker.waited / worker.stepping:.0%}" if worker.stepping else "-"
        slow = "  slow" if len(own) > 1 and seconds is not None and seconds > _SLOW * usual else ""
        shown = "-" if seconds is None else f"{seconds:.4f}"
        lines.append(
            f"{rank:<5} {', '.join(worker.hosts) or '-':22}{worker.processes:9} {worker.steps:7} {shown:>12} {wait:>8}{slow}"
        )
    return lines
