"""The values in a checkpoint of Replicant, by their names, without the objects that it was made from."""

from typing import Any

import numpy as np

from ..errors import CheckpointError
from ._manifest import read_checked
from .folders._locations import Place
from .format._lazy_array import stored_arrays
from .values._values import COPIES, decode

_MAX_NAMES = 20  # in a message


class OwnValues:
    """The arrays and Python numbers of a checkpoint.

    Args:
        folder: The checkpoint.

    Raises:
        CheckpointError: If there is none, or its manifest is damaged.
    """

    def __init__(self, folder: Place):
        self.path = str(folder)
        manifest = read_checked(folder)
        self._arrays = {key: array for key, array in stored_arrays(folder, manifest).items() if is_value(key)}
        self._numbers = {
            key: decode({"random_keys": {}, "states": {}, "copies": {}, "numbers": {key: number}}, {})[key]
            for key, number in manifest["meta"]["numbers"].items()
        }

    def keys(self) -> list[str]:
        """Return the names of all values, sorted."""
        return sorted({*self._arrays, *self._numbers})

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of a value: () for a number.

        Raises:
            CheckpointError: If there is no such value.
        """
        return self._arrays[key].shape if key in self._arrays else np.shape(self._number(key))

    def dtype(self, key: str) -> np.dtype:
        """Return the dtype of a value: for a number the one that NumPy gives it.

        Raises:
            CheckpointError: If there is no such value.
        """
        return self._arrays[key].dtype if key in self._arrays else np.asarray(self._number(key)).dtype

    def read(self, key: str) -> Any:
        """Read a value: a NumPy array or a Python number.

        Raises:
            CheckpointError: If there is no such value, or it is damaged.
        """
        return self._arrays[key].read() if key in self._arrays else self._number(key)

    def _number(self, key: str) -> Any:
        if key in self._numbers:
            return self._numbers[key]
        names = self.keys()
        more = f", ... ({len(names)} in all)" if len(names) > _MAX_NAMES else ""
        raise CheckpointError(f"The checkpoint {self.path} has no value {key!r}. It has: {', '.join(names[:_MAX_NAMES])}{more}.")


def is_value(key: str) -> bool:
    """Whether an array is a value of an object, not one that Replicant stores in addition."""
    return not key.endswith(COPIES) and not key.startswith(".")
