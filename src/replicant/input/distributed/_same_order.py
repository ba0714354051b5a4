"""Datasets that each of several workers reads as a whole, all in the same order: what `fit` reads under DATA."""

from .._dataset import Dataset, facts_of_pipeline
from .._iterator import DatasetIterator, NotOpened, Pass
from ..graph._graph import Node, State
from ..sharding._autoshard import in_agreement
from ._agreement import ExchangeFn, agreed_position
from ._same_data import check_same, facts_of


class AlikeDataset(Dataset):
    """The elements of a dataset, in the chief's order on every worker.

    Args:
        dataset: The dataset of this worker; all workers make one.
        exchange: Exchanges values with the other workers.

    Raises:
        DatasetError: If the workers' datasets differ.
    """

    def __init__(self, dataset: Dataset, exchange: ExchangeFn) -> None:
        options = dataset.options()
        policy = options.experimental_distribute.auto_shard_policy
        check_same(exchange, lambda: facts_of(facts_of_pipeline(dataset), policy))
        super().__init__(in_agreement(dataset.node), options)
        self._exchange = exchange

    def __iter__(self) -> "AlikeIterator":
        return AlikeIterator(self.node, self._exchange)


class AlikeIterator(DatasetIterator):
    """An iterator that goes to the chief's position when the first element is asked for."""

    def __init__(self, node: Node, exchange: ExchangeFn) -> None:
        self._exchange, self._agreed = exchange, False
        super().__init__(node)

    def _opened(self, position: State | None) -> Pass | NotOpened:
        try:
            return super()._opened(position)
        except Exception as error:  # noqa: BLE001 - raised once it can be reported to the other workers
            return NotOpened(error)

    def _go_to(self, position: State | None) -> None:
        super()._go_to(position)
        self._agreed = False

    def _take(self) -> object:
        if not self._agreed:
            position = agreed_position(self._exchange, [self._node], lambda: (0, self._pass.last))
            if position != self._pass.last:
                self._pass.close()
                self._pass = super()._opened(position)
            self._agreed = True
        return super()._take()
