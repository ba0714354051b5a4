"""Translates a file."""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import libcst as cst

from ...errors import CommandError
from .._escaped import escaped
from ._findings import Finding
from ._imports import fix_imports
from ._rewriter import rewrite
from .sources._sources import Source, read


@dataclass(frozen=True)
class Migration:
    """The translation of a file.

    Attributes:
        source: The file as it is.
        text: The translated text.
        cells: The translated text of each cell.
        findings: What the user has to look at, in the order of lines.
    """

    source: Source
    text: str
    cells: list[str]
    findings: list[Finding]

    def diff(self) -> str:
        """The changes in the form of ``diff -u``. Those of a notebook are those of its cells."""
        if self.text == self.source.text:
            return ""
        name = escaped(self.source.path).replace("\n", "\\n")
        if self.source.path.suffix == ".ipynb":
            old, new = _lines_of(cell.text for cell in self.source.cells), _lines_of(self.cells)
        else:
            old, new = self.source.text.splitlines(keepends=True), self.text.splitlines(keepends=True)
        return "".join(_diff(old, new, name, f"{name} (Replicant)"))

    def data(self) -> bytes:
        """The bytes of the translated file."""
        return self.text.encode(self.source.encoding)


def _lines_of(cells: Iterable[str]) -> list[str]:
    return [line for number, cell in enumerate(cells, 1) for line in (f"# cell {number}\n", *f"{cell.rstrip()}\n".splitlines(True))]


def _diff(old: list[str], new: list[str], old_name: str, new_name: str) -> Iterator[str]:
    """Like difflib.unified_diff, which however never matches lines that occur often, such as empty lines."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    heads = [f"--- {old_name}\n", f"+++ {new_name}\n"]
    for group in matcher.get_grouped_opcodes(3):
        yield from heads
        heads = []
        (_, a, _, c, _), (_, _, b, _, d) = group[0], group[-1]
        yield f"@@ -{_lines(a, b)} +{_lines(c, d)} @@\n"
        for tag, i, j, k, m in group:
            if tag == "equal":
                yield from (" " + line for line in old[i:j])
                continue
            yield from ("-" + line for line in old[i:j])
            yield from ("+" + line for line in new[k:m])


def _lines(first: int, end: int) -> str:
    """The range of lines in the header of a diff."""
    if end - first == 1:
        return str(first + 1)
    return f"{first + (end > first)},{end - first}"


def migrate(path: Path) -> Migration:
    """Translate a file without changing it.

    Raises:
        CommandError: If the file cannot be read, or is not valid Python.
    """
    source = read(path)
    joined = source.joined()
    try:
        code, findings = _translate(joined)
    except cst.ParserSyntaxError as error:
        raise CommandError(f"{path} is not valid Python, at {source.place(error.raw_line)}: {error.message}") from error
    cells = source.split(code)
    for number, (cell, first) in enumerate(zip(source.cells, source.first_lines, strict=True)):
        if cell.note:
            findings.append(Finding(first, "left", cell.text.strip().partition("\n")[0], cell.note))
        if cell.own and cell.code is not None:
            cells[number], own = _translate(cell.code)
            findings += [replace(finding, line=finding.line + first - 1) for finding in own]
    new = [cell.restored(code) for cell, code in zip(source.cells, cells, strict=True)]
    return Migration(source, source.with_code(cells), new, sorted(set(findings)))


def _translate(code: str) -> tuple[str, list[Finding]]:
    """The translation of one program, and what the user has to look at."""
    module, rewriter = rewrite(code)
    module, left = fix_imports(module, rewriter.modules, rewriter.kept, rewriter.translated, rewriter.definitions)
    return module.code, [*rewriter.findings, *(_at_line(finding, code) for finding in left)]


def _at_line(finding: Finding, text: str) -> Finding:
    start = finding.construct.partition(" import ")[0] + " import "
    line = next((i for i, line in enumerate(text.splitlines(), 1) if line.strip().startswith(start)), 1)
    return Finding(line, finding.kind, finding.construct, finding.advice)
