"""The orders of shuffles inside of the datasets that `interleave` makes of elements, where workers must draw them alike.

In one process every shuffle numbers its iterations. Over several workers that number would say how often each of them has
looked at the dataset, so what the functions make is numbered by its place in the pass instead, which all workers share.
"""

import dataclasses
import hashlib

from replicant.errors import DatasetError

from ._cache import Cache
from ._graph import Node
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
    known: bool = True  # False: at a position that was reached without them

    def state(self) -> list[int]:
        """The position."""
        return [self.entropy, self.iteration, self.pass_, self.drawn]

    def next_pass(self) -> None:
        """Another pass of the same iteration begins."""
        self.pass_, self.drawn = self.pass_ + 1, 0

    def draw(self, label: str) -> tuple[int, int]:
        """The next number, and an entropy that belongs to it.

        Raises:
            DatasetError: the position says nothing of them.
        """
        if not self.known:
            raise DatasetError(
                f"The order of {label}, inside of a function of `interleave` or `flat_map`, cannot be agreed on with the other "
                "workers: this pass continues one that a process read by itself, as a cache that was filled before the dataset "
                "was distributed. Distribute the dataset before it is read, or delete the file of `cache(filename)`."
            )
        number = ((self.iteration << _PASSES | self.pass_) << _DRAWS) | self.drawn
        self.drawn += 1
        digest = hashlib.blake2b(f"{self.entropy} {number}".encode(), digest_size=8).digest()
        return number, int.from_bytes(digest, "little") >> 1

    def given_to(self, node: Node) -> Node:
        """The node, if it shuffles, with the next of these orders."""
        if isinstance(node, Cache):
            return dataclasses.replace(node, strict=True)
        if not isinstance(node, Shuffle):
            return node
        if node.seed is None:
            return dataclasses.replace(node, entropy=self.draw(node.label)[1], iterations=Iterations())
        if node.made_in_function or not node.reshuffle:  # new for every element, or always the same
            return dataclasses.replace(node, iterations=Iterations())
        return dataclasses.replace(node, iterations=Iterations(self.draw(node.label)[0]))
