"""Functions of TensorFlow that exist in Keras, with other names for their arguments."""

import functools
import importlib
import inspect
from dataclasses import dataclass
from typing import Any

import libcst as cst


@dataclass(frozen=True)
class Op:
    """A function and its arguments.

    Attributes:
        target: The dotted name in Keras.
        parameters: The parameters in TensorFlow's order: "name", "name>new", "name>" (has no meaning here) or "name!" (cannot be
            translated).
        defaults: The arguments whose defaults differ, each with its name in Keras and its code.
    """

    target: str
    parameters: tuple[str, ...]
    defaults: tuple[tuple[str, str], ...] = ()


def _op(target: str, parameters: str, **defaults: str) -> Op:
    return Op(f"keras.{target}", (*parameters.split(), "name>"), tuple(defaults.items()))


def _table() -> dict[str, Op]:
    table = {
        "argmax": _op("ops.argmax", "input>x axis output_type!", axis="0"),
        "argmin": _op("ops.argmin", "input>x axis output_type!", axis="0"),
        "cast": _op("ops.cast", "x dtype"),
        "clip_by_value": _op("ops.clip", "t>x clip_value_min>x_min clip_value_max>x_max"),
        "concat": _op("ops.concatenate", "values>xs axis"),
        "constant": _op("ops.convert_to_tensor", "value>x dtype shape!"),
        "convert_to_tensor": _op("ops.convert_to_tensor", "value>x dtype dtype_hint!"),
        "cumsum": _op("ops.cumsum", "x axis exclusive! reverse!", axis="0"),
        "expand_dims": _op("ops.expand_dims", "input>x axis"),
        "eye": _op("ops.eye", "num_rows>N num_columns>M batch_shape! dtype"),
        "fill": _op("ops.full", "dims>shape value>fill_value"),
        "gather": _op("ops.take", "params>x indices validate_indices! axis batch_dims!", axis="0"),
        "identity": _op("ops.convert_to_tensor", "input>x"),
        "matmul": _op("ops.matmul", "a>x1 b>x2 transpose_a! transpose_b! adjoint_a! adjoint_b! a_is_sparse! b_is_sparse!"),
        "nn.relu": _op("ops.relu", "features>x"),
        "nn.softmax": _op("ops.softmax", "logits>x axis"),
        "nn.log_softmax": _op("ops.log_softmax", "logits>x axis"),
        "nn.sigmoid": _op("ops.sigmoid", "x"),
        "nn.sparse_softmax_cross_entropy_with_logits": _op(
            "ops.sparse_categorical_crossentropy", "labels>target logits>output", from_logits="True"
        ),
        "nn.softmax_cross_entropy_with_logits": _op(
            "ops.categorical_crossentropy", "labels>target logits>output axis", from_logits="True"
        ),
        "one_hot": _op("ops.one_hot", "indices>x depth>num_classes on_value! off_value! axis dtype", dtype='"float32"'),
        "ones": _op("ops.ones", "shape dtype"),
        "ones_like": _op("ops.ones_like", "input>x dtype"),
        "random.normal": _op("random.normal", "shape mean stddev dtype seed"),
        "random.truncated_normal": _op("random.truncated_normal", "shape mean stddev dtype seed"),
        "random.uniform": _op("random.uniform", "shape minval maxval dtype seed"),
        "range": _op("ops.arange", "start limit>stop delta>step dtype"),
        "rank": _op("ops.ndim", "input>x"),
        "reshape": _op("ops.reshape", "tensor>x shape>newshape"),
        "shape": _op("ops.shape", "input>x out_type!"),
        "size": _op("ops.size", "input>x out_type!"),
        "sort": _op("ops.sort", "values>x axis direction!"),
        "squeeze": _op("ops.squeeze", "input>x axis"),
        "stack": _op("ops.stack", "values>x axis"),
        "stop_gradient": _op("ops.stop_gradient", "input>variable"),
        "tile": _op("ops.tile", "input>x multiples>repeats"),
        "transpose": _op("ops.transpose", "a>x perm>axes conjugate!"),
        "unstack": _op("ops.unstack", "value>x num axis"),
        "where": _op("ops.where", "condition x>x1 y>x2"),
        "zeros": _op("ops.zeros", "shape dtype layout!"),
        "zeros_like": _op("ops.zeros_like", "input>x dtype layout!"),
    }
    for new in ("sum", "mean", "max", "min", "prod", "all", "any", "logsumexp", "std", "var"):
        old = {"std": "math.reduce_std", "var": "math.reduce_variance"}.get(new, f"reduce_{new}")
        table[old] = _op(f"ops.{new}", "input_tensor>x axis keepdims")
    for name in "abs ceil cos cosh exp floor log sign sin sinh sqrt square tan tanh".split():
        table[name] = table[f"math.{name}"] = _op(f"ops.{name}", "x")
    for name in "erf expm1 log1p reciprocal rsqrt sigmoid softplus is_nan is_inf is_finite".split():
        table[f"math.{name}"] = _op(f"ops.{name.replace('is_', 'is')}", "x")
    pairs = (
        "add divide equal greater greater_equal less less_equal logical_and logical_or maximum minimum multiply not_equal subtract"
    )
    for name in pairs.split():
        table[name] = table[f"math.{name}"] = _op(f"ops.{name}", "x>x1 y>x2")
    table["pow"] = _op("ops.power", "x>x1 y>x2")
    return table | {f"math.{name}": op for name, op in table.items() if name.startswith(("reduce_", "arg", "cumsum", "pow"))}


OPS = _table()


def bind(op: Op, arguments: list[cst.Arg]) -> list[cst.Arg] | str:
    """The arguments of the call in Keras, or a string that says why they cannot be translated."""
    new: list[cst.Arg] = []
    given: set[str] = set()
    order = _parameters_of(op.target)
    for i, argument in enumerate(arguments):
        if argument.star:
            return "it is called with * or **"
        if argument.keyword is None:
            spec = op.parameters[i] if i < len(op.parameters) else "?!"
        else:
            spec = next((spec for spec in op.parameters if spec.rstrip("!").partition(">")[0] == argument.keyword.value), "?!")
        if spec.endswith("!"):
            named = argument.keyword.value if argument.keyword else spec.rstrip("!")
            return f"{op.target} has no equivalent of the argument {named!r}"
        old, arrow, renamed = spec.partition(">")
        name = renamed if arrow else old
        if not name:
            continue
        positional = argument.keyword is None and order[len(new) : len(new) + 1] == [name] and all(x.keyword is None for x in new)
        new.append(_argument(None if positional else name, argument.value))
        given.add(name)
    return new + [_argument(name, cst.parse_expression(code)) for name, code in op.defaults if name not in given]


def _argument(keyword: str | None, value: cst.BaseExpression) -> cst.Arg:
    if keyword is None:
        return cst.Arg(value)
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value, keyword=cst.Name(keyword), equal=tight)


@functools.cache
def _parameters_of(target: str) -> list[str]:
    root, *rest = target.split(".")
    value: Any = importlib.import_module(root)
    for name in rest:
        value = getattr(value, name)
    return list(inspect.signature(value).parameters)
