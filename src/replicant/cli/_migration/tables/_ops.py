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
        parameters: The parameters in TensorFlow's order: "name", "name>new", "name>" (has no meaning here), "name!" (cannot be
            translated) or "name*" (must be given, because without it TensorFlow does something else).
        defaults: The arguments whose defaults differ, each with its name in Keras and its code.
    """

    target: str
    parameters: tuple[str, ...]
    defaults: tuple[tuple[str, str], ...] = ()


def _op(target: str, parameters: str, **defaults: str) -> Op:
    return Op(f"keras.{target}", (*parameters.split(), "name>"), tuple(defaults.items()))


_ALIASES = {
    "cast": "dtypes.cast",
    "floordiv": "math.floordiv",
    "matmul": "linalg.matmul",
    "mod": "math.floormod",
    "nn.silu": "nn.swish",
    "nn.top_k": "math.top_k",
    "nn.in_top_k": "math.in_top_k",
    "nn.l2_normalize": "math.l2_normalize",
    "nn.softmax": "math.softmax",
    "nn.log_softmax": "math.log_softmax",
    "nn.softplus": "math.softplus",
    "round": "math.round",
    "saturate_cast": "dtypes.saturate_cast",
    "tensordot": "linalg.tensordot",
    "eye": "linalg.eye",
    "math.sigmoid": "sigmoid",
    "negative": "math.negative",
    "math.imag": "imag",
    "math.real": "real",
    "math.conj": "conj",
    "logical_not": "math.logical_not",
    "atan2": "math.atan2",
    "argsort": "math.argsort",
    "bincount": "math.bincount",
}


def _nn() -> dict[str, Op]:
    return {
        **{f"nn.{name}": _op(f"ops.{name}", "features>x") for name in "elu relu relu6 selu silu softplus softsign".split()},
        **{f"nn.{name}": _op(f"ops.{name}", "x") for name in ("sigmoid", "tanh")},
        "nn.batch_normalization": _op(
            "ops.batch_normalization", "x mean variance offset scale variance_epsilon>epsilon", axis="-1"
        ),
        "nn.bias_add": _op("ops.add", "value>x1 bias>x2 data_format!"),
        "nn.dropout": _op("random.dropout", "x>inputs rate noise_shape seed"),
        "nn.embedding_lookup": _op("ops.take", "params>x ids>indices max_norm!", axis="0"),
        "nn.gelu": _op("ops.gelu", "features>x approximate", approximate="False"),
        "nn.in_top_k": _op("ops.in_top_k", "targets predictions k"),
        "nn.l2_normalize": _op("ops.normalize", "x axis* epsilon!", epsilon="1e-6"),
        "nn.leaky_relu": _op("ops.leaky_relu", "features>x alpha>negative_slope"),
        "nn.moments": _op("ops.moments", "x axes shift! keepdims"),
        "nn.top_k": _op("ops.top_k", "input>x k sorted index_type!", k="1"),
    }


def _arrays() -> dict[str, Op]:
    return {
        "argsort": _op("ops.argsort", "values>x axis direction! stable>"),
        "atan2": _op("ops.arctan2", "y>x1 x>x2"),
        "bincount": _op("ops.bincount", "arr>x weights minlength maxlength!"),
        "broadcast_to": _op("ops.broadcast_to", "input>x shape"),
        "floordiv": _op("ops.floor_divide", "x>x1 y>x2"),
        "is_tensor": _op("ops.is_tensor", "x"),
        "linalg.cholesky": _op("ops.cholesky", "input>x"),
        "linalg.det": _op("ops.det", "input>x"),
        "linalg.inv": _op("ops.inv", "input>x adjoint!"),
        "linalg.solve": _op("ops.solve", "matrix>a rhs>b adjoint!"),
        "linspace": _op("ops.linspace", "start stop num* axis"),
        "logical_not": _op("ops.logical_not", "x"),
        "math.conj": _op("ops.conj", "x"),
        "math.cumprod": _op("ops.cumprod", "x axis exclusive! reverse!", axis="0"),
        "math.imag": _op("ops.imag", "input>x"),
        "math.real": _op("ops.real", "input>x"),
        "math.unsorted_segment_sum": _op("ops.segment_sum", "data segment_ids num_segments"),
        "negative": _op("ops.negative", "x"),
        "random.categorical": _op("random.categorical", "logits num_samples dtype seed"),
        "random.shuffle": _op("random.shuffle", "value>x seed"),
        "repeat": _op("ops.repeat", "input>x repeats axis"),
        "reverse": _op("ops.flip", "tensor>x axis*"),
        "roll": _op("ops.roll", "input>x shift axis*"),
        "round": _op("ops.round", "x"),
        "saturate_cast": _op("ops.saturate_cast", "value>x dtype"),
        "scatter_nd": _op("ops.scatter", "indices updates>values shape"),
        "searchsorted": _op("ops.searchsorted", "sorted_sequence values side out_type!"),
        "slice": _op("ops.slice", "input_>inputs begin>start_indices size>shape"),
        "tensor_scatter_nd_update": _op("ops.scatter_update", "tensor>inputs indices updates"),
        "tensordot": _op("ops.tensordot", "a>x1 b>x2 axes"),
        "vectorized_map": _op("ops.vectorized_map", "fn>function elems>elements fallback_to_while_loop> warn>"),
    }


def _images() -> dict[str, Op]:
    return {
        "image.crop_to_bounding_box": _op(
            "ops.image.crop_images",
            "image>images offset_height>top_cropping offset_width>left_cropping target_height target_width",
        ),
        "image.flip_left_right": _op("ops.flip", "image>x", axis="-2"),
        "image.flip_up_down": _op("ops.flip", "image>x", axis="-3"),
        "image.hsv_to_rgb": _op("ops.image.hsv_to_rgb", "images"),
        "image.pad_to_bounding_box": _op(
            "ops.image.pad_images",
            "image>images offset_height>top_padding offset_width>left_padding target_height target_width",
        ),
        "image.rgb_to_hsv": _op("ops.image.rgb_to_hsv", "images"),
        "image.rot90": _op("ops.rot90", "image>array k", axes="(-3, -2)"),
        "image.transpose": _op("ops.swapaxes", "image>x", axis1="-3", axis2="-2"),
    }


def _backend() -> dict[str, Op]:
    """The functions of ``tf.keras.backend``, which Keras 3 has in keras.ops."""
    table = {
        name: _op(f"ops.{name}", "x") for name in "abs exp log relu round sigmoid sign sqrt square softplus tanh transpose".split()
    }
    table |= {name: _op(f"ops.{name}", "x axis keepdims") for name in "all any max mean min prod std sum var".split()}
    table |= {name: _op(f"ops.{name}", "x>x1 y>x2") for name in "equal greater less maximum minimum not_equal".split()}
    table |= {
        "argmax": _op("ops.argmax", "x axis", axis="-1"),
        "binary_crossentropy": _op("ops.binary_crossentropy", "target output from_logits"),
        "cast": _op("ops.cast", "x dtype"),
        "cast_to_floatx": _op("ops.convert_to_tensor", "x", dtype="keras.config.floatx()"),
        "clip": _op("ops.clip", "x min_value>x_min max_value>x_max"),
        "concatenate": _op("ops.concatenate", "tensors>xs axis", axis="-1"),
        "expand_dims": _op("ops.expand_dims", "x axis", axis="-1"),
        "one_hot": _op("ops.one_hot", "indices>x num_classes"),
        "ones_like": _op("ops.ones_like", "x dtype"),
        "pow": _op("ops.power", "x>x1 a>x2"),
        "random_normal": _op("random.normal", "shape mean stddev dtype seed"),
        "random_uniform": _op("random.uniform", "shape minval maxval dtype seed"),
        "reshape": _op("ops.reshape", "x shape>newshape"),
        "shape": _op("ops.shape", "x"),
        "int_shape": _op("ops.shape", "x"),
        "softmax": _op("ops.softmax", "x axis"),
        "squeeze": _op("ops.squeeze", "x axis"),
        "stack": _op("ops.stack", "x axis"),
        "stop_gradient": _op("ops.stop_gradient", "variables>variable"),
        "zeros_like": _op("ops.zeros_like", "x dtype"),
    }
    return {f"keras.backend.{name}": op for name, op in table.items()}


def _table() -> dict[str, Op]:
    table = {
        "argmax": _op("ops.argmax", "input>x axis output_type>", axis="0"),
        "argmin": _op("ops.argmin", "input>x axis output_type>", axis="0"),
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
        "nn.softmax": _op("ops.softmax", "logits>x axis"),
        "nn.log_softmax": _op("ops.log_softmax", "logits>x axis"),
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
        "shape": _op("ops.shape", "input>x out_type>"),
        "size": _op("ops.size", "input>x out_type>"),
        "sort": _op("ops.sort", "values>x axis direction!"),
        "squeeze": _op("ops.squeeze", "input>x axis"),
        "stack": _op("ops.stack", "values>x axis"),
        "stop_gradient": _op("ops.stop_gradient", "input>variable"),
        "tile": _op("ops.tile", "input>x multiples>repeats"),
        "transpose": _op("ops.transpose", "a>x perm>axes conjugate!"),
        "unstack": _op("ops.unstack", "value>x num axis"),
        **_nn(),
        **_arrays(),
        **_backend(),
        **_images(),
        "where": _op("ops.where", "condition x>x1 y>x2"),
        "zeros": _op("ops.zeros", "shape dtype layout!"),
        "zeros_like": _op("ops.zeros_like", "input>x dtype layout!"),
    }
    for new in ("sum", "mean", "max", "min", "prod", "all", "any", "logsumexp", "std", "var"):
        old = {"std": "math.reduce_std", "var": "math.reduce_variance"}.get(new, f"reduce_{new}")
        table[old] = _op(f"ops.{new}", "input_tensor>x axis keepdims")
    for name in "abs ceil cos cosh exp floor log sign sin sinh sqrt square tan tanh".split():
        table[name] = table[f"math.{name}"] = _op(f"ops.{name}", "x")
    for name in "acos acosh asin asinh atan atanh".split():
        table[name] = table[f"math.{name}"] = _op(f"ops.arc{name[1:]}", "x")
    for name in "erf erfinv expm1 is_nan is_inf is_finite log1p log_sigmoid reciprocal rsqrt sigmoid".split():
        table[f"math.{name}"] = _op(f"ops.{name.replace('is_', 'is')}", "x")
    pairs = (
        "add divide equal greater greater_equal less less_equal logical_and logical_or maximum minimum multiply not_equal subtract "
        "divide_no_nan logical_xor mod"
    )
    for name in pairs.split():
        table[name] = table[f"math.{name}"] = _op(f"ops.{name}", "x>x1 y>x2")
    table["pow"] = _op("ops.power", "x>x1 y>x2")
    for name, aliases in _ALIASES.items():
        table |= dict.fromkeys(aliases.split(), table[name])
    return table | {f"math.{name}": op for name, op in table.items() if name.startswith(("reduce_", "arg", "cumsum", "pow"))}


OPS = _table()
# Arguments that may be lists in TensorFlow, but not in Keras.
_ARRAYS_ONLY = {
    "keras.ops.scatter": ("indices", "values"),
    "keras.ops.segment_sum": ("data", "segment_ids"),
}


def bind(op: Op, arguments: list[cst.Arg]) -> list[cst.Arg] | str:
    """The arguments of the call in Keras, or a string that says why they cannot be translated."""
    new: list[cst.Arg] = []
    given: set[str] = set()
    order = _parameters_of(op.target) if "." in op.target else _new_names(op)
    for i, argument in enumerate(arguments):
        if argument.star:
            return "it is called with * or **"
        if argument.keyword is None:
            spec = op.parameters[i] if i < len(op.parameters) else "?!"
        else:
            spec = next((spec for spec in op.parameters if spec.rstrip("!*").partition(">")[0] == argument.keyword.value), "?!")
        if spec.endswith("!"):
            named = argument.keyword.value if argument.keyword else spec.rstrip("!")
            return f"{op.target} has no equivalent of the argument {named!r}"
        old, arrow, renamed = spec.rstrip("*").partition(">")
        name = renamed if arrow else old
        if not name:
            continue
        positional = argument.keyword is None and order[len(new) : len(new) + 1] == [name] and all(x.keyword is None for x in new)
        value = argument.value
        if isinstance(value, cst.List | cst.Tuple) and name in _ARRAYS_ONLY.get(op.target, ()):
            value = cst.parse_expression(f"keras.ops.array({cst.Module([]).code_for_node(value)})")
        new.append(make_argument(None if positional else name, value))
        given.add(name)
    absent = [spec.rstrip("*") for spec in op.parameters if spec.endswith("*") and spec.rstrip("*") not in given]
    if absent:
        return f"without the argument {absent[0]!r}, {op.target} does something else"
    return new + [make_argument(name, cst.parse_expression(code)) for name, code in op.defaults if name not in given]


def make_argument(keyword: str | None, value: cst.BaseExpression) -> cst.Arg:
    """An argument without spaces around its equal sign."""
    if keyword is None:
        return cst.Arg(value)
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value, keyword=cst.Name(keyword), equal=tight)


def _new_names(op: Op) -> list[str]:
    """The parameters of a definition of the new program, which has TensorFlow's order."""
    return [spec.rpartition(">")[2] for spec in op.parameters]


@functools.cache
def _parameters_of(target: str) -> list[str]:
    root, *rest = target.split(".")
    value: Any = importlib.import_module(root)
    for name in rest:
        value = getattr(value, name)
    return list(inspect.signature(value).parameters)
