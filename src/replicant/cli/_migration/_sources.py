"""Reads the Python code of a script, a notebook or a Markdown page, and puts it back."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import CommandError

_FENCE = re.compile(r"^(```(?:python|py)[^\n]*\n)(.*?)(^```[ \t]*$)", re.DOTALL | re.MULTILINE)
_MAGIC = re.compile(r"^(\s*)([%!].*)$", re.MULTILINE)
_HIDDEN = re.compile(r"^(\s*)pass  # replicant-magic (.*)$", re.MULTILINE)
_CELL = "__replicant_cell__"


@dataclass
class Source:
    """A file and its cells. A script is one cell."""

    path: Path
    text: str
    cells: list[str]

    def joined(self) -> str:
        """Join all cells into one module. IPython's commands are hidden from Python."""
        if self.path.suffix == ".py":
            return self.text
        texts = [_MAGIC.sub(r"\1pass  # replicant-magic \2", cell) for cell in self.cells]
        return f"\n{_CELL}\n".join(text.rstrip("\n") for text in texts) + "\n"

    def with_code(self, joined: str) -> str:
        """The text of the file with new code in its cells."""
        if self.path.suffix == ".py":
            return joined
        cells = [part.rstrip("\n") + "\n" for part in joined.split(f"\n{_CELL}\n")]
        cells = [_HIDDEN.sub(r"\1\2", cell) for cell in cells]
        if self.path.suffix == ".ipynb":
            return _notebook_with(self.text, cells)
        rest = iter(cells)
        return _FENCE.sub(lambda match: match[1] + next(rest) + match[3], self.text)

    def place(self, line: int) -> str:
        """The place of a line of the joined code in the file, such as "12" or "cell 3, line 2"."""
        if self.path.suffix == ".py":
            return str(line)
        for number, cell in enumerate(self.cells, 1):
            length = len(cell.rstrip("\n").split("\n"))
            if line <= length:
                return f"cell {number}, line {line}"
            line -= length + 1
        return f"line {line}"


def read(path: Path) -> Source:
    """Read a script (.py), a notebook (.ipynb) or the Python blocks of a page (.md).

    Raises:
        CommandError: If the file cannot be read, or is of another kind.
    """
    try:
        with path.open(encoding="utf-8", newline="" if path.suffix == ".py" else None) as file:  # a script keeps its line ends
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}.") from error
    if path.suffix == ".ipynb":
        try:
            cells = ["".join(cell["source"]) for cell in _code_cells(json.loads(text))]
        except (ValueError, KeyError, TypeError) as error:
            raise CommandError(f"{path} is not a valid notebook: {error!r}.") from error
    elif path.suffix == ".md":
        cells = [match[2] for match in _FENCE.finditer(text)]
    elif path.suffix == ".py":
        cells = [text]
    else:
        raise CommandError(f"{path} must be a script (.py), a notebook (.ipynb), or a page with Python blocks (.md).")
    return Source(path, text, cells)


def _code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _notebook_with(text: str, cells: list[str]) -> str:
    notebook = json.loads(text)
    for cell, code in zip(_code_cells(notebook), cells, strict=True):
        cell["source"] = code.rstrip("\n").splitlines(keepends=True)
        cell["outputs"], cell["execution_count"] = [], None  # they belong to the old program
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
