"""Functions of arrays whose arguments need more than another name."""

import libcst as cst

from ._rewrite import Rewrite, by_name, code


def _is_number(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Integer) or (isinstance(node, cst.Call) and code(node.func) in ("int", "len"))


def split(call: cst.Call) -> Rewrite:
    """Translate ``tf.split``. It takes the sizes of the parts, where Keras takes the places of the cuts."""
    given = by_name(call.args, "value", "num_or_size_splits", "axis", "num", "name")
    if given is None or not {"value", "num_or_size_splits"} <= set(given):
        return Rewrite(left="keras.ops.split(x, indices_or_sections, axis)")
    parts, check = given["num_or_size_splits"], ""
    if isinstance(parts, cst.List | cst.Tuple):
        sizes = [element.value for element in parts.elements]
        if not all(isinstance(size, cst.Integer) for size in sizes):
            return Rewrite(left="keras.ops.split(x, indices, axis) takes the places of the cuts, not the sizes of the parts")
        numbers = [int(code(size), 0) for size in sizes]
        cut = str([sum(numbers[:i]) for i in range(1, len(numbers))])
    else:
        cut = code(parts)
        check = "" if _is_number(parts) else f"{cut} must be a number of equal parts: Keras takes the places of the cuts, not sizes"
    axis = f", axis={code(given['axis'])}" if "axis" in given else ""
    new = cst.parse_expression(f"keras.ops.split({code(given['value'])}, {cut}{axis})")
    return Rewrite(new, frozenset({"keras"}), check)


def einsum(call: cst.Call) -> Rewrite:
    """Translate ``tf.einsum``."""
    if any(a.keyword is not None and a.keyword.value not in ("name", "optimize") for a in call.args):
        return Rewrite(left="keras.ops.einsum(subscripts, *arrays)")
    kept = [a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in call.args if a.keyword is None]
    return Rewrite(call.with_changes(func=cst.parse_expression("keras.ops.einsum"), args=kept), frozenset({"keras"}))


def norm(call: cst.Call) -> Rewrite:
    """Translate ``tf.norm``, which takes all elements as one vector unless there is an axis."""
    given = by_name(call.args, "tensor", "ord", "axis", "keepdims", "name")
    order = code(given["ord"]).strip("'\"") if given and "ord" in given else "euclidean"
    if given is None or "tensor" not in given or (order != "euclidean" and "axis" not in given):
        return Rewrite(left="keras.ops.norm(x, ord, axis): without an axis, reshape x to one vector")
    options = ({} if order == "euclidean" else {"ord": given["ord"]}) | {k: given[k] for k in ("axis", "keepdims") if k in given}
    more = "".join(f", {name}={code(value)}" for name, value in options.items())
    return Rewrite(cst.parse_expression(f"keras.ops.norm({code(given['tensor'])}{more})"), frozenset({"keras"}))


def pad(call: cst.Call) -> Rewrite:
    """Translate ``tf.pad``."""
    given = by_name(call.args, "tensor", "paddings", "mode", "constant_values", "name")
    mode = given["mode"] if given and "mode" in given else None
    if given is None or not {"tensor", "paddings"} <= set(given) or not (mode is None or isinstance(mode, cst.SimpleString)):
        return Rewrite(left='keras.ops.pad(x, pad_width, mode="constant")')
    width = given["paddings"]
    if isinstance(width, cst.Call) and width.args and isinstance(width.args[0].value, cst.List | cst.Tuple):
        width = width.args[0].value  # tf.constant([[1, 1], [2, 2]]): the sizes must not be an array
    name = str(mode.evaluated_value).lower() if isinstance(mode, cst.SimpleString) else "constant"
    more = "" if name == "constant" else f', mode="{name}"'
    if "constant_values" in given and name == "constant":
        more = f", constant_values={code(given['constant_values'])}"
    new = cst.parse_expression(f"keras.ops.pad({code(given['tensor'])}, {code(width)}{more})")
    return Rewrite(new, frozenset({"keras"}))


def squared_difference(call: cst.Call) -> Rewrite:
    """Translate ``tf.math.squared_difference``."""
    given = by_name(call.args, "x", "y", "name")
    if given is None or not {"x", "y"} <= set(given):
        return Rewrite(left="keras.ops.square(x - y)")
    new = cst.parse_expression(f"keras.ops.square(keras.ops.subtract({code(given['x'])}, {code(given['y'])}))")
    return Rewrite(new, frozenset({"keras"}))


def uniform(call: cst.Call) -> Rewrite:
    """Translate ``tf.random.uniform`` of integers. Return no node for other dtypes."""
    given = by_name(call.args, "shape", "minval", "maxval", "dtype", "seed", "name")
    if given is None or "int" not in code(given.get("dtype", cst.Name("float32"))):
        return Rewrite()
    if not {"shape", "maxval"} <= set(given):
        return Rewrite(left="keras.random.randint(shape, minval, maxval, dtype)")
    low = code(given["minval"]) if "minval" in given else "0"
    seed = f", seed={code(given['seed'])}" if "seed" in given else ""
    text = f"keras.random.randint({code(given['shape'])}, {low}, {code(given['maxval'])}, dtype={code(given['dtype'])}{seed})"
    return Rewrite(cst.parse_expression(text), frozenset({"keras"}))


def unchanged(call: cst.Call) -> Rewrite:
    """Translate ``tf.ensure_shape(x, shape)``: all shapes are known here."""
    return Rewrite(call.args[0].value if call.args else None, check="this was left out: JAX knows all shapes")


HANDLERS = {
    "einsum": einsum,
    "ensure_shape": unchanged,
    "linalg.einsum": einsum,
    "linalg.norm": norm,
    "math.squared_difference": squared_difference,
    "norm": norm,
    "pad": pad,
    "split": split,
}
