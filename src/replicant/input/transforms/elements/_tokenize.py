"""The function behind `tokenize`: texts become token ids."""

import dataclasses
from typing import Any

import numpy as np

from ....errors import DatasetError, ElementError


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Encodes an element that is a text, or the component ``key`` of a dict. ``end`` is added to every text, if there is one."""

    tokenizer: Any
    key: str | None
    end: int | None
    dtype: np.dtype

    def __call__(self, *element: Any) -> Any:
        if self.key is None:
            return self._encoded(element[0] if len(element) == 1 else element)
        if len(element) != 1 or type(element[0]) is not dict or self.key not in element[0]:
            raise DatasetError(f"tokenize: elements have no component {self.key!r}, which `key` names. Received: {element[0]!r}.")
        return {**element[0], self.key: self._encoded(element[0][self.key])}

    def _encoded(self, value: Any) -> np.ndarray:
        text = value.item() if isinstance(value, np.ndarray | np.generic) and np.ndim(value) == 0 else value
        if isinstance(text, bytes):
            try:
                text = text.decode()
            except UnicodeDecodeError as error:
                raise ElementError(f"tokenize: a text is not UTF-8 ({error}). It begins with {text[:40]!r}.") from error
        if not isinstance(text, str):
            raise DatasetError(
                "tokenize takes elements that are texts, or dicts and `key`, the name of a component that is one. "
                f"Received: {value!r}."
            )
        encoded = self.tokenizer.encode(text)
        ids = getattr(encoded, "ids", encoded)
        return self._checked(ids if self.end is None else [*ids, self.end])

    def _checked(self, ids: Any) -> np.ndarray:
        numbers = np.asarray(ids) if len(ids) else np.zeros(0, self.dtype)  # or an empty text would give float64
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise ElementError(
                f"tokenize: encode(text) must return whole numbers, or an object that has them as `ids`. Received: {ids!r}."
            )
        limits = np.iinfo(self.dtype)
        if len(numbers) and not limits.min <= numbers.min() <= numbers.max() <= limits.max:
            raise ElementError(
                f"tokenize: the ids {numbers.min()} to {numbers.max()} do not fit into {self.dtype}, which holds {limits.min} to "
                f"{limits.max}. Choose another dtype."
            )
        return numbers.astype(self.dtype, copy=False)
