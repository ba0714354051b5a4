"""What the graph has to know about sources of other libraries. `adapters` deals with the libraries themselves."""

import abc
import dataclasses

from ..graph._graph import NOT_COMPARED, UNKNOWN, Node


@dataclasses.dataclass(frozen=True, eq=False)
class Foreign(Node):
    """Global batches that another library makes."""

    inputs: tuple[Node, ...] = dataclasses.field(default=(), metadata=NOT_COMPARED)

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """The name that users know it by, such as ``torch DataLoader``."""

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
        """The object that holds the random generators which decide on the elements, as far as they can be seen."""
        return None

    @property
    def digest(self) -> str | None:
        """A text that other data has not, or the same in another order; None if it would have to be read."""
        return None

    def of_worker(self, num_workers: int, worker_index: int) -> "Foreign | None":
        """Return a source that reads this worker's share of the files, or None if the library cannot make one."""
        del num_workers, worker_index
        return None
