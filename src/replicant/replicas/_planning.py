"""What a plan asks of a program: strategies with as many replicas as are planned for, and its first training step."""

import dataclasses
import math
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Pages that nobody can write to need no memory, however many they are.
_UNWRITTEN: dict[str, int] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, "prot": mmap.PROT_READ} if hasattr(mmap, "MAP_PRIVATE") else {}
)
BIG = 1 << 20  # bytes from which on only the shapes of what a planned program makes are worth having


@dataclasses.dataclass(frozen=True)
class Held:
    """An array of a training step.

    kind: "weights", "optimizer state", "other state" or "batch". layout: "mirrored", "stacked" (a row for each replica) or "sliced"
    (cut along an axis).
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: Any
    layout: str

    @property
    def num_bytes(self) -> int:
        """Of the whole array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class StepFound(BaseException):
    """Ends a program at its first training step. Not an Exception: programs catch those.

    Args:
        lower: gives the step, lowered by JAX, for the devices of a placement.
        held: what it reads, and how that lies on the devices of a placement.
        slices_slots: whether its strategy cuts the optimizer's state into slices.
    """

    def __init__(self, lower: Callable[[Any], Any], held: Callable[[Any], Sequence[Held]], *, slices_slots: bool):
        super().__init__("the first training step")
        self.lower = lower
        self.held = held
        self.slices_slots = slices_slots


class Planning:
    """A plan in the making, a field of the placement of every strategy that its program uses.

    devices: what the program's strategies get, whatever devices it asks for. strategies: that the program made. inputs: for each
    dataset that it trains on, ``explain(num_workers, replicas_per_worker)``.
    """

    def __init__(self, devices: tuple[Any, ...]):
        self.devices = devices
        self.strategies: list[Any] = []
        self.inputs: list[Callable[[int, int], Any]] = []


def zeros(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Zeros, not to be written to, that take no memory, so that a planned program may be larger than this machine.

    JAX makes CPU arrays of them without a copy: their memory begins where a page begins.
    """
    kind = np.dtype(dtype)
    num_bytes = math.prod(shape) * kind.itemsize
    if num_bytes == 0:
        return np.zeros(shape, kind)
    return np.frombuffer(mmap.mmap(-1, num_bytes, **_UNWRITTEN), kind).reshape(shape)
