"""Files of token ids, one behind the other, as nanoGPT and llm.c write them."""

import dataclasses
import sys

import numpy as np

from ....errors import DatasetError
from ._rows import FileBytes, Layout, RowsFormat

_HEAD_BYTES = 1024  # of llm.c: 256 integers, the first of which are a number that marks it, its version, and the count of tokens
_OF_LLM_C = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}


@dataclasses.dataclass(frozen=True)
class Tokens(RowsFormat):
    """The format of TokenDataset: rows of ``length`` token ids, which begin ``stride`` token ids after each other."""

    length: int = 1
    stride: int = 1
    dtype: np.dtype | None = None  # None takes that of llm.c's head

    @property
    def name(self) -> str:
        return "TokenDataset"

    @property
    def settings(self) -> list[str]:
        stride = [f"stride={self.stride}"] if self.stride != self.length else []
        return [f"length={self.length}", *stride, *([f"dtype={self.dtype}"] if self.dtype else [])]

    @property
    def most_row_bytes(self) -> int:
        return sys.maxsize  # the user says how long a row is

    def layout(self, file: FileBytes) -> Layout:
        begin, dtype, count = self._counted_tokens(file)
        rows = 0 if count < self.length else (count - self.length) // self.stride + 1
        return Layout(rows, begin, self.stride * dtype.itemsize, (self.length,), dtype)

    def _counted_tokens(self, file: FileBytes) -> tuple[int, np.dtype, int]:
        """Where the first token id is, the dtype of all, and their number."""
        size, head = len(file), np.frombuffer(file[:12].ljust(12, b"\0"), "<i4").tolist()
        marked = _OF_LLM_C.get((head[0], head[1])) if size >= _HEAD_BYTES else None
        if marked is None:
            return 0, *self._headless(file)
        expected = _HEAD_BYTES + head[2] * marked.itemsize
        if head[2] < 0 or size != expected:
            raise DatasetError(
                f"{self.name}: {file.path!r} has {size} bytes, and its head, which is that of llm.c, says {head[2]} token ids of "
                f"{marked}, which take {expected}. Copy or write the file again."
            )
        if self.dtype not in (None, marked):
            raise DatasetError(
                f"{self.name}: {file.path!r} has token ids of {marked}, as its head says, which is that of llm.c. Received: "
                f"dtype={self.dtype}. Leave dtype out."
            )
        return _HEAD_BYTES, marked, head[2]

    def _headless(self, file: FileBytes) -> tuple[np.dtype, int]:
        if self.dtype is None:
            raise DatasetError(
                f"{self.name}: {file.path!r} does not begin with llm.c's head, so nothing in it says how many bytes a token "
                f"id has. "
                'Pass dtype="uint16", say, as the program that wrote it did.'
            )
        count, rest = divmod(len(file), self.dtype.itemsize)
        if rest:
            raise DatasetError(
                f"{self.name}: {file.path!r} has {len(file)} bytes, which are not a whole number of token ids of {self.dtype}. "
                f"Pass the "
                "dtype that the program has written, or copy the file again."
            )
        return self.dtype, count
