"""Finds out whether a condition in traced code may be an array, which Python's ``if`` cannot take."""

from collections.abc import Callable

import libcst as cst
import libcst.matchers as m

from .tables._rewrite import code

# What these functions of TensorFlow return is known while a function is traced.
_STATIC = {"shape", "rank", "size", "range", "executing_eagerly", "is_tensor"}
_REDUCING_METHODS = {"all", "any", "item", "max", "mean", "min", "sum"}


class Arrays:
    """Tells which expressions of a traced function may be arrays, by what the text says.

    Args:
        function: The function.
        name_of: Returns the name in TensorFlow that an expression stands for, without "tensorflow.", or None.

    `parameters` are the function's, and `assigned` the names that it assigns, each with the place.
    """

    def __init__(self, function: cst.FunctionDef, name_of: Callable[[cst.CSTNode], str | None]) -> None:
        self._name_of = name_of
        parameters = [p for p in function.params.params if p.default is None and p.name.value not in ("self", "cls", "training")]
        self._parameters = {p.name.value for p in parameters}
        self.parameters = {cst.ensure_type(p, cst.Param).name.value for p in m.findall(function.params, m.Param())}
        self.assigned: list[tuple[str, cst.BaseExpression]] = []  # names, and where they get a value
        self._computed: set[str] = set()
        for node in m.findall(function.body, m.Assign()):
            assign = cst.ensure_type(node, cst.Assign)
            self.assigned += [(each.target.value, each.target) for each in assign.targets if isinstance(each.target, cst.Name)]
            if self._computes(assign.value):
                self._computed |= {code(name) for target in assign.targets for name in m.findall(target, m.Name())}

    def _computes(self, value: cst.BaseExpression) -> bool:
        return any(self._is_operation(node) for node in m.findall(value, m.Call()))

    def _is_operation(self, node: cst.CSTNode) -> bool:
        name = self._name_of(node.func) if isinstance(node, cst.Call) else None
        if name is None or name in _STATIC:
            return False
        module, dot, _ = name.partition(".")
        return module in ("math", "nn", "linalg", "random", "keras") if dot else name[:1].islower()

    def may_be(self, test: cst.BaseExpression) -> bool:
        """Whether a condition may be an array."""
        if isinstance(test, cst.BooleanOperation):
            return self.may_be(test.left) or self.may_be(test.right)
        if isinstance(test, cst.UnaryOperation):
            return self.may_be(test.expression)
        if isinstance(test, cst.Comparison):
            sides = [test.left, *(target.comparator for target in test.comparisons)]
            if any(isinstance(t.operator, cst.Is | cst.IsNot | cst.In | cst.NotIn) for t in test.comparisons):
                return False
            return not any(_is_text(side) for side in sides) and any(self.has_value(side) for side in sides)
        if isinstance(test, cst.Name):  # a parameter alone is mostly a flag, or a list that may be empty
            return test.value in self._computed
        return isinstance(test, cst.Call | cst.Subscript | cst.BinaryOperation) and self._truth(test)

    def _truth(self, test: cst.Call | cst.Subscript | cst.BinaryOperation) -> bool:
        if isinstance(test, cst.Call):
            method = test.func if isinstance(test.func, cst.Attribute) else None
            reduces = method is not None and method.attr.value in _REDUCING_METHODS and self.has_value(method.value)
            return reduces or self._is_operation(test)
        return self.has_value(test)

    def has_value(self, node: cst.BaseExpression) -> bool:
        """Whether an expression that is compared or counted with may be an array."""
        if isinstance(node, cst.Name):
            return node.value in self._computed or node.value in self._parameters
        if isinstance(node, cst.BinaryOperation):
            return self.has_value(node.left) or self.has_value(node.right)
        if isinstance(node, cst.UnaryOperation):
            return self.has_value(node.expression)
        if isinstance(node, cst.Comparison):
            return self.may_be(node)
        if isinstance(node, cst.Subscript):
            return self.has_value(node.value)
        return isinstance(node, cst.Call) and self._truth(node)


def _is_text(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString | cst.FormattedString) or code(node) in ("None", "True", "False")
