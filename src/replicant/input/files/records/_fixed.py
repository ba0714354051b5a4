"""Files of records of one size."""

import dataclasses

from ....errors import DatasetError
from .. import _stream
from .._files import Cut, FileFormat


@dataclasses.dataclass(frozen=True)
class FixedLength(FileFormat):
    """The format of FixedLengthRecordDataset: a header, records of ``record_bytes``, and a footer."""

    record_bytes: int = 1
    header_bytes: int = 0
    footer_bytes: int = 0

    def __post_init__(self) -> None:
        whole = self.record_bytes + self.header_bytes + self.footer_bytes
        object.__setattr__(self, "max_record_bytes", max(self.max_record_bytes, whole))

    @property
    def name(self) -> str:
        return "FixedLengthRecordDataset"

    def split(self, path: str, offset: int, data: memoryview, last: bool) -> Cut:
        size = self.record_bytes
        start = 0 if offset else self.header_bytes
        rest = len(data) - start - self.footer_bytes  # the footer is known only at the end, so its size is always left
        count = max(0, min(rest // size, max(1, _stream.PIECE // size)))  # an object for each takes far more memory than a byte
        items = [data[at : at + size].tobytes() for at in range(start, start + count * size, size)]
        ends = [start + size * (i + 1) for i in range(count)]
        return items, ends, self._excess(path) if last and (rest < 0 or rest % size) else None

    def _excess(self, path: str) -> DatasetError:
        return DatasetError(
            f"{self.name}: {path!r} does not hold whole records of {self.record_bytes} bytes between a header of "
            f"{self.header_bytes} and a footer of {self.footer_bytes} bytes. Check the sizes, or copy the file again."
        )
