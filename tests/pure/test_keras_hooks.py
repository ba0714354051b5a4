"""All that Replicant wraps or reads inside of Keras stands in one table; nothing is done beside it."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import keras

import replicant
from replicant.keras import _hooks

SOURCE = Path(replicant.__file__).parent
KERAS = Path(keras.__file__).parent / "src"
PRIVATE = re.compile(r"_[a-z]\w*")

# Attributes of single objects are set by a name that is computed; here of which.
ON_OBJECTS = {("coordinator/keras/_rule.py", "optimizer"), ("keras/loops/_fit.py", "model")}
SETTERS = ("setattr", "delattr", "object.__setattr__", "type.__setattr__")


@functools.cache
def users_of_keras() -> tuple[tuple[str, ast.Module], ...]:
    """The files of Replicant that are about Keras, or import it or what extends it."""
    return tuple(_users_of_keras())


def _users_of_keras() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        imported = {part for name in imports(tree) for part in name.split(".")}
        if "keras" in path.parent.relative_to(SOURCE).parts or imported & {"keras", "_internals"}:
            yield path.relative_to(SOURCE).as_posix(), tree


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)


def names_in_table() -> set[str]:
    return {name for names in _hooks.PRIVATE.values() for name in names} | {hook.name for hook in _hooks.HOOKS}


def private_names_of_keras() -> set[str]:
    """Attributes and methods that Keras keeps for itself, and those that it replaced or removed since: the table has them."""
    texts = [path.read_text() for path in KERAS.rglob("*.py") if not path.name.endswith("_test.py")]
    return set(re.findall(r"(?:\.|def )(_[a-z]\w*)", "\n".join(texts))) | names_in_table()


def private_names_used(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names, and where; but not a class's own attributes."""
    own = {id(node) for each in ast.walk(tree) if isinstance(each, ast.ClassDef) for node in own_attributes(each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr) and id(node) not in own:
            yield node.attr, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PRIVATE.fullmatch(node.value):
            yield node.value, ast.unparse(node)


def own_attributes(kind: ast.ClassDef) -> Iterator[ast.Attribute]:
    """What a class says of ``self._name``, where it makes that itself."""
    attributes = [node for node in ast.walk(kind) if isinstance(node, ast.Attribute)]
    of_self = [node for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "self"]
    made = {node.attr for node in of_self if isinstance(node.ctx, ast.Store)}
    made |= {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}
    yield from (node for node in of_self if node.attr in made)


def test_the_private_names_of_keras_that_are_used_are_those_in_the_table():
    known = private_names_of_keras()
    table, used = names_in_table(), set()
    missing = []
    for file, tree in users_of_keras():
        if file == "keras/_hooks.py":
            continue
        for name, where in private_names_used(tree):
            used.add(name)
            if name in known and name not in table:
                missing.append((file, where))
    assert missing == []
    assert {name for names in _hooks.PRIVATE.values() for name in names} - used == set()


def test_a_private_name_that_is_not_in_the_table_is_found():
    body = "self._x = model._undeclared; return self._x, self._model, vars(model)['_y']"
    tree = ast.parse(f"class A:\n    def f(self, model): {body}")
    assert {name for name, _ in private_names_used(tree)} == {"_undeclared", "_model", "_y"}


def test_nothing_beside_the_table_changes_classes_or_modules_of_keras():
    changes = set()
    for file, tree in users_of_keras():
        keras_names = set(names_of_keras(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in SETTERS:
                changes.add((file, ast.unparse(node.args[0])))
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                text = ast.unparse(node)
                changes |= {(file, text) for name in keras_names if text.startswith(f"{name}.")}
    assert changes == ON_OBJECTS | {("keras/_hooks.py", "self.owner")}


def names_of_keras(tree: ast.Module) -> Iterator[str]:
    """What a file calls Keras and what it imports from there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            for alias in node.names:
                if alias.name in ("keras", "_internals") or module.split(".")[0] == "keras" or module.endswith("_internals"):
                    yield alias.asname or alias.name


def test_every_row_names_another_method_once():
    rows = [(hook.owner, hook.name) for hook in _hooks.HOOKS]
    assert len(set(rows)) == len(rows)
