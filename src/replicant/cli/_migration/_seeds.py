"""Random numbers in traced code: they need a seed generator that was made outside."""

from collections.abc import Collection, Sequence
from typing import TypeVar

import libcst as cst
import libcst.matchers as m

from ._rewrite import code
from ._scan import TRACED_METHODS

_NAME = "seed_generator"
_NEW = "keras.random.SeedGenerator()"
_CALLS_INIT = m.Call(func=m.Attribute(value=m.Call(func=m.Name("super")), attr=m.Name("__init__")))
_INIT = """\
def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self.{} = {}
"""
_Definition = TypeVar("_Definition", cst.FunctionDef, cst.ClassDef)
_Left = _Definition | cst.FlattenSentinel[cst.BaseStatement]


class Seeds:
    """Follows the walk through a program, and makes a seed generator before the code that needs one.

    A layer or model of Keras gets one as an attribute, since ``fit`` only knows the state of the model.

    Args:
        traced: The names of the functions whose code is traced.
        bound: The names that the program uses already.
    """

    def __init__(self, traced: set[str], bound: Collection[str]) -> None:
        self.name = _NAME if _NAME not in bound else f"replicant_{_NAME}"
        self._traced = traced
        self._stack: list[cst.CSTNode] = []
        self._before: set[cst.CSTNode] = set()  # the definitions that a generator is made before
        self._inside: set[cst.CSTNode] = set()  # the classes whose objects get one
        self._have: set[cst.CSTNode] = set()  # the functions, or the module, that have a generator

    def start(self, module: cst.Module) -> None:
        """Begin with a module."""
        self._stack = [module]

    def enter(self, node: cst.FunctionDef | cst.ClassDef | cst.Lambda) -> None:
        """Begin with the body of a definition."""
        self._stack.append(node)

    @property
    def is_traced(self) -> bool:
        """Whether the code at hand is traced."""
        return self._first_traced() is not None

    def _first_traced(self) -> int | None:
        for i, node in enumerate(self._stack):
            if isinstance(node, cst.FunctionDef) and node.name.value in self._traced:
                return i
        return None

    def request(self) -> str:
        """Have a generator made for the code at hand. Returns its name, or "" if there is no place for it."""
        place = self._first_traced()
        if place is None:
            return ""
        function, owner = self._stack[place], self._stack[place - 1]
        if isinstance(owner, cst.ClassDef) and isinstance(function, cst.FunctionDef) and _is_keras(owner):
            first = [p.name.value for p in function.params.params[:1]]
            if (first and not function.decorators) or first == ["self"]:
                self._inside.add(owner)
                return f"{first[0]}.{self.name}"
        while place > 1 and isinstance(self._stack[place - 1], cst.ClassDef):
            place -= 1
        if not self._have & set(self._stack[:place]):
            self._have.add(self._stack[place - 1])
            self._before.add(self._stack[place])
        return self.name

    def leave_function(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> _Left[cst.FunctionDef]:
        """End a function, with a generator before it if its code needs one."""
        self._stack.pop()
        return cst.FlattenSentinel(self._with_generator(updated)) if original in self._before else updated

    def leave_class(self, original: cst.ClassDef, updated: cst.ClassDef) -> _Left[cst.ClassDef]:
        """End a class, with a generator in its objects or before it if its code needs one."""
        self._stack.pop()
        if original in self._inside:
            updated = updated.with_changes(body=updated.body.with_changes(body=self._with_attribute(updated.body.body)))
        return cst.FlattenSentinel(self._with_generator(updated)) if original in self._before else updated

    def _with_generator(self, definition: cst.FunctionDef | cst.ClassDef) -> list[cst.BaseStatement]:
        line = cst.ensure_type(cst.parse_statement(f"{self.name} = {_NEW}"), cst.SimpleStatementLine)
        gap = [cst.EmptyLine(indent=False)] * (2 if len(self._stack) == 1 else 1)
        return [line.with_changes(leading_lines=definition.leading_lines), definition.with_changes(leading_lines=gap)]

    def _with_attribute(self, body: Sequence[cst.CSTNode]) -> list[cst.CSTNode]:
        """The body of a class whose ``__init__`` makes a generator."""
        new = list(body)
        for i, node in enumerate(new):
            if isinstance(node, cst.FunctionDef) and node.name.value == "__init__" and isinstance(node.body, cst.IndentedBlock):
                owner, statements = code(node.params.params[0].name), list(node.body.body)
                place = next(
                    (k + 1 for k, statement in enumerate(statements) if m.findall(statement, _CALLS_INIT)), len(statements)
                )
                statements.insert(place, cst.parse_statement(f"{owner}.{self.name} = {_NEW}"))
                new[i] = node.with_changes(body=node.body.with_changes(body=statements))
                return new
        is_text = bool(new) and m.matches(new[0], m.SimpleStatementLine(body=[m.Expr(m.SimpleString())]))
        init = cst.parse_statement(_INIT.format(self.name, _NEW))
        following = new[is_text:]
        if following and isinstance(following[0], cst.FunctionDef) and not following[0].leading_lines:
            following[0] = following[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        return [*new[:is_text], init, *following]

    def leave_lambda(self) -> None:
        """End a lambda."""
        self._stack.pop()


def _is_keras(node: cst.ClassDef) -> bool:
    """Whether a class is a layer or a model of Keras, as far as the text says so."""
    bases = [code(base.value) for base in node.bases]
    methods = {part.name.value for part in node.body.body if isinstance(part, cst.FunctionDef)}
    return any("keras" in base or base.endswith(("Layer", "Model", "Sequential")) for base in bases) or bool(
        bases and methods & TRACED_METHODS
    )
