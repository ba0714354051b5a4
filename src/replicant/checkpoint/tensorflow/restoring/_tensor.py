"""A tensor of a TensorFlow checkpoint, as the value of one of our variables, numbers or arrays."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ....errors import CheckpointError
from ...format._boxes import Box
from ...format._lazy_array import Stored
from ...values._values import NUMBER_TYPES, bare


class Tensor(Stored):
    """A tensor that is read when it is needed, whole or in slices; each of its bytes is read and checked once.

    Args:
        bundle: The checkpoint.
        key: The key of the tensor in it.
        wanted: What it is for: something with a dtype, or a Python number. Values of another dtype of the same kind are converted
            if each of them stays what it is.
        ahead: The values, if they were read before.
    """

    def __init__(self, bundle: Any, key: str, wanted: Any, ahead: np.ndarray | None = None):
        self._bundle, self._ahead = bundle, ahead
        self.key = key
        self._stored_dtype = bundle.dtype(key)
        self._number = type(wanted) if type(wanted) in NUMBER_TYPES else None
        self.dtype = self._dtype_for(wanted)
        self.shape = tuple(bundle.shape(key))
        self._kept: dict[Box, np.ndarray] = {}

    def read(self) -> Any:
        value = self._bundle.read(self.key) if self._ahead is None else self._ahead
        if self._number is None or self.shape:
            return self._converted(value)
        if _kind(self._stored_dtype) != _kind(self._number):
            raise CheckpointError(
                f"{self._bundle.path}: {self.key!r} is {self._stored_dtype}, but what is to be restored is a Python "
                f"{self._number.__name__}. Put a number of the other type in its place."
            )
        return self._number(value.item())

    def read_boxes(self, boxes: Sequence[Box]) -> dict[Box, np.ndarray]:
        kept, self._kept = self._kept, {}
        return kept if set(boxes) <= set(kept) else self._read_parts(boxes)

    def checks(self, boxes: Iterable[Box]) -> list[Callable[[], None]]:
        wanted = list(boxes)

        def keep() -> None:
            self._kept = dict(self._read_parts(wanted))

        return [keep]

    def _read_parts(self, boxes: Sequence[Box]) -> dict[Box, np.ndarray]:
        indices = [tuple(slice(*part) for part in box) for box in boxes]
        parts = self._bundle.read_parts(self.key, indices)
        return {box: self._converted(part) for box, part in zip(boxes, parts, strict=True)}

    def _dtype_for(self, wanted: Any) -> np.dtype:
        """The dtype to convert to, or that in the file if this is another kind of numbers, which then does not fit."""
        stored = self._stored_dtype
        dtype = None if self._number is not None else getattr(bare(wanted), "dtype", None)
        return stored if dtype is None or _kind(stored) != _kind(dtype) else np.dtype(dtype)

    def _converted(self, value: np.ndarray) -> np.ndarray:
        if value.dtype == self.dtype:
            return value
        with np.errstate(all="ignore"):
            new = value.astype(self.dtype)
            back = new.astype(value.dtype)
        if _kind(self.dtype) == "integer":
            same = (back == value) & ((new < 0) == (value < 0))  # unsigned ones come back as they were
        else:
            same = (back == value) | (np.isnan(value) & np.isnan(back))
        if not np.all(same):
            first = value.reshape(-1)[np.argmin(same.reshape(-1))]
            raise CheckpointError(
                f"{self._bundle.path}: {self.key!r} is {value.dtype}, and {int(np.sum(~same))} of its {value.size} values are no "
                f"{self.dtype}, such as {first!s}. Make the variable {value.dtype}, or read the tensor with "
                "replicant.load_variable and assign what you want."
            )
        return new


def _kind(dtype: Any) -> str:
    """The kind of numbers within which a value can stay what it is: integers, floating-point numbers, and each other dtype."""
    found = np.dtype(dtype)
    kinds = {"integer": jnp.integer, "floating-point": jnp.floating}
    return next((name for name, kind in kinds.items() if jnp.issubdtype(found, kind)), found.name)
