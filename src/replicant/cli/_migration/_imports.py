"""Fixes the imports of a translated module."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import libcst as cst
import libcst.matchers as m

from ._findings import Finding
from .tables import _names
from .tables._advice import advice_for
from .tables._definitions import DEFINITIONS, with_needs
from .tables._ops import OPS
from .tables._rewrite import code

_STATEMENTS = {
    "replicant": "import replicant  # before Keras, which then runs on JAX",
    "keras": "import keras",
    "jax": "import jax",
    "numpy": "import numpy as np",
    "glob": "import glob",
    "os": "import os",
    "pathlib": "import pathlib",
    "shutil": "import shutil",
}


class Imports(cst.CSTTransformer):
    """Removes imports of TensorFlow that are no longer used, and translates the others.

    Args:
        kept: The names that still stand for TensorFlow.
        translated: The names of TensorFlow of which something was translated.
        there: The imports that the module has already, as lines. They are not written again at its top level.
    """

    def __init__(self, kept: set[str], translated: set[str], there: Iterable[str] = ()) -> None:
        super().__init__()
        self.kept, self.translated = kept, translated
        self.findings: list[Finding] = []
        self._there = set(there)
        self._depth = 0

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        self._depth += 1

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.IndentedBlock:
        self._depth -= 1
        return updated_node

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine] | cst.RemovalSentinel:
        parts = [self._lines(part) for part in original_node.body]
        if all(lines is None for lines in parts):
            return updated_node
        new: list[cst.SimpleStatementLine] = []
        for part, lines in zip(updated_node.body, parts, strict=True):
            if lines is None:  # another statement on the same line
                new.append(cst.SimpleStatementLine([part.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]))
            else:
                new += [cst.ensure_type(cst.parse_statement(line), cst.SimpleStatementLine) for line in self._fresh(lines)]
        if not new:
            return cst.RemoveFromParent()
        new[0] = new[0].with_changes(leading_lines=updated_node.leading_lines)
        return cst.FlattenSentinel(new)

    def _fresh(self, lines: list[str]) -> list[str]:
        """The lines that the top level of the module does not have yet. In a block, all of them."""
        if self._depth:
            return lines
        fresh = [line for line in dict.fromkeys(lines) if line not in self._there]
        self._there.update(fresh)
        return fresh

    def _lines(self, statement: cst.BaseSmallStatement) -> list[str] | None:
        """The new lines for an import, or None to leave the statement as it is."""
        if isinstance(statement, cst.Import):
            return self._import(statement)
        if isinstance(statement, cst.ImportFrom) and statement.module is not None and not statement.relative:
            return self._import_from(statement)
        return None

    def _import(self, node: cst.Import) -> list[str] | None:
        """The new lines, or None to leave the import as it is."""
        if not any(_is_tensorflow(code(alias.name)) for alias in node.names):
            return None
        lines = []
        for alias in node.names:
            module, name = code(alias.name), code(alias.asname.name) if alias.asname else ""
            target = _names.target_of(module.removeprefix("tensorflow").removeprefix("."))
            if not _is_tensorflow(module) or (name or "tensorflow") in self.kept:
                lines.append(f"import {module}{f' as {name}' if name else ''}")
            elif target is not None and name:
                lines.append(f"import {target}" if target == name else f"import {target} as {name}")
        return lines

    def _import_from(self, node: cst.ImportFrom) -> list[str] | None:
        module = code(node.module) if node.module else ""
        if isinstance(node.names, cst.ImportStar) or not (_is_tensorflow(module) or self._has_own(module, node.names)):
            return None
        prefix = module.removeprefix("tensorflow").removeprefix(".").removeprefix("compat.v2")
        lines: dict[str, list[str]] = {}
        for alias in node.names:
            name = code(alias.name)
            bound = code(alias.asname.name) if alias.asname else name
            if self._is_spent(f"{prefix}.{name}".removeprefix("."), bound):
                continue
            origin, new = self._origin(f"{prefix}.{name}".removeprefix("."), module, name)
            lines.setdefault(origin, []).append(new if new == bound else f"{new} as {bound}")
        return [
            f"from {origin} import {', '.join(names)}" if origin else f"import {', '.join(names)}"
            for origin, names in lines.items()
        ]

    def _has_own(self, module: str, aliases: Sequence[cst.ImportAlias]) -> bool:
        """Whether Replicant has one of these names of Keras, which needs no TensorFlow or does more."""
        return any(_names.has_own(f"{module}.{code(alias.name)}") for alias in aliases)

    def _is_spent(self, full: str, bound: str) -> bool:
        """Whether all that an import was for has been translated."""
        no_target = full not in OPS and _names.target_of(full) is None
        return no_target and bound in self.translated and bound not in self.kept

    def _origin(self, full: str, module: str, name: str) -> tuple[str, str]:
        """The module and the name to import instead, or those of TensorFlow if there are none."""
        target = OPS[full].target if full in OPS else _names.target_of(full)
        if target is None or '"' in target or target in ("str", "None"):
            self.findings.append(Finding(0, "left", f"from {module} import {name}", advice_for(full)))
            return module, name
        origin, _, new = target.rpartition(".")
        return origin, new


def _is_tensorflow(module: str) -> bool:
    return module.partition(".")[0] == "tensorflow"


def fix_imports(
    module: cst.Module, needed: set[str], kept: set[str], translated: set[str], definitions: set[str]
) -> tuple[cst.Module, list[Finding]]:
    """The module with the imports and definitions that it needs, and the imports that could not be translated."""
    place = _place(module)
    have = {line for statement in module.body for line in _bound(statement)}
    after = module.visit(Imports(kept, translated))
    wanted = needed | ({"replicant"} if _runs_on_another_backend(module, after, needed) else set())
    missing = [name for name in _STATEMENTS if name in wanted and _STATEMENTS[name].split("  ")[0] not in have]
    new = [cst.parse_statement(_STATEMENTS[name]) for name in missing]
    if place is None:
        place = _after_docstring(module)
    body = list(module.body)
    if new and place < len(body) and isinstance(body[place], cst.SimpleStatementLine):
        moved = cst.ensure_type(body[place], cst.SimpleStatementLine)
        new[0] = cst.ensure_type(new[0], cst.SimpleStatementLine).with_changes(leading_lines=moved.leading_lines)
        body[place] = moved.with_changes(leading_lines=[])
    transformer = Imports(kept, translated, (_STATEMENTS[name].split("  ")[0] for name in missing))
    changed = module.with_changes(body=_with_definitions([*body[:place], *new, *body[place:]], place + len(new), definitions))
    return changed.visit(transformer), transformer.findings


def _runs_on_another_backend(before: cst.Module, after: cst.Module, needed: set[str]) -> bool:
    """Whether the program uses Keras, but neither Replicant, which makes Keras run on JAX, nor the setting that does."""
    roots = {_imported_root(code(node)) for node in m.findall(after, m.Import() | m.ImportFrom())}
    if "replicant" in {_imported_root(code(node)) for node in m.findall(before, m.Import() | m.ImportFrom())}:
        return False
    text = before.code
    if "tensorflow" not in text and re.search(r"""KERAS_BACKEND["']\]?\s*[=,]\s*["']""", text):
        return False  # it chooses a backend itself, and uses nothing of TensorFlow
    return "keras" in needed | roots


def _with_definitions(body: list[Any], place: int, names: set[str]) -> list[Any]:
    """The statements of a module with the definitions that it needs, after the imports that begin at a place."""
    if not names:
        return body
    while place < len(body) and _bound(body[place]):
        place += 1
    gap = [cst.EmptyLine(indent=False)] * 2
    new = [cst.parse_statement(DEFINITIONS[name]).with_changes(leading_lines=gap) for name in with_needs(names)]
    if place < len(body):
        lines = list(body[place].leading_lines)
        while lines and lines[0].comment is None:
            del lines[0]
        body[place] = body[place].with_changes(leading_lines=[*gap, *lines])
    return [*body[:place], *new, *body[place:]]


def _place(module: cst.Module) -> int | None:
    """The index of the first statement at the top level that imports TensorFlow, Keras or what belongs to them, or None."""
    for i, statement in enumerate(module.body):
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            continue
        imports = [code(node) for node in m.findall(statement, m.Import() | m.ImportFrom())]
        if any(_imported_root(line).startswith(("tensorflow", "keras", "tf_")) for line in imports):
            return i
    return None


def _imported_root(line: str) -> str:
    """The package that an import statement imports first."""
    return line.split()[1].partition(".")[0].rstrip(",")


def _bound(statement: cst.CSTNode) -> list[str]:
    """The import statements on one line, one for each module, without comments."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return []
    lines = []
    for part in statement.body:
        if isinstance(part, cst.Import):
            lines += [f"import {code(alias).rstrip(', ')}" for alias in part.names]
        if isinstance(part, cst.ImportFrom) and part.module is not None:
            lines.append(code(part))
    return lines


def _after_docstring(module: cst.Module) -> int:
    place = 0
    for statement in module.body:
        text = code(statement.with_changes(leading_lines=[])).strip()
        is_docstring = place == 0 and text[:3] in ('"""', "'''")
        if is_docstring or text.startswith(("from __future__", "__replicant_cell__", "pass  # replicant-magic")):
            place += 1
        else:
            break
    return place
