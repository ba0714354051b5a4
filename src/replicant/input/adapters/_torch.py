"""torch.utils.data.DataLoader. It is recognized by its class name, so torch is not imported here."""

import dataclasses
from typing import Any

from ._batches import Batches, Passes, as_batch


@dataclasses.dataclass(frozen=True, eq=False)
class TorchBatches(Batches):
    """The batches of a DataLoader. Where its dataset has tuples, they are lists of tensors."""

    @classmethod
    def of(cls, iterable: Any) -> "TorchBatches":
        """Return the batches of this loader."""
        return cls(passes=Passes(iterable, "torch DataLoader"))

    def converted(self, element: Any) -> Any:
        return as_batch(_tupled(element))


def _tupled(value: Any) -> Any:
    """Convert lists to tuples, because a list means one tensor here, and tensors to NumPy."""
    if isinstance(value, list) or type(value) is tuple:
        if value and all(isinstance(item, str | bytes) for item in value):
            return list(value)  # a batch of strings
        return tuple(_tupled(item) for item in value)
    if isinstance(value, dict):
        return {key: _tupled(item) for key, item in value.items()}
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
