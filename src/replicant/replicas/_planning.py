"""What a plan needs from a program: strategies with the planned number of replicas, and its first training step."""

import dataclasses
import math
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Pages that nobody can write to take no memory, however many there are.
_UNWRITTEN: dict[str, int] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, "prot": mmap.PROT_READ} if hasattr(mmap, "MAP_PRIVATE") else {}
)
BIG = 1 << 20  # bytes from which a planned program's arrays are made as shapes only


@dataclasses.dataclass(frozen=True)
class Held:
    """An array of a training step.

    Args:
        name: The name of the array.
        kind: "weights", "untrained weights", "optimizer state", "other state" or "batch".
        shape: The shape of the whole array.
        dtype: The dtype of the array.
        layout: "mirrored", "stacked" (one row per replica), "sliced" (cut along an axis), or "cut" (a batch that is cut along its
            rows).
        pieces: The number of devices that keep different parts of an array that is sliced.
        pieces_in_use: The number of devices that share it while a replica computes with it.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: Any
    layout: str
    pieces: int = 1
    pieces_in_use: int = 1

    @property
    def num_bytes(self) -> int:
        """The bytes of the whole array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def bytes_in_use(self) -> int:
        """The bytes on each device while a replica computes with the array."""
        return self.num_bytes // self.pieces_in_use


class StepFound(BaseException):
    """Ends a program at its first training step. It is not an Exception, because programs catch those.

    Args:
        lower: A function that returns the step, lowered by JAX, for the devices of a placement.
        held: A function that returns what the step reads, and how that lies on the devices of a placement.
        cuts: The options of the strategy's placement that say how variables are cut.
    """

    def __init__(self, lower: Callable[[Any], Any], held: Callable[[Any], Sequence[Held]], cuts: dict[str, Any]):
        super().__init__("the first training step")
        self.lower = lower
        self.held = held
        self.cuts = cuts


class Planning:
    """A plan that is being made. The placement of every strategy that the program uses refers to it.

    Attributes:
        devices: The devices that the program's strategies get, whatever devices it asks for.
        strategies: The strategies that the program has made.
        inputs: For each dataset that it trains on, ``explain(num_workers, replicas_per_worker)``.
        uninitialized: For each large variable that was made as zeros, a function that gives it its initial value, if the variable
            is still there.
    """

    def __init__(self, devices: tuple[Any, ...]):
        self.devices = devices
        self.strategies: list[Any] = []
        self.inputs: list[Callable[[int, int], Any]] = []
        self.uninitialized: list[Callable[[], None]] = []


def zeros(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Return read-only zeros that take no memory, so that a planned program may need more memory than this machine has.

    JAX makes CPU arrays of them without a copy, because they begin at the start of a page.
    """
    kind = np.dtype(dtype)
    num_bytes = math.prod(shape) * kind.itemsize
    if num_bytes == 0:
        return np.zeros(shape, kind)
    return np.frombuffer(mmap.mmap(-1, num_bytes, **_UNWRITTEN), kind).reshape(shape)
