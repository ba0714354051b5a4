"""Reads the Python code of a script, a notebook or a Markdown page, and puts it back."""

import io
import json
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import CommandError
from ._cells import Cell, read_cell

SUFFIXES = (".py", ".ipynb", ".md")
_FENCE = re.compile(r"^(```(?:python|py)[^\n]*\n)(.*?)(^```[ \t]*\r?$)", re.DOTALL | re.MULTILINE)
_CELL = "__replicant_cell__"


@dataclass
class Source:
    """A file and its cells. A script is one cell."""

    path: Path
    text: str
    cells: list[Cell]
    encoding: str = "utf-8"

    @property
    def _mark(self) -> str:
        mark = _CELL
        while mark in self.text:
            mark += "_"
        return f"\n{mark}\n"

    def joined(self) -> str:
        """Join all cells into one module."""
        if self.path.suffix == ".py":
            return self.text
        return self._mark.join(cell.joined for cell in self.cells) + "\n"

    def split(self, joined: str) -> list[str]:
        """The code of each cell, of a module as `joined` returns it."""
        return joined.split(self._mark) if self.cells else []

    def first_line(self, number: int) -> int:
        """The line of the joined code where a cell begins, from 1."""
        return 1 + sum(len(cell.joined.split("\n")) + 1 for cell in self.cells[:number])

    def with_code(self, cells: list[str]) -> str:
        """The text of the file with new code in its cells."""
        if self.path.suffix == ".py":
            return cells[0]
        new = [cell.restored(code) for cell, code in zip(self.cells, cells, strict=True)]
        if new == [cell.text for cell in self.cells]:
            return self.text
        if self.path.suffix == ".ipynb":
            return _notebook_with(self.text, new)
        rest = iter(new)
        return _FENCE.sub(lambda match: match[1] + next(rest) + match[3], self.text)

    def place(self, line: int) -> str:
        """The place of a line of the joined code in the file, such as "12" or "cell 3, line 2"."""
        if self.path.suffix == ".py":
            return str(line)
        for number, cell in enumerate(self.cells, 1):
            length = len(cell.joined.split("\n"))
            if line <= length:
                return f"cell {number}, line {line}"
            line -= length + 1
        return f"line {line}"


def read(path: Path) -> Source:
    """Read a script (.py), a notebook (.ipynb) or the Python blocks of a page (.md).

    Raises:
        CommandError: If the file cannot be read, or is of another kind.
    """
    if path.suffix not in SUFFIXES:
        raise CommandError(f"{path} must be a script (.py), a notebook (.ipynb), or a page with Python blocks (.md).")
    try:
        data = path.read_bytes()
        encoding = _encoding(data, path.suffix)
        text = data.decode(encoding)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}.") from error
    if path.suffix == ".py":
        return Source(path, text, [Cell(text, text)], encoding)
    if path.suffix == ".md":
        return Source(path, text, [read_cell(match[2]) for match in _FENCE.finditer(text)], encoding)
    try:
        cells = [read_cell("".join(cell["source"])) for cell in _code_cells(json.loads(text))]
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"{path} is not a valid notebook: {error!r}. If it is an old one: jupyter nbconvert --to notebook {path}"
        ) from error
    return Source(path, text, cells, encoding)


def _encoding(data: bytes, suffix: str) -> str:
    """The encoding of a file, which a script may name in its first lines."""
    if suffix != ".py":
        return "utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8"
    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError:
        return "utf-8"


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
    new += "\n" if text.endswith("\n") else ""
    return new.replace("\n", "\r\n") if "\r\n" in text else new
