"""Branches and loops of TensorFlow. What they assign to variables is assigned in Keras's, too."""

import libcst as cst

from ._rewrite import Rewrite, by_name, code

SAME_SHAPES = "all branches must return arrays of the same shapes and dtypes, or all None"
_NEGATIVE = f"{SAME_SHAPES}; an index below 0 takes the first function, where TensorFlow takes the last"
_LOOP = "the shapes and dtypes must stay; under a tape use keras.ops.fori_loop or scan, because while_loop has no gradient in JAX"
_MAPPED = "the result has the dtypes that the function returns"
_SCANNED = "the function must return a value of the initializer's shape and dtype"
_LOOP_OPTIONS = ("parallel_iterations", "back_prop", "swap_memory")


def _new(text: str, check: str) -> Rewrite:
    return Rewrite(cst.parse_expression(text), frozenset({"keras"}), check)


def cond(call: cst.Call) -> Rewrite:
    """Translate ``tf.cond``."""
    given = by_name(call.args, "pred", "true_fn", "false_fn", "name")
    if given is None or not {"pred", "true_fn", "false_fn"} <= set(given):
        return Rewrite(left="keras.ops.cond(condition, true_fn, false_fn)")
    return _new(f"keras.ops.cond({code(given['pred'])}, {code(given['true_fn'])}, {code(given['false_fn'])})", SAME_SHAPES)


def case(call: cst.Call) -> Rewrite:
    """Translate ``tf.case`` of pairs that are written out, with a default."""
    given = by_name(call.args, "pred_fn_pairs", "default", "exclusive", "strict", "name")
    pairs = _pairs(given["pred_fn_pairs"]) if given and "pred_fn_pairs" in given else None
    if given is None or not pairs or "default" not in given or code(given.get("exclusive", cst.Name("False"))) != "False":
        return Rewrite(left="keras.ops.cond(condition, true_fn, lambda: keras.ops.cond(...)), with a function for every case")
    text = code(given["default"])
    for i, (test, function) in reversed([*enumerate(pairs)]):
        text = f"keras.ops.cond({test}, {function}, {'lambda: ' if i < len(pairs) - 1 else ''}{text})"
    return _new(text, SAME_SHAPES)


def _pairs(node: cst.BaseExpression) -> list[tuple[str, str]] | None:
    """The code of the pairs in a list or tuple, or None if they are not written out."""
    if not isinstance(node, cst.List | cst.Tuple):
        return None
    found = []
    for element in node.elements:
        pair = element.value
        if isinstance(element, cst.StarredElement) or not isinstance(pair, cst.Tuple | cst.List) or len(pair.elements) != 2:
            return None
        found.append((code(pair.elements[0].value), code(pair.elements[1].value)))
    return found


def switch_case(call: cst.Call) -> Rewrite:
    """Translate ``tf.switch_case`` of a list of functions without a default."""
    given = by_name(call.args, "branch_index", "branch_fns", "default", "name")
    functions = given.get("branch_fns") if given else None
    listed = isinstance(functions, cst.List | cst.Tuple) and not any(
        isinstance(element, cst.StarredElement) or isinstance(element.value, cst.Tuple) for element in functions.elements
    )
    if given is None or functions is None or not listed or "branch_index" not in given or "default" in given:
        return Rewrite(left="keras.ops.switch(index, [fn, ..., default]), where an index beyond the list takes the last function")
    return _new(f"keras.ops.switch({code(given['branch_index'])}, {code(functions)})", _NEGATIVE)


def while_loop(call: cst.Call) -> Rewrite:
    """Translate ``tf.while_loop``."""
    names = ("cond", "body", "loop_vars", "shape_invariants", *_LOOP_OPTIONS, "maximum_iterations", "name")
    given = by_name(call.args, *names)
    if given is None or not {"cond", "body", "loop_vars"} <= set(given) or "shape_invariants" in given:
        return Rewrite(left="keras.ops.while_loop(cond, body, loop_vars), or jax.lax.while_loop, in which all shapes stay the same")
    most = f", maximum_iterations={code(given['maximum_iterations'])}" if "maximum_iterations" in given else ""
    parts = ", ".join(code(given[name]) for name in ("cond", "body", "loop_vars"))
    return _new(f"keras.ops.while_loop({parts}{most})", _LOOP)


def map_fn(call: cst.Call) -> Rewrite:
    """Translate ``tf.map_fn``."""
    options = ("dtype", *_LOOP_OPTIONS, "infer_shape", "name", "fn_output_signature")
    given = by_name(call.args, "fn", "elems", *options)
    if given is None or not {"fn", "elems"} <= set(given):
        return Rewrite(left="keras.ops.map(fn, arrays)")
    check = _MAPPED if {"dtype", "fn_output_signature"} & set(given) else ""
    return _new(f"keras.ops.map({code(given['fn'])}, {code(given['elems'])})", check)


def scan(call: cst.Call) -> Rewrite:
    """Translate ``tf.scan`` with an initializer."""
    given = by_name(call.args, "fn", "elems", "initializer", *_LOOP_OPTIONS, "infer_shape", "reverse", "name")
    function = given.get("fn") if given else None
    if given is None or function is None or not {"elems", "initializer"} <= set(given):
        return Rewrite(
            left="keras.ops.scan(lambda c, x: (fn(c, x),) * 2, initial, xs)[1]; without an initializer it is the first element"
        )
    called = _called(function)
    reverse = f", reverse={code(given['reverse'])}" if "reverse" in given else ""
    return _new(f"keras.ops.scan({called}, {code(given['initializer'])}, {code(given['elems'])}{reverse})[1]", _SCANNED)


def _called(function: cst.BaseExpression) -> str:
    """A function that returns what this one does twice: to carry it, and to keep it."""
    if isinstance(function, cst.Lambda):
        return f"lambda {code(function.params)}: ({code(function.body)},) * 2"
    return f"lambda carry, x: ({code(function)}(carry, x),) * 2"


HANDLERS = {
    "case": case,
    "cond": cond,
    "map_fn": map_fn,
    "scan": scan,
    "switch_case": switch_case,
    "while_loop": while_loop,
}
