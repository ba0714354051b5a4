"""JSON Lines: one object per line."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from ....errors import ArgumentError, DatasetError, ElementError
from ...graph._blocks import Block
from ...graph._graph import UNKNOWN, Node
from ...graph._structure import STRING, TensorSpec, component_names, flatten, show_structure
from ...sources._generator import fitted, free_spec
from .._file_format import Cut, FileFormat, FileReader
from .._format import Reader
from .._remedies import HEAD, if_compressed
from .._stream import PIECE, FileStream
from .._zstd import ZstdStream
from ._json_values import json_value
from ._lines import cut_lines

_SUFFIXES = {".gz": "GZIP", ".zst": "ZSTD"}
_COMPRESSIONS = ("GZIP", "ZLIB", "ZSTD")
_SHOWN = 100  # characters of a line in a message


@dataclasses.dataclass(frozen=True)
class JsonLines(FileFormat):
    """The format of JsonLinesDataset. ``compression`` is "AUTO" to go by the names of the files."""

    names: tuple[str, ...] | None = None
    fill_null: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    signature: Any = dataclasses.field(default=None, compare=False)
    skips: bool = False

    @property
    def name(self) -> str:
        return "JsonLinesDataset"

    @property
    def label(self) -> str:
        settings = [f"columns={list(self.names)}"] if self.names else []
        settings += [f"fill_null={dict(self.fill_null)}"] if self.fill_null else []
        settings += [f"output_signature={self.signature}"] if self.signature else []
        settings += ['on_error="skip"'] if self.skips else []
        return f"{self.name}({', '.join(settings)})"

    def stream(self, path: str) -> FileStream:
        """Open a file."""
        kind = self.compression
        if kind == "AUTO":
            kind = next((its for suffix, its in _SUFFIXES.items() if path.lower().endswith(suffix)), "")
        return ZstdStream(self.name, path) if kind == "ZSTD" else FileStream(self.name, path, kind)

    def open(self, path: str, position: Any, spec: Any, part: int | None = None, identity: str | None = None) -> Reader:
        return JsonReader(self, path, position, spec, identity)

    def spec_of(self, paths: Iterator[str]) -> Any:
        return self.signature or next(filter(None, map(self._first_spec, paths)), None)

    def _first_spec(self, path: str) -> Any:
        """The spec of the first line of a file that can be read; None if there is none."""
        reader = JsonReader(self, path, 0, None)
        try:
            element = reader.first()
        finally:
            reader.close()
        return None if element is None else free_spec(*flatten(element), f"{self.name}: ", "the first line")

    def cardinality(self, node: Node) -> int:
        return 0 if node.cardinality == 0 else UNKNOWN

    def split(self, path: str, offset: int, data: memoryview, last: bool) -> Cut:
        lines, ends = cut_lines(data, last)
        return lines, ends, None

    def parsed(self, line: bytes, spec: Any = None, parse_float: Callable[[str], Any] | None = None) -> dict[str, Any]:
        """Return the columns of a line. ``spec`` is that of all lines, if it is known.

        Raises:
            ElementError: If it is not one object with these columns.
        """
        try:
            found = json_value(line, parse_float)
        except (ValueError, RecursionError) as error:
            raise ElementError(f"it is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise ElementError(f"it is not an object but {type(found).__name__}")
        names = found if self.names is None else self.names
        missing = {**self.fill_null}
        element = {
            name: missing.get(name) if found.get(name) is None else found[name] for name in {**dict.fromkeys(names), **missing}
        }
        for name, value in element.items():
            if value is None:
                raise ElementError(f"column {name!r} has no value; give a value to use instead: {_filler(name, spec)}")
        return element

    def check_finite(self, line: bytes) -> None:
        """Check that no number of a line was too large to be read as it is there.

        Raises:
            ElementError: If one was.
        """
        for leaf in jax.tree.leaves(self.parsed(line, parse_float=_TooLarge.or_number)):
            if isinstance(leaf, _TooLarge):
                raise ElementError(f"it holds the number {leaf.text}, which is beyond float64; write null, a text or Infinity")


@dataclasses.dataclass
class _TooLarge:
    """A number that float64 has no room for."""

    text: str

    @classmethod
    def or_number(cls, text: str) -> "float | _TooLarge":
        """Return the number that a text is, or that it is too large."""
        number = float(text)
        return cls(text) if math.isinf(number) else number


def _filler(name: str, spec: Any) -> str:
    """What to write for a column that lacks values, by its dtype."""
    if spec is None or name not in spec:
        return f"fill_null={{{name!r}: 0}}, or '' for a text"
    return f"fill_null={{{name!r}: {jax.tree.map(_zero, spec[name])!r}}}"


def _zero(spec: TensorSpec) -> Any:
    """A value that fits a spec, as JSON has it."""
    return [] if spec.shape else "" if spec.dtype == STRING else False if spec.dtype == np.bool_ else 0


def _has_infinity(leaf: Any) -> bool:
    return getattr(leaf, "dtype", STRING).kind == "f" and bool(np.isinf(leaf).any())


class JsonReader(FileReader):
    """Parses lines when they are asked for. An error costs one line."""

    form: JsonLines

    def __init__(self, form: JsonLines, path: str, position: int, spec: Any, identity: str | None = None) -> None:
        super().__init__(form, path, position, identity)
        self.spec = spec
        self.specs, self.structure = (None, None) if spec is None else flatten(spec)
        self.names = [] if self.structure is None else component_names(self.structure)

    def first(self) -> dict[str, Any] | None:
        """Return the first element as it was parsed."""
        while len(lines := self.read(1)):
            with contextlib.suppress(ElementError):  # raised, or counted, when the line is read
                if lines[0].strip() and flatten(element := self.form.parsed(lines[0]))[0]:
                    return element
        return None

    def pull(self, limit: int) -> Block | None:
        made: list[list[Any]] = []
        while len(made) < limit and len(lines := self._lines(limit - len(made), bool(made))):
            begin = self.next - len(lines)
            for i, line in enumerate(lines, begin):
                try:
                    if line.strip():
                        made.append(self._leaves(line))
                except DatasetError as error:
                    if self.form.skips:
                        self.num_skipped += 1
                        continue
                    self.next = i if made else i + 1  # whoever asks again gets to the line, or past it
                    if made:
                        return Block.of_elements(self.structure, made)
                    raise self._at_line(error, line, i) from error
        return Block.of_elements(self.structure, made) if made else None

    def _lines(self, limit: int, after_others: bool) -> np.ndarray:
        """The next lines. If the file is damaged here, there are none after others, and whoever asks again gets the error."""
        try:
            return self.read(limit)
        except DatasetError:
            if not after_others:
                raise
            return self.items[:0]

    def _leaves(self, line: bytes) -> list[Any]:
        leaves, structure = flatten(self.form.parsed(line, self.spec))
        if not leaves:
            raise ElementError("it has no values, so it has no columns")
        if structure != self.structure:
            raise ElementError(
                f"it has the columns {show_structure(structure)}, but {show_structure(self.structure)} are expected, as in the "
                "first line; name those to read in `columns`"
            )
        assert self.specs is not None, "the structure was compared"
        named = zip(leaves, self.specs, self.names, strict=True)
        made = [fitted(leaf, spec, f"{name[name.find('[') :]}") for leaf, spec, name in named]
        if any(map(_has_infinity, made)):
            self.form.check_finite(line)
        return made

    def skip(self, count: int) -> int:
        return Reader.skip(self, count)  # blank lines are not elements

    def _at_line(self, error: DatasetError, line: bytes, number: int) -> ElementError:
        offset = int(self.offsets[number])
        shown = line[:_SHOWN].decode(errors="replace") + ("..." if len(line) > _SHOWN else "")
        remedy = 'Correct it, or leave such lines out: on_error="skip".'
        if not offset:
            remedy = if_compressed(line[:HEAD], _COMPRESSIONS) or remedy
        return ElementError(
            f"{self.form.name}: {self.path}:{self._line_number(offset)} (byte {offset}): {str(error).removesuffix('.')}. The line "
            f"is {shown!r}. {remedy}"
        )

    def _line_number(self, offset: int) -> int:
        """The number of the line that begins at an offset, counted from 1."""
        stream, piece, number = self.form.stream(self.path), memoryview(bytearray(PIECE)), 1
        try:
            while offset and (count := stream.read_into(piece[: min(offset, PIECE)])):
                number += int(np.count_nonzero(np.frombuffer(piece[:count], np.uint8) == ord("\n")))
                offset -= count
        finally:
            stream.close()
        return number


def check_compression(method: str, compression_type: Any) -> str:
    """Return the compression as "AUTO", "", "GZIP", "ZLIB" or "ZSTD".

    Raises:
        ArgumentError: If it is another one.
    """
    compression = compression_type or ""
    if compression not in ("AUTO", "", *_COMPRESSIONS):
        raise ArgumentError(
            f'{method}: compression_type must be "AUTO", None, "GZIP", "ZLIB" or "ZSTD". Received: {compression_type!r}.'
        )
    return compression
