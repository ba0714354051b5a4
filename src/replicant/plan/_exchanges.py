"""Reads the exchanges between devices from XLA's text of a compiled program."""

import dataclasses
import math
import re
from collections.abc import Iterable

_SENT = {"all-reduce": 1.0}  # traffic per byte, relative to an all-reduce; 0.5 for the other kinds
_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
_LINE = re.compile(rf"= (?P<shapes>.*?) (?P<kind>{'|'.join(_KINDS)})(?:-start)?\(")
# The head of a computation, with its parameters. On TPUs, an exchange that runs beside several computations stands in each of them.
# Those that continue what another one has begun have a parameter s32[2].
_HEAD = re.compile(r"(?:ENTRY )?%\S+ \((.*)\) -> ")
# On TPUs, the head of a computation that sums and keeps a slice. It is one exchange, and sends as much as a reduce-scatter.
_SCATTERS = "%all-reduce-scatter"
_SHAPE = re.compile(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")
_LISTS = re.compile(r"replica_groups=\{(\{[\d,]*\}(?:,\{[\d,]*\})*)\}")
_IOTA = re.compile(r"replica_groups=(?:mesh)?\[(\d+),(\d+)\]")
_BITS = re.compile(r"\d+")
# A computation that another one calls, perhaps as the body of a loop. A loop ends at the number of its condition's comparison.
_CALLED = re.compile(r"(?:condition=%(?P<condition>[^\s,]+), )?(?:body|calls)=%(?P<name>[^\s,]+)")
_CONSTANT = re.compile(r"= [su]32\[\]\S* constant\((\d+)\)")
_ENDS = re.compile(r"ROOT .* compare\(.*direction=LT")


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One exchange.

    Args:
        kind: The name of the operation, such as "all-reduce".
        num_bytes: The bytes of its result on each device.
        group_size: The number of devices that exchange with each other; 0 for all.
    """

    kind: str
    num_bytes: int
    group_size: int


def ring_bytes(exchanges: Iterable[Exchange]) -> float:
    """Return the bytes of an all-reduce that sends as much as these exchanges.

    For an all-gather's result or an all-to-all, a ring of n devices sends (n - 1) / n of the bytes. For an all-reduce it sends
    twice as much. The result of a reduce-scatter is only one device's share of what is reduced.

    >>> ring_bytes([Exchange("all-reduce", 8, 4), Exchange("all-gather", 8, 4), Exchange("reduce-scatter", 2, 4)])
    16.0
    """
    return sum(x.num_bytes * _SENT.get(x.kind, 0.5) * (x.group_size or 1 if x.kind == "reduce-scatter" else 1) for x in exchanges)


def exchanges_in(text: str) -> list[Exchange]:
    """Return the exchanges in the text of a compiled program, in its order.

    >>> exchanges_in("%r = f32[4,2]{1,0} all-reduce(f32[4,2]{1,0} %x), replica_groups={{0,1}}, to_apply=%add")
    [Exchange(kind='all-reduce', num_bytes=32, group_size=2)]
    """
    found: list[tuple[Exchange, str]] = []
    goes_on, scattered, name = False, "", ""
    for line in text.splitlines():
        if head := _HEAD.match(line):
            scattered = line.partition(" -> ")[2] if line.startswith(_SCATTERS) else ""
            name = head[0].partition(" (")[0]
            goes_on = "fus" in name and ": s32[2]" in head[1]
        match = _LINE.search(line)
        if match and not goes_on:
            kind = "reduce-scatter" if scattered else match["kind"]
            shapes = _SHAPE.findall(scattered or match["shapes"])
            if "-start(" in line and len(shapes) > 1 and kind != "all-reduce":
                if kind == "collective-permute":
                    shapes = shapes[:2]  # marks of its progress come last
                shapes = shapes[-1:]  # operands come first
            found.append((Exchange(kind, sum(_bytes_of(*shape) for shape in shapes), _group_size(line)), name.lstrip("%")))
    rounds = _Rounds(text) if " while(" in text else None
    return [x for x, place in found for _ in range(rounds.of(place) if rounds else 1)]


class _Rounds:
    """How often the computations of a program run in one run of it, as far as loops count up to a number in their condition."""

    def __init__(self, text: str):
        self._callers: dict[str, tuple[str, str | None]] = {}
        constants: dict[str, list[int]] = {}
        ends: set[str] = set()
        name = ""
        for line in text.splitlines():
            if head := _HEAD.match(line):
                name = head[0].partition(" (")[0].lstrip("%")
            for called in _CALLED.finditer(line):
                self._callers[called["name"]] = name, called["condition"]
            constants.setdefault(name, []).extend(int(number) for number in _CONSTANT.findall(line))
            if _ENDS.search(line):
                ends.add(name)
        self._ends = {name: constants[name][0] for name in ends if len(constants[name]) == 1}

    def of(self, name: str) -> int:
        """Return how often a computation runs."""
        rounds = 1
        while name in self._callers:
            name, condition = self._callers[name]
            rounds *= self._ends.get(condition or "", 1)
        return rounds


def _bytes_of(dtype: str, dims: str) -> int:
    bits = 8 if dtype == "pred" else int(_BITS.findall(dtype)[0])
    return math.prod(int(size) for size in dims.split(",") if size) * max(8, bits) // 8


def _group_size(line: str) -> int:
    if match := _LISTS.search(line):
        return len(match[1].split("}")[0].strip("{").split(","))
    match = _IOTA.search(line)
    return int(match[2]) if match else 0
