"""Python's ``if`` and ``while`` over arrays, which AutoGraph rewrites, as functions of Keras, where their shape is simple."""

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from .tables._control_flow import SAME_SHAPES
from .tables._rewrite import code

BRANCH = f"this was an if over what may be an array: {SAME_SHAPES}; leave the if where the condition is no array"
LOOP = (
    "this was a while over what may be an array: shapes and dtypes must stay, and there is no gradient in JAX; leave the while "
    "where the condition is no array"
)
# What means something else in a function of its own, and conditions that Python evaluates by truth.
_NOT_MOVED = m.OneOf(m.NamedExpr(), m.Yield(), m.Await(), m.Name("super"), m.Comment())
_NO_VALUE = m.OneOf(m.SimpleString(), m.FormattedString(), m.Name("None"), m.Dict(), m.Lambda())  # what is no array
_CHANGES = m.OneOf(*map(m.Name, ("assign", "assign_add", "assign_sub", "apply_gradients", "update_state", "reset_state")))
_CHANGE = m.SimpleStatementLine(body=[m.Expr(m.Call(func=m.Attribute(attr=_CHANGES)))])
_CHAIN = m.Comparison(comparisons=[m.ComparisonTarget(), m.AtLeastN(m.ComparisonTarget(), n=1)])
_TRUTH = m.OneOf(m.BooleanOperation(), m.UnaryOperation(operator=m.Not()), _CHAIN)


def branch(node: cst.If, bound: set[str]) -> Sequence[cst.BaseStatement] | None:
    """The statements that do what an ``if`` does.

    They are None if it is not one of two values for a name, one of two results, or changes of variables alone.
    """
    if m.findall(node, _NOT_MOVED) or m.findall(node.test, _TRUTH):
        return None
    block = node.body
    if isinstance(block, cst.IndentedBlock) and all(m.matches(line, _CHANGE) for line in block.body):
        return _changes(node, block, bound)
    taken = _only(node.body)
    if isinstance(node.orelse, cst.If) or taken is None:
        return None
    other = _only(node.orelse.body) if node.orelse is not None else None
    if node.orelse is not None and other is None:
        return None
    if isinstance(taken, cst.Return) and isinstance(other, cst.Return) and taken.value and other.value:
        if m.matches(taken.value, _NO_VALUE) or m.matches(other.value, _NO_VALUE):
            return None
        return [_line(node, f"return {_cond(node, taken.value, code(other.value))}")]
    name = _assigned(taken)
    if name is None or (name not in bound if other is None else _assigned(other) != name):
        return None
    otherwise = code(cst.ensure_type(other, cst.Assign).value) if other is not None else name
    return [_line(node, f"{name} = {_cond(node, cst.ensure_type(taken, cst.Assign).value, otherwise)}")]


def _changes(node: cst.If, block: cst.IndentedBlock, bound: set[str]) -> Sequence[cst.BaseStatement] | None:
    """What changes variables, in a function of its own."""
    if node.orelse is not None or "branch_body" in bound:
        return None
    run = cst.parse_statement(f"keras.ops.cond({code(node.test)}, branch_body, lambda: None)")
    return [_define("branch_body", "", block, node.leading_lines), run]


def _define(name: str, parameters: str, block: cst.IndentedBlock, lines: Sequence[cst.EmptyLine]) -> cst.FunctionDef:
    define = cst.ensure_type(cst.parse_statement(f"def {name}({parameters}):\n    pass\n"), cst.FunctionDef)
    return define.with_changes(body=block, leading_lines=lines)


def _cond(node: cst.If, taken: cst.BaseExpression, otherwise: str) -> str:
    return f"keras.ops.cond({code(node.test)}, lambda: {code(taken)}, lambda: {otherwise})"


def loop(node: cst.While, bound: set[str]) -> Sequence[cst.BaseStatement] | None:
    """The statements that do what a ``while`` does, or None if it does more than give new values to names that are bound before."""
    block = node.body
    if node.orelse is not None or not isinstance(block, cst.IndentedBlock):
        return None
    if m.findall(node, _NOT_MOVED) or m.findall(node.test, _TRUTH):
        return None
    names: list[str] = []
    for line in block.body:
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
        name = _assigned(small) if isinstance(small, cst.Assign) else _augmented(small)
        if name is None or name not in bound or not isinstance(line, cst.SimpleStatementLine):
            return None
        names += [name] * (name not in names)
    if not names or "loop_body" in bound:
        return None
    carried = ", ".join(names)
    packed = f"({carried},)" if len(names) == 1 else f"({carried})"
    result = cst.parse_statement(f"return {packed}")
    whole = block.with_changes(body=[*block.body, result])
    run = f"{packed} = keras.ops.while_loop(lambda {carried}: {code(node.test)}, loop_body, {packed})"
    return [_define("loop_body", carried, whole, node.leading_lines), cst.parse_statement(run)]


def _only(body: cst.BaseSuite) -> cst.BaseSmallStatement | None:
    """The only statement of a block."""
    if isinstance(body, cst.SimpleStatementSuite):
        return body.body[0] if len(body.body) == 1 else None
    line = body.body[0] if len(body.body) == 1 else None
    return line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None


def _assigned(node: cst.CSTNode | None) -> str | None:
    """The name that an assignment binds, if it is one name, which may get an array."""
    if (
        isinstance(node, cst.Assign)
        and not m.matches(node.value, _NO_VALUE)
        and len(node.targets) == 1
        and isinstance(node.targets[0].target, cst.Name)
    ):
        return node.targets[0].target.value
    return None


def _augmented(node: cst.CSTNode | None) -> str | None:
    return node.target.value if isinstance(node, cst.AugAssign) and isinstance(node.target, cst.Name) else None


def _line(node: cst.If, text: str) -> cst.SimpleStatementLine:
    line = cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)
    return line.with_changes(leading_lines=node.leading_lines)
