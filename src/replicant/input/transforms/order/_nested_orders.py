"""The orders of shuffles inside the datasets that `interleave` makes of elements.

Elsewhere, a shuffle numbers its own iterations. Inside a function, that number would depend on who has called the function
before, and a new shuffle has none. Such shuffles are therefore numbered by their place in the pass, which a position can hold
and which is the same on all workers.
"""

import dataclasses
import hashlib
from typing import TypeVar

from ....errors import DatasetError
from ._shuffle import Drawing, Iterations

DrawingNode = TypeVar("DrawingNode", bound=Drawing)

_PASSES = 16  # bits of the number of a pass
_DRAWS = 32  # bits of a number in a pass


@dataclasses.dataclass
class NestedOrders:
    """Numbers shuffles in the order in which they ask. The position is four integers."""

    entropy: int = 0
    iteration: int = 0
    pass_: int = 0
    drawn: int = 0
    known: bool = True

    @classmethod
    def at(cls, state: list[int] | None) -> "NestedOrders":
        """Return the orders at a position. None means a position of an older version, which has no orders."""
        if state is None:
            return cls(known=False)
        entropy, iteration, pass_, drawn = state
        return cls(entropy, iteration, pass_, drawn)

    def state(self) -> list[int]:
        """Return the position."""
        return [self.entropy, self.iteration, self.pass_, self.drawn]

    def next_pass(self) -> None:
        """Begin another pass of the same iteration."""
        self.pass_, self.drawn = self.pass_ + 1, 0

    def draw(self, label: str, cached: bool) -> tuple[int, int]:
        """Return the next number and its entropy. Below a cache, which keeps one pass, they are always the same.

        Raises:
            DatasetError: If the position has no orders.
        """
        if not self.known:
            raise DatasetError(
                f"This position does not contain the order of {label} inside a function of `interleave` or `flat_map`, because an "
                "older version of Replicant saved it. Start a new pass without it."
            )
        number = 0 if cached else ((self.iteration << _PASSES | self.pass_) << _DRAWS) | self.drawn
        self.drawn += 1
        digest = hashlib.blake2b(f"{self.entropy} {number}".encode(), digest_size=8).digest()
        return number, int.from_bytes(digest, "little") >> 1

    def drawing(self, node: DrawingNode, cached: bool) -> DrawingNode:
        """Return the shuffle, or another node that draws, with the next order. ``cached`` says that it is read through a cache.

        Raises:
            DatasetError: If the position has no orders.
        """
        if node.seed is None:
            return dataclasses.replace(node, entropy=self.draw(node.label, cached)[1], iterations=Iterations())
        if node.made_in_function or not node.reshuffle:  # a new one for every element, or always the same order
            return dataclasses.replace(node, iterations=Iterations())
        return dataclasses.replace(node, iterations=Iterations(self.draw(node.label, cached)[0]))
