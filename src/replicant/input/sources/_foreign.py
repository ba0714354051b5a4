"""Sources of other libraries: what the graph has to know about them. The libraries themselves are in `adapters`."""

import abc
import dataclasses

from ..graph._graph import UNKNOWN, Node


@dataclasses.dataclass(frozen=True, eq=False)
class Foreign(Node):
    """Global batches that another library makes."""

    inputs: tuple[Node, ...] = ()

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """What it is, as its users call it: ``torch DataLoader``."""

    @property
    def label(self) -> str:
        return f"adapted({self.kind})"

    @property
    def cardinality(self) -> int:
        return UNKNOWN

    @property
    def same_everywhere(self) -> bool:
        """Whether every worker that makes it gets the same elements in the same order, so that they can share them."""
        return True

    @property
    def drawn_from(self) -> object:
        """What holds the random generators that decide which elements there are, as far as they can be seen."""
        return None

    def of_worker(self, num_workers: int, worker_index: int) -> "Foreign | None":
        """What reads this worker's share of the files; None if that cannot be asked of this library."""
        del num_workers, worker_index
        return None
