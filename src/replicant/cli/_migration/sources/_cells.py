"""The code in the cells of a notebook. Commands of IPython are hidden from Python, and cells of other languages are kept."""

import re
from dataclasses import dataclass

import libcst as cst

_PYTHON_MAGICS = {"capture", "memit", "prun", "time", "timeit"}  # the rest of the cell is Python
_WRITES = re.compile(r"%%(?:writefile|file)\s+(?:-a\s+)?\S+\.py\s*$")
_ASSIGNED = re.compile(r"[\w.,\s\[\]]+=\s*[%!]")
_HIDDEN = re.compile(r"^[ \t]*pass  # replicant-magic (.*)$", re.MULTILINE)
_SPEAKS_OF_TENSORFLOW = re.compile(r"\b(tensorflow|tf\.|keras)\b")


@dataclass(frozen=True)
class Cell:
    """The code of one cell.

    Attributes:
        text: The code as it is in the file.
        code: The Python in it, with a line for each line of the text, or None if the cell is kept as it is.
        own: Whether the code is a program of its own, which ``%%writefile`` writes.
        indent: What all lines begin with, which is not in `code`.
        note: What to say about a cell that is kept.
    """

    text: str
    code: str | None
    own: bool = False
    indent: str = ""
    note: str = ""

    @property
    def joined(self) -> str:
        """The code as a part of the whole program, with comments in place of what is none of it."""
        code = None if self.own else self.code
        return code.rstrip("\n") if code is not None else "\n".join("#" for _ in self.text.rstrip("\n").split("\n"))

    def restored(self, code: str) -> str:
        """The text of the cell with new code in it."""
        if self.code is None or code.rstrip("\n") == self.code.rstrip("\n"):
            return self.text
        text = _HIDDEN.sub(r"\1", code.rstrip("\n"))
        if self.own:
            text = self.text.partition("\n")[0] + "\n" + text.partition("\n")[2]
        if self.indent:
            text = "\n".join(self.indent + line if line.strip() else line for line in text.split("\n"))
        return text + self.text[len(self.text.rstrip("\n")) :]


def read_cell(text: str) -> Cell:
    """Find the Python in a cell."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    magic = re.match(r"%%(\w*)", first.lstrip())
    if magic and _WRITES.match(first):
        code = "#" + text[text.index(first) + 1 :].partition("\n")[0] + "\n" + text[text.index(first) :].partition("\n")[2]
        code = "\n" * text[: text.index(first)].count("\n") + code
        problem = _problem(code)
        return Cell(text, None if problem else code, own=True, note=_note(problem))
    if magic and magic[1] not in _PYTHON_MAGICS:
        return Cell(text, None, note=_note(f"it is a cell of {first.strip()}") if _SPEAKS_OF_TENSORFLOW.search(text) else "")
    problem = _problem(text)
    if not problem:
        return Cell(text, text)
    indent = first[: len(first) - len(first.lstrip())]
    if indent and all(line.startswith(indent) for line in text.split("\n") if line.strip()):  # IPython runs such a cell, too
        code = _with_hidden_commands("\n".join(line.removeprefix(indent) for line in text.split("\n")))
    else:
        indent, code = "", _with_hidden_commands(text)
    return Cell(text, code, indent=indent) if not _problem(code) else Cell(text, None, note=_note(problem))


def _note(problem: str) -> str:
    return f"this cell was kept as it is ({problem}): translate by hand what it uses of TensorFlow" if problem else ""


def _problem(code: str) -> str:
    """Why some code is not Python, or ""."""
    try:
        cst.parse_module(code)
    except cst.ParserSyntaxError as error:
        return f"not valid Python in line {error.raw_line}"
    except UnicodeEncodeError:
        return "it has half of a character, from \\ud800 to \\udfff"
    return ""


def _with_hidden_commands(text: str) -> str:
    """Python code in which ``pass`` stands for each line with a command of IPython."""
    lines: list[str] = []
    state = _State()
    command = ""  # the indentation of a command that goes on in the next line
    goes_on = False
    for line in text.split("\n"):
        begins = state.between_statements and _is_command(line)
        if goes_on or begins:
            command = line[: len(line) - len(line.lstrip())] if begins and not goes_on else command
            lines.append(f"{command}pass  # replicant-magic {line}")
            goes_on = line.rstrip().endswith("\\")
        else:
            lines.append(line)
            state.read(line)
    return "\n".join(lines)


def _is_command(line: str) -> bool:
    text = line.strip()
    if text.startswith(("%", "!", "?")) or _ASSIGNED.match(text):
        return True
    return text.endswith("?") and "#" not in text


class _State:
    """What is open at the end of a line: brackets, or a string over several lines."""

    def __init__(self) -> None:
        self._depth = 0
        self._quotes = ""
        self._goes_on = False

    @property
    def between_statements(self) -> bool:
        return not (self._depth or self._quotes or self._goes_on)

    def read(self, line: str) -> None:
        """Read one line of Python."""
        i = 0
        while i < len(line):
            if self._quotes:
                i = self._end_of_string(line, i)
            elif line[i] == "#":
                break
            elif line[i] in "\"'":
                self._quotes = line[i] * 3 if line.startswith(line[i] * 3, i) else line[i]
                i += len(self._quotes)
            else:
                self._depth = max(0, self._depth + (line[i] in "([{") - (line[i] in ")]}"))
                i += 1
        self._goes_on = line.endswith("\\")
        if len(self._quotes) == 1 and not self._goes_on:
            self._quotes = ""

    def _end_of_string(self, line: str, start: int) -> int:
        i = start
        while i < len(line):
            if line[i] == "\\":
                i += 2
            elif line.startswith(self._quotes, i):
                i += len(self._quotes)
                self._quotes = ""
                return i
            else:
                i += 1
        return i
