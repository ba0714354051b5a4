"""What an object holds is said where it is made: no method sets an attribute that `__init__` or the class body does not name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import replicant

SOURCE = Path(replicant.__file__).parent

# Other libraries call what begins them: Keras its callbacks and layers, numba its libraries, `ast` its visitors.
BEGUN_BY_LIBRARIES = {"BackupAndRestore", "IndexLookup", "Library", "Rewriter", "TerminateOnNaN", "TextVectorization"}

# They get what they hold when they are opened.
OPENED_LATER = {"Agent", "RayTransport"}


def classes(texts: list[str]) -> Iterator[ast.ClassDef]:
    for text in texts:
        yield from (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))


def set_in(method: ast.FunctionDef) -> set[str]:
    """The attributes that a method sets on its first argument."""
    first = next(iter([*method.args.posonlyargs, *method.args.args]), None)
    found = (node for node in ast.walk(method) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return {each.attr for each in found if first and isinstance(each.value, ast.Name) and each.value.id == first.arg}


def of_class(method: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id in ("classmethod", "staticmethod") for each in method.decorator_list)


def methods(kind: ast.ClassDef) -> list[ast.FunctionDef]:
    return [each for each in kind.body if isinstance(each, ast.FunctionDef)]


def named(kind: ast.ClassDef) -> set[str]:
    """What the body of a class names, `__slots__`, and what `__init__` sets."""
    names = {each.name for each in methods(kind)}
    for each in kind.body:
        targets = each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AnnAssign) else []
        names |= {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        if isinstance(each, ast.Assign) and "__slots__" in names:
            names |= {node.value for node in ast.walk(each.value) if isinstance(node, ast.Constant)}
    return names.union(*(set_in(each) for each in methods(kind) if each.name == "__init__"))


def late(texts: list[str]) -> dict[str, list[str]]:
    """The attributes that methods set first, by the name of the class. Base classes are found by their names."""
    by_name: dict[str, list[ast.ClassDef]] = {}
    for kind in classes(texts):
        by_name.setdefault(kind.name, []).append(kind)

    def known(kind: ast.ClassDef) -> set[str]:
        bases = [node.id for base in kind.bases for node in ast.walk(base) if isinstance(node, ast.Name)]
        return named(kind).union(*(known(each) for base in bases if base != kind.name for each in by_name.get(base, ())))

    found = {}
    for name, kinds in by_name.items():
        sets = [set().union(*(set_in(each) for each in methods(kind) if not of_class(each))) - known(kind) for kind in kinds]
        if attributes := set().union(*sets):
            found[name] = sorted(attributes)
    return found


def test_every_attribute_is_named_where_an_object_is_made():
    found = late([path.read_text() for path in sorted(SOURCE.rglob("*.py"))])
    assert {name: attributes for name, attributes in found.items() if name not in BEGUN_BY_LIBRARIES | OPENED_LATER} == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class A:\n def __init__(self):\n  self.x = 1\n def f(self):\n  self.x = 2", {}),
        ("class A:\n x: int\n y = 0\n def f(self):\n  self.x, self.y = 1, 2", {}),
        ("class A:\n __slots__ = ('x',)\n def f(self):\n  self.x = 1", {}),
        ("class B:\n def __init__(self):\n  self.x = 1\nclass A(B):\n def f(self):\n  self.x = 2", {}),
        ("class A:\n def f(self):\n  self.x = 1\n def g(self):\n  self.y += 1", {"A": ["x", "y"]}),
        ("class A:\n def f(self):\n  for self.x in ():\n   a, (self.y, *self.z) = 1", {"A": ["x", "y", "z"]}),
        ("class A:\n def f(me):\n  with a as me.x:\n   me.y: int = 1", {"A": ["x", "y"]}),
    ],
)
def test_what_counts_as_named(text, expected):
    assert late([text]) == expected
