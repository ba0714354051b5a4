"""Reads what JAX's profiler has written: which operation ran on which device, and when, and which layer it comes from.

The files are protocol buffers (xplane.proto, hlo.proto). ``jax.profiler.ProfileData`` reads them, too. But it does not show the
programs, which say what an operation is, and it makes Python warn when it is first used, which ends a process whose warnings are
errors.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from .._protobuf import MessageError, fields, messages, text
from ..errors import ProfileError

STEP = "step"  # the name of the events that mark steps

_EXCHANGES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-", "ragged-all-to-all")
# Operations of JAX by which XLA may call its own, where a program from the cache does not say what they are.
_OF_JAX = {
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "ppermute": "collective-permute",
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "psum_scatter": "reduce-scatter",
    "reduce_scatter": "reduce-scatter",
}
_CONTAINERS = {
    "while",
    "call",
    "conditional",
    "async-start",
    "async-update",
    "async-done",
}  # their operations are in the trace, too

_METADATA_PLANE, _DEVICE_PLANE = "/host:metadata", "/device:"

# Field numbers. In XSpace, XPlane, the entries of its tables, XEventMetadata and XStatMetadata, XLine, XEvent, and XStat:
_PLANES = 1
_NAME, _LINES, _EVENT_METADATA, _STAT_METADATA = 2, 3, 4, 5
_KEY, _VALUE = 1, 2
_METADATA_STATS = 5
_TIMESTAMP_NS, _EVENTS = 3, 4
_METADATA_ID, _OFFSET_PS, _DURATION_PS, _STATS = 1, 2, 3, 4
_STAT_ID, _INTEGERS, _STRING, _BYTES, _REFERENCE = 1, (3, 4), 5, 6, 7
# From HloProto by HloModuleProto and HloComputationProto to HloInstructionProto and OpMetadata:
_MODULE, _COMPUTATIONS, _INSTRUCTIONS = 1, 3, 2
_INSTRUCTION_NAME, _OPCODE, _OP_METADATA, _OP_NAME = 1, 2, 7, 2


@dataclasses.dataclass(frozen=True)
class Ran:
    """An operation that ran on a device.

    Args:
        program: The name of its program, with the number that JAX has given it, such as ``"jit_step(6)"``.
        name: Its name there.
        device: The device.
        begin: When it began, in seconds on the profiler's clock.
        end: When it ended.
    """

    program: str
    name: str
    device: str
    begin: float
    end: float


@dataclasses.dataclass(frozen=True)
class Instruction:
    """What a program says about an operation.

    Args:
        opcode: What it does, as XLA calls it. Empty if it is not known.
        path: Where it comes from, as JAX calls it, such as ``"jit(step)/dense/dot_general"``.
    """

    opcode: str = ""
    path: str = ""


@dataclasses.dataclass(frozen=True)
class Trace:
    """A profile of JAX.

    Args:
        ran: The operations, without those that only contain others.
        busy: For each device, the intervals in which it computed.
        programs: For each program, its operations.
        marks: For each step that was marked, when its mark began.
    """

    ran: tuple[Ran, ...]
    busy: Mapping[str, list[tuple[float, float]]]
    programs: Mapping[str, Mapping[str, Instruction]]
    marks: Mapping[int, float]

    def instruction(self, ran: Ran) -> Instruction:
        """Return what the program says about an operation."""
        return self.programs.get(ran.program, {}).get(ran.name, Instruction())


def read(path: Path) -> Trace:
    """Read a file that JAX's profiler has written.

    Raises:
        ProfileError: If it is damaged.
    """
    try:
        return _trace_of(memoryview(path.read_bytes()))
    except MessageError as error:
        raise ProfileError(f"The profile {path} is cut off or damaged: {error}.") from error


def _trace_of(profile: memoryview) -> Trace:
    ran: list[Ran] = []
    programs: dict[str, dict[str, Instruction]] = {}
    marks: dict[int, float] = {}
    for message in messages(profile, _PLANES):
        plane = _Plane(message)
        if plane.name == _METADATA_PLANE:
            programs.update(plane.programs())
            continue
        for name, begin, end, stats in plane.events():
            if "hlo_op" in stats and end > begin:
                device = plane.name if plane.is_device else f"cpu:{stats.get('device_ordinal', 0)}"
                program = f"{stats.get('hlo_module', '')}({stats.get('program_id', 0)})"
                ran.append(Ran(program, str(stats["hlo_op"]), device, begin, end))
            elif name == STEP and isinstance(number := stats.get("step_num"), int):
                marks.setdefault(number, begin)
    busy: dict[str, list[tuple[float, float]]] = {}
    for each in ran:
        busy.setdefault(each.device, []).append((each.begin, each.end))
    trace = Trace(tuple(ran), busy, programs, marks)
    proper = tuple(each for each in ran if kind_of(trace.instruction(each), each.name) not in _CONTAINERS)
    return dataclasses.replace(trace, ran=proper)


def kind_of(instruction: Instruction, name: str) -> str:
    """Return what an operation does: its opcode or, if that is not known, its name without a number.

    >>> kind_of(Instruction(), "all-reduce.12"), kind_of(Instruction(), "ppermute.3")
    ('all-reduce', 'collective-permute')
    >>> kind_of(Instruction("custom-call", "jit(step)/psum"), "ffi_call.4")  # an exchange through memory
    'all-reduce'
    """
    called = name.partition(".")[0]
    if instruction.opcode == "custom-call":
        return _OF_JAX.get(instruction.path.rpartition("/")[2], instruction.opcode)
    return instruction.opcode or _OF_JAX.get(called, called)


def is_exchange(kind: str) -> bool:
    """Whether devices exchange data in operations of this kind.

    >>> is_exchange("all-reduce-start"), is_exchange("reduce")
    (True, False)
    """
    return kind.startswith(_EXCHANGES)


class _Plane:
    """A plane of a profile: what one device did, the host, or the programs."""

    def __init__(self, message: memoryview):
        self._message, self.name = message, text(message, _NAME)
        self.is_device = self.name.startswith(_DEVICE_PLANE)
        self._stat_names = self._names(_STAT_METADATA)

    def _names(self, table: int) -> dict[int, str]:
        found = {}
        for entry in messages(self._message, table):
            parts = dict(fields(entry))
            value = parts.get(_VALUE)
            found[parts.get(_KEY)] = text(value, _NAME) if isinstance(value, memoryview) else ""
        return found

    def programs(self) -> Iterator[tuple[str, dict[str, Instruction]]]:
        """Yield the name and the operations of each program."""
        for program in messages(self._message, _EVENT_METADATA, _VALUE):
            found = messages(program, _METADATA_STATS, _BYTES, _MODULE, _COMPUTATIONS, _INSTRUCTIONS)
            yield text(program, _NAME), dict(map(_instruction, found))

    def events(self) -> Iterator[tuple[str, float, float, Mapping[str, int | str]]]:
        """Yield the name of each operation and of each mark of a step, when it began and ended, and what is noted about it."""
        names = self._names(_EVENT_METADATA)
        others: set[int] = set()  # events of the host that are neither
        for line in messages(self._message, _LINES):
            start = next((value for number, value in fields(line) if number == _TIMESTAMP_NS and isinstance(value, int)), 0)
            for event in messages(line, _EVENTS):
                found, stats = _event(event, others)
                key = found.get(_METADATA_ID, 0)
                if key in others:
                    continue
                told = dict(map(self._stat, stats))
                name = names.get(key, "")
                if "hlo_op" not in told and name != STEP and not self.is_device:
                    others.add(key)
                begin = start * 1e-9 + found.get(_OFFSET_PS, 0) * 1e-12
                yield name, begin, begin + found.get(_DURATION_PS, 0) * 1e-12, told

    def _stat(self, message: memoryview) -> tuple[str, int | str]:
        name, result = "", 0
        for number, value in fields(message):
            if number == _STAT_ID and isinstance(value, int):
                name = self._stat_names.get(value, "")
            elif number in _INTEGERS and isinstance(value, int):
                result = value
            elif number == _REFERENCE and isinstance(value, int):
                result = self._stat_names.get(value, "")
            elif number == _STRING and isinstance(value, memoryview):
                result = bytes(value).decode(errors="replace")
        return name, result


def _event(message: memoryview, others: set[int]) -> tuple[dict[int, int], list[memoryview]]:
    """Return the numbers and the notes of an event; only its kind if that is among `others`, which most are."""
    numbers: dict[int, int] = {}
    stats = []
    for number, value in fields(message):
        if isinstance(value, int):
            numbers[number] = value
            if number == _METADATA_ID and value in others:
                break
        elif number == _STATS:
            stats.append(value)
    return numbers, stats


def _instruction(message: memoryview) -> tuple[str, Instruction]:
    path = next((text(metadata, _OP_NAME) for metadata in messages(message, _OP_METADATA)), "")
    return text(message, _INSTRUCTION_NAME), Instruction(text(message, _OPCODE), path)
