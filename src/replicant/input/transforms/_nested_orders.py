"""The orders of shuffles inside of the datasets that `interleave` makes of elements.

A shuffle of its own numbers its iterations. Inside of a function that number would depend on who has called the function
before, and a new shuffle has none: such shuffles are numbered by their place in the pass, which a position can hold and
all workers share.
"""

import dataclasses
import hashlib

from replicant.errors import DatasetError

from ._shuffle import Iterations, Shuffle

_PASSES = 16  # bits of the number of a pass
_DRAWS = 32  # bits of a number in a pass


@dataclasses.dataclass
class NestedOrders:
    """Numbers in the order in which they are drawn; the position is four integers."""

    entropy: int = 0
    iteration: int = 0
    pass_: int = 0
    drawn: int = 0
    known: bool = True

    @classmethod
    def at(cls, state: list[int] | None) -> "NestedOrders":
        """At a position; None: one that says nothing of orders, as those of older versions."""
        if state is None:
            return cls(known=False)
        entropy, iteration, pass_, drawn = state
        return cls(entropy, iteration, pass_, drawn)

    def state(self) -> list[int]:
        """The position."""
        return [self.entropy, self.iteration, self.pass_, self.drawn]

    def next_pass(self) -> None:
        """Another pass of the same iteration begins."""
        self.pass_, self.drawn = self.pass_ + 1, 0

    def draw(self, label: str, cached: bool) -> tuple[int, int]:
        """The next number, and an entropy that belongs to it; always the same ones below a cache, which keeps one pass.

        Raises:
            DatasetError: the position says nothing of them.
        """
        if not self.known:
            raise DatasetError(
                f"This position does not say in which order {label} was, inside of a function of `interleave` or `flat_map`: an "
                "older version of Replicant saved it. Begin the pass again, without it."
            )
        number = 0 if cached else ((self.iteration << _PASSES | self.pass_) << _DRAWS) | self.drawn
        self.drawn += 1
        digest = hashlib.blake2b(f"{self.entropy} {number}".encode(), digest_size=8).digest()
        return number, int.from_bytes(digest, "little") >> 1

    def shuffled(self, node: Shuffle, cached: bool) -> Shuffle:
        """The shuffle with the next order; ``cached``: it is read through a cache.

        Raises:
            DatasetError: the position says nothing of orders.
        """
        if node.seed is None:
            return dataclasses.replace(node, entropy=self.draw(node.label, cached)[1], iterations=Iterations())
        if node.made_in_function or not node.reshuffle:  # a new one for every element, or always the same order
            return dataclasses.replace(node, iterations=Iterations())
        return dataclasses.replace(node, iterations=Iterations(self.draw(node.label, cached)[0]))
