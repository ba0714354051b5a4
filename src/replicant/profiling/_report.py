"""What a profile says: the times of its steps, and its operations."""

import dataclasses
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from .._display import text_table
from ._intervals import Times, union
from ._recorder import StartedStep, StepRecorder
from ._trace import Instruction, Ran, Trace, is_exchange, kind_of, read

_TOP = 10
_NO_LAYERS = (
    "No operation says which layer it belongs to, because programs from the cache do not keep that. Start with "
    "REPLICANT_COMPILATION_CACHE=0 to see it."
)
_PROGRAM = re.compile(r"^jit\([^()]*\)/")  # with which every path begins
_COLUMNS = ("step", "host", "device", "exchange", "input", "compile")


@dataclasses.dataclass(frozen=True)
class StepProfile:
    """Where the time of a step went. All times are in seconds.

    Devices may compute while the program waits for input, so the parts may add up to more than `seconds`.

    Args:
        number: The number of the step, from 1.
        program: The name of its program: that of the compiled function, or ``"fit"``.
        seconds: From the start of the step before to that of this one. The last step ends when its result is ready.
        host_seconds: The part in which no device computed, and the program neither waited for input nor compiled.
        device_seconds: The part in which at least one device computed. A device may still compute the step before.
        exchange_seconds: The part in which devices exchanged data.
        input_seconds: The part in which the program waited for input.
        compile_seconds: The part in which the program traced or compiled.
        idle_input_seconds: The part in which the program waited for input and no device computed.
    """

    number: int
    program: str
    seconds: float
    host_seconds: float
    device_seconds: float
    exchange_seconds: float
    input_seconds: float
    compile_seconds: float
    idle_input_seconds: float


@dataclasses.dataclass(frozen=True)
class OperationProfile:
    """What one operation of a program took, on all devices and in all steps together.

    Args:
        name: Its name in the compiled program.
        kind: What it does, as XLA calls it, such as ``"fusion"`` or ``"all-reduce"``.
        path: Where it comes from, as JAX calls it: the layer and the function. Empty if the program does not say.
        program: The name of its program.
        num_calls: How often it ran.
        seconds: How long it ran.
        share: Its part of the time of all operations, from 0 to 1.
    """

    name: str
    kind: str
    path: str
    program: str
    num_calls: int
    seconds: float
    share: float


@dataclasses.dataclass(frozen=True)
class Report:
    """What was recorded.

    Args:
        steps: The steps, in the order in which they were started.
        operations: The operations, the longest first.
        num_devices: The number of devices that computed.
    """

    steps: tuple[StepProfile, ...]
    operations: tuple[OperationProfile, ...]
    num_devices: int

    @property
    def mean(self) -> StepProfile | None:
        """The means over the steps that did not compile, or over all if all did; None if there is no step. `number` counts them.

        Steps are started before those before them have ended, so single ones may be short and the last one long.
        """
        chosen = [step for step in self.steps if not step.compile_seconds] or list(self.steps)
        if not chosen:
            return None
        names = [field.name for field in dataclasses.fields(StepProfile) if field.name.endswith("seconds")]
        means = {name: statistics.fmean(getattr(step, name) for step in chosen) for name in names}
        return StepProfile(number=len(chosen), program="", **means)


def report(recorder: StepRecorder) -> Report:
    """Read what was recorded.

    Raises:
        ProfileError: If JAX's profiler could not write its file, or if that is damaged.
    """
    if recorder.error is not None:
        raise recorder.error
    if not recorder.steps:
        return Report((), (), 0)
    assert recorder.file is not None, "steps are recorded while JAX's profiler runs"
    trace = read(recorder.file)
    return Report(_steps(recorder, trace), _operations(trace), len(trace.busy))


def _steps(recorder: StepRecorder, trace: Trace) -> tuple[StepProfile, ...]:
    shift = _shift(recorder.steps, trace)

    def times(chosen: Callable[[Ran], bool]) -> Times:
        return Times([(ran.begin + shift, ran.end + shift) for ran in trace.ran if chosen(ran)])

    busy = Times([(begin + shift, end + shift) for each in trace.busy.values() for begin, end in each])
    exchanges = times(lambda ran: is_exchange(kind_of(trace.instruction(ran), ran.name)))
    of_thread = {step.thread: _OfThread(recorder, step.thread, busy) for step in recorder.steps}
    return tuple(of_thread[step.thread].step(i + 1, step, exchanges) for i, step in enumerate(recorder.steps))


def _shift(steps: Sequence[StartedStep], trace: Trace) -> float:
    """Return what must be added to the profiler's clock to have that of the host."""
    return statistics.median([step.mark - trace.marks[step.number] for step in steps if step.number in trace.marks] or [0.0])


class _OfThread:
    """What a thread did."""

    def __init__(self, recorder: StepRecorder, thread: int, busy: Times):
        def times(kind: str) -> Times:
            return Times([(begin, end) for owner, each, begin, end in recorder.notes if owner == thread and each == kind])

        self.busy, self.input, self.compile, self.own = busy, times("input"), times("compile"), times("own")
        self.known = union([busy, self.input, self.compile, self.own])
        self.busy_or_input = union([busy, self.input])

    def step(self, number: int, step: StartedStep, exchanges: Times) -> StepProfile:
        """Return where the time of a step went."""

        def part(times: Times) -> float:
            return times.within(step.begin, step.end)

        whole = step.end - step.begin
        return StepProfile(
            number,
            step.program,
            seconds=whole - part(self.own),
            host_seconds=max(0.0, whole - part(self.known)),
            device_seconds=part(self.busy),
            exchange_seconds=part(exchanges),
            input_seconds=part(self.input),
            compile_seconds=part(self.compile),
            idle_input_seconds=part(self.busy_or_input) - part(self.busy),
        )


def _operations(trace: Trace) -> tuple[OperationProfile, ...]:
    found: dict[tuple[str, str], list[float]] = {}
    for ran in trace.ran:
        found.setdefault((ran.program, ran.name), []).append(ran.end - ran.begin)
    whole = sum(map(sum, found.values()))

    def operation(program: str, name: str, seconds: list[float]) -> OperationProfile:
        instruction = trace.programs.get(program, {}).get(name, Instruction())
        kind, taken = kind_of(instruction, name), sum(seconds)
        share = taken / whole if whole else 0.0
        return OperationProfile(name, kind, instruction.path, program.partition("(")[0], len(seconds), taken, share)

    every = [operation(program, name, seconds) for (program, name), seconds in found.items()]
    return tuple(sorted(every, key=lambda each: -each.seconds))


def told(found: Report, asked: int | None, who: str, folder: Path | None) -> str:
    """Write a report as a table.

    Args:
        found: The report.
        asked: The number of steps that were asked for; None for all.
        who: The worker, if there are several; else nothing.
        folder: Where the files are kept, if they are.
    """
    mean = found.mean
    if mean is None:
        return (
            f"Profile{who}: no step was recorded. A step is a call of a `replicant.function` or of `strategy.run`, a step of "
            "`fit`, or, under a strategy, one of `evaluate` or `predict`. What parameter servers schedule runs in other processes."
        )
    count = f"{len(found.steps)} step(s)" if asked in (None, len(found.steps)) else f"{len(found.steps)} of {asked} steps"
    devices = f"{found.num_devices} device(s)"
    rows = [(str(step.number), step.program, *_milliseconds(step)) for step in found.steps]
    which = "" if mean.compile_seconds else ", which did not compile"
    rows.append(("", f"mean of {mean.number}{which}", *_milliseconds(mean)))
    lines = [f"Profile{who}: {count} on {devices}; times in ms", *text_table(("", "program", *_COLUMNS), rows), _bound(mean)]
    if found.operations:
        lines += ["", f"Operations, {min(_TOP, len(found.operations))} of {len(found.operations)}:", *_top(found)]
        if not any(operation.path for operation in found.operations):
            lines.append(_NO_LAYERS)
    lines.append(
        'For every single operation: replicant.profile(folder="profiles") keeps the files that TensorBoard and xprof show.'
        if folder is None
        else f"For every single operation: pip install xprof; xprof --logdir {folder}"
    )
    return "\n".join(lines)


def _milliseconds(step: StepProfile) -> list[str]:
    parts = (
        step.seconds,
        step.host_seconds,
        step.device_seconds,
        step.exchange_seconds,
        step.input_seconds,
        step.compile_seconds,
    )
    return [f"{1000 * each:.2f}" for each in parts]


def _bound(mean: StepProfile) -> str:
    whole = mean.seconds or 1.0
    computed, host, waited = (part / whole for part in (mean.device_seconds, mean.host_seconds, mean.idle_input_seconds))
    return f"Devices computed for {computed:.0%} of the mean step, waited {host:.0%} for the host, and {waited:.0%} for input."


def _top(found: Report) -> list[str]:
    steps = len(found.steps)
    rows = [
        (
            f"{each.share:.1%}",
            f"{1000 * each.seconds / steps:.2f}",
            f"{each.num_calls / steps:g}",
            each.kind,
            _PROGRAM.sub("", each.path) or each.name,
        )
        for each in found.operations[:_TOP]
    ]
    return text_table(("share", "ms per step", "calls", "kind", "where"), rows, left=(3, 4))
