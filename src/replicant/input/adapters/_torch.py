"""torch.utils.data.DataLoader. It is known by its class's name; torch itself is not needed here."""

import dataclasses
from typing import Any

from ._batches import Batches, Passes, as_batch


@dataclasses.dataclass(frozen=True, eq=False)
class TorchBatches(Batches):
    """The batches of a DataLoader, which are lists of tensors where its dataset has tuples."""

    @classmethod
    def of(cls, iterable: Any) -> "TorchBatches":
        """The batches of this loader."""
        return cls(passes=Passes(iterable, "torch DataLoader"))

    def converted(self, element: Any) -> Any:
        return as_batch(_tupled(element))


def _tupled(value: Any) -> Any:
    """Lists as tuples, for here a list is one tensor; tensors as NumPy."""
    if isinstance(value, list) or type(value) is tuple:
        if value and all(isinstance(item, str | bytes) for item in value):
            return list(value)  # a batch of strings
        return tuple(_tupled(item) for item in value)
    if isinstance(value, dict):
        return {key: _tupled(item) for key, item in value.items()}
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
