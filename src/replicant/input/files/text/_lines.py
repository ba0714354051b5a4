"""Text files: one element per line."""

import dataclasses
import itertools

from ....errors import DatasetError
from .. import _stream
from .._files import Cut, FileFormat
from .._remedies import HEAD, if_compressed
from .._stream import WINDOW_BITS


@dataclasses.dataclass(frozen=True)
class Lines(FileFormat):
    """The format of TextLineDataset: lines as ``str``, without line endings (LF or CR LF)."""

    @property
    def name(self) -> str:
        return "TextLineDataset"

    def split(self, path: str, offset: int, data: memoryview, last: bool) -> Cut:
        lines, ends = cut_lines(data, last)
        return self._decoded(path, offset, data, lines, ends)

    def _decoded(self, path: str, offset: int, data: memoryview, lines: list[bytes], ends: list[int]) -> Cut:
        """The lines of ``data`` as text, as far as they are UTF-8."""
        texts: list[str] = []
        try:
            for line in lines:
                texts.append(line.removesuffix(b"\r").decode())  # noqa: PERF401 - the good lines are kept if one is not
        except UnicodeDecodeError as error:
            at = offset + (ends[len(texts) - 1] if texts else 0)
            return texts, ends[: len(texts)], self._not_text(path, at, error, b"" if offset else bytes(data[:HEAD]))
        return texts, ends, None

    def _not_text(self, path: str, at: int, error: UnicodeDecodeError, head: bytes) -> DatasetError:
        remedy = if_compressed(head, () if self.compression else WINDOW_BITS)
        return DatasetError(
            f"{self.name}: {path!r} is not UTF-8 text: {error.reason} at byte {at + error.start} "
            f"(0x{error.object[error.start]:02x}), in the line that begins at byte {at}. "
            f"{remedy or 'Convert the file to UTF-8, or read it with `from_generator`.'}"
        )


def cut_lines(data: memoryview, last: bool) -> tuple[list[bytes], list[int]]:
    """Return the lines without their ends, and where each stops. What follows the last end is a line if it is the `last` data.

    Of much data, these are the first line, and those in the first `PIECE`.
    """
    text = data.tobytes()
    if (
        len(text) > _stream.PIECE
        and (stop := max(text.find(b"\n") + 1, _stream.PIECE)) < len(text)
        and (end := text.rfind(b"\n", 0, stop)) >= 0
    ):
        text, last = text[: end + 1], False
    lines = text.split(b"\n")
    rest = lines.pop()
    ends = list(itertools.accumulate(len(line) + 1 for line in lines))
    if rest and last:
        lines.append(rest)
        ends.append(len(text))
    return lines, ends
