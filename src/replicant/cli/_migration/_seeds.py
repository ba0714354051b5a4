"""Random numbers in layers and models: Keras's own steps only know the seed generators that are attributes of the model."""

from collections.abc import Collection, Sequence

import libcst as cst
import libcst.matchers as m

from ._scan import TRACED_METHODS
from .tables._rewrite import code

_NAME = "seed_generator"
_NEW = "keras.random.SeedGenerator()"
_CALLS_INIT = m.Call(func=m.Attribute(value=m.Call(func=m.Name("super")), attr=m.Name("__init__")))
_INIT = """\
def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self.{} = {}
"""
# Steps in TensorFlow's form, which change the state of Keras's global generator themselves, as functions do.
_STEPS = {"train_step", "test_step", "predict_step"}


class Seeds:
    """Follows the walk through a program, and gives layers and models a seed generator if their code needs one.

    Elsewhere, `keras.random` draws new numbers at every step without one.

    Args:
        traced: The names of the functions whose code is traced.
        bound: The names that the program uses already.
    """

    def __init__(self, traced: set[str], bound: Collection[str]) -> None:
        self.name = _NAME if _NAME not in bound else f"replicant_{_NAME}"
        self._traced = traced
        self._stack: list[cst.CSTNode] = []
        self._inside: set[cst.CSTNode] = set()  # the classes whose objects get a generator

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
        """Have a generator made for the code at hand. Returns its name, or "" if the code needs none."""
        place = self._first_traced()
        if place is None:
            return ""
        function, owner = self._stack[place], self._stack[place - 1]
        if not (isinstance(owner, cst.ClassDef) and isinstance(function, cst.FunctionDef) and _is_keras(owner)):
            return ""
        first = [p.name.value for p in function.params.params[:1]]
        if function.name.value in _STEPS or not first or (function.decorators and first != ["self"]):
            return ""
        self._inside.add(owner)
        return f"{first[0]}.{self.name}"

    def leave(self) -> None:
        """End a function or a lambda."""
        self._stack.pop()

    def leave_class(self, original: cst.ClassDef, updated: cst.ClassDef) -> cst.ClassDef:
        """End a class, with a generator in its objects if its code needs one."""
        self._stack.pop()
        if original not in self._inside:
            return updated
        return updated.with_changes(body=updated.body.with_changes(body=self._with_attribute(updated.body.body)))

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


def _is_keras(node: cst.ClassDef) -> bool:
    """Whether a class is a layer or a model of Keras, as far as the text says so."""
    bases = [code(base.value) for base in node.bases]
    methods = {part.name.value for part in node.body.body if isinstance(part, cst.FunctionDef)}
    return any("keras" in base or base.endswith(("Layer", "Model", "Sequential")) for base in bases) or bool(
        bases and methods & TRACED_METHODS
    )
