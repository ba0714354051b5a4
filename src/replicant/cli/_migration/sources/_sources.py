"""Reads the Python code of a script, a notebook or a Markdown page, and puts it back."""

import bisect
import io
import json
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from ....checkpoint.format._files import open_file
from ....errors import CommandError
from ._cells import Cell, read_cell

SUFFIXES = (".py", ".ipynb", ".md")
MOST_BYTES = 256 << 20  # of a file
_OPENING = re.compile(r"^```(?:python|py)[^\n]*\n", re.MULTILINE)
_CLOSING = re.compile(r"^```[ \t]*\r?$", re.MULTILINE)
_CELL = "__replicant_cell__"
_HALVES = re.compile("[\ud800-\udfff]")  # of characters, which JSON may hold, and UTF-8 may not


@dataclass
class Source:
    """A file and its cells. A script is one cell."""

    path: Path
    text: str
    cells: list[Cell]
    encoding: str = "utf-8"

    @cached_property
    def _mark(self) -> str:
        """A line that is in no cell."""
        longest = max((len(found) for cell in self.cells for found in re.findall(f"{_CELL}_*", cell.joined)), default=0)
        return f"\n{_CELL.ljust(longest + 1, '_')}\n"

    def joined(self) -> str:
        """Join all cells into one module."""
        if self.path.suffix == ".py":
            return self.text
        return self._mark.join(cell.joined for cell in self.cells) + "\n"

    def split(self, joined: str) -> list[str]:
        """The code of each cell, of a module as `joined` returns it."""
        return joined.split(self._mark) if self.cells else []

    @cached_property
    def first_lines(self) -> list[int]:
        """The lines of the joined code where the cells begin, from 1."""
        lengths = (cell.joined.count("\n") + 2 for cell in self.cells[:-1])
        return list(accumulate(lengths, initial=1)) if self.cells else []

    def with_code(self, cells: list[str]) -> str:
        """The text of the file with new code in its cells."""
        if self.path.suffix == ".py":
            return cells[0]
        new = [cell.restored(code) for cell, code in zip(self.cells, cells, strict=True)]
        if new == [cell.text for cell in self.cells]:
            return self.text
        if self.path.suffix == ".ipynb":
            return _notebook_with(self.text, new)
        end, parts = 0, []
        for (begin, after), code in zip(_blocks(self.text), new, strict=True):
            parts += [self.text[end:begin], code]
            end = after
        return "".join([*parts, self.text[end:]])

    def place(self, line: int) -> str:
        """The place of a line of the joined code in the file, such as "12" or "cell 3, line 2"."""
        if self.path.suffix == ".py":
            return str(line)
        number = bisect.bisect_right(self.first_lines, line)
        if not number:
            return f"line {line}"
        return f"cell {number}, line {line - self.first_lines[number - 1] + 1}"


def read(path: Path) -> Source:
    """Read a script (.py), a notebook (.ipynb) or the Python blocks of a page (.md).

    Raises:
        CommandError: If the file cannot be read, or is of another kind.
    """
    if path.suffix not in SUFFIXES:
        raise CommandError(f"{path} must be a script (.py), a notebook (.ipynb), or a page with Python blocks (.md).")
    try:
        with open_file(path) as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise CommandError(f"{path} has more than {MOST_BYTES >> 20} MiB, which is the most that is read. Divide it.")
        encoding = _encoding(data, path.suffix)
        text = data.decode(encoding)
    except (OSError, LookupError, SyntaxError, UnicodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}.") from error
    if path.suffix == ".py":
        return Source(path, text, [Cell(text, text)], encoding)
    if path.suffix == ".md":
        return Source(path, text, [read_cell(text[begin:end]) for begin, end in _blocks(text)], encoding)
    try:
        cells = [read_cell("".join(cell["source"])) for cell in _code_cells(json.loads(text))]
    except (ValueError, KeyError, TypeError) as error:
        remedy = f" If it is an old one: jupyter nbconvert --to notebook {path}" if isinstance(error, KeyError) else ""
        raise CommandError(f"{path} is not a valid notebook: {error!r}.{remedy}") from error
    return Source(path, text, cells, encoding)


def _encoding(data: bytes, suffix: str) -> str:
    """The encoding of a file, which a script may name in its first lines.

    Raises:
        SyntaxError: If there is no such encoding.
        UnicodeError: If a script names none, and is not in UTF-8.
    """
    if suffix != ".py":
        return "utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8"
    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError:
        data.decode("utf-8")  # says where it is not
        raise


def _blocks(page: str) -> Iterator[tuple[int, int]]:
    """Where the code of a page's Python blocks begins and ends."""
    end = 0
    while (opening := _OPENING.search(page, end)) and (closing := _CLOSING.search(page, opening.end())):
        yield opening.end(), closing.start()
        end = closing.end()


def _code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _notebook_with(text: str, cells: list[str]) -> str:
    """A notebook with new code, in the style of JSON in which it was written."""
    notebook = json.loads(text)
    for cell, code in zip(_code_cells(notebook), cells, strict=True):
        if code != "".join(cell["source"]):
            cell["source"] = code if isinstance(cell["source"], str) else code.splitlines(keepends=True)
        cell["outputs"], cell["execution_count"] = [], None  # they belong to the old program
    indent = re.match(r"\s*\{\r?\n([ \t]+)", text)
    tight = None if indent or re.search(r'"\s*: ', text) else (",", ":")
    new = json.dumps(notebook, indent=indent[1] if indent else None, separators=tight, ensure_ascii=text.isascii())
    new = _HALVES.sub(lambda found: f"\\u{ord(found[0]):04x}", new)
    new += "\n" if text.endswith("\n") else ""
    return new.replace("\n", "\r\n") if "\r\n" in text else new
