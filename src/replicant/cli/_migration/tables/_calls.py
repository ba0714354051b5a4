"""Calls that need more than another name. A handler gets a call as it was translated so far, and returns a `Rewrite`."""

from collections.abc import Callable

import libcst as cst
import libcst.matchers as m

from . import _control_flow, _files, _functions, _images, _tfds
from ._rewrite import Rewrite, by_name, code


def _tuple(shape: cst.BaseExpression) -> cst.BaseExpression | None:
    """A shape as a tuple, from a list, a tuple or a ``tf.TensorShape``, or None for anything else."""
    if isinstance(shape, cst.Call) and len(shape.args) == 1:
        shape = shape.args[0].value
    if isinstance(shape, cst.Tuple):
        return shape
    if isinstance(shape, cst.List):
        elements = ", ".join(code(element.value) for element in shape.elements)
        return cst.parse_expression(f"({elements}{',' if len(shape.elements) == 1 else ''})")
    return None


_FUNCTION_OPTIONS = {"func", "autograph", "jit_compile", "reduce_retracing", "experimental_relax_shapes"}


def function(call: cst.Call) -> Rewrite:
    """Translate ``tf.function``, without the options that `replicant.function` does not take."""
    kept = [a for a in call.args if a.keyword is None or a.keyword.value in _FUNCTION_OPTIONS]
    dropped = [a.keyword.value for a in call.args if a.keyword is not None and a.keyword.value not in _FUNCTION_OPTIONS]
    kept = [cst.Arg(a.value) if a.keyword is not None and a.keyword.value == "func" else a for a in kept]
    new = call.with_changes(args=[a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in kept]) if kept else call.func
    check = f"these options were left out, because JAX traces by shapes: {', '.join(dropped)}" if dropped else ""
    return Rewrite(new, check=check)


def logical_devices(call: cst.Call) -> Rewrite:
    """Translate ``set_logical_device_configuration(device, [one, two])``."""
    given = by_name(call.args, "device", "logical_devices")
    devices = (given or {}).get("logical_devices")
    number = None
    if isinstance(devices, cst.List):
        number = str(len(devices.elements))
    if m.matches(devices or cst.Name("none"), m.BinaryOperation(m.List([m.Element()]), m.Multiply())):
        number = code(cst.ensure_type(devices, cst.BinaryOperation).right)
    if devices is not None and m.matches(
        devices, m.ListComp(for_in=m.CompFor(iter=m.Call(args=[m.Arg()]), ifs=[], inner_for_in=None))
    ):
        ranged = cst.ensure_type(cst.ensure_type(devices, cst.ListComp).for_in.iter, cst.Call)
        number = code(ranged.args[0].value) if code(ranged.func) == "range" else None
    if number is None:
        return Rewrite(left="replicant.set_virtual_devices(n), before anything else starts JAX")
    check = "it must come before anything that starts JAX, such as listing devices or making an array"
    return Rewrite(cst.parse_expression(f"replicant.set_virtual_devices({number})"), frozenset({"replicant"}), check)


def from_generator(call: cst.Call) -> Rewrite:
    """Replace ``output_types`` and ``output_shapes`` by ``output_signature``."""
    given = by_name(call.args, "generator", "output_types", "output_shapes", "args", "output_signature", "name")
    if given is None or "output_types" not in given:
        return Rewrite(call)
    types, shapes = given["output_types"], given.get("output_shapes")
    signature = None if shapes is None else _signature(types, shapes)
    if signature is None:
        return Rewrite(left="pass output_signature= with replicant.data.TensorSpec(shape, dtype), in the structure of the elements")
    kept = [a for a in call.args if a.keyword is None or a.keyword.value in ("generator", "args")][:1]
    kept += [a for a in call.args if a.keyword is not None and a.keyword.value == "args"]
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = [*kept, cst.Arg(cst.parse_expression(signature), keyword=cst.Name("output_signature"), equal=tight)]
    return Rewrite(call.with_changes(args=[a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in new]), frozenset({"replicant"}))


def _signature(types: cst.BaseExpression, shapes: cst.BaseExpression) -> str | None:
    if isinstance(types, cst.Tuple):
        if not isinstance(shapes, cst.Tuple) or len(shapes.elements) != len(types.elements):
            return None
        parts = [_signature(t.value, s.value) for t, s in zip(types.elements, shapes.elements, strict=True)]
        return None if None in parts else f"({', '.join(part or '' for part in parts)},)"
    shape = _tuple(shapes)
    return None if shape is None else f"replicant.data.TensorSpec({code(shape)}, {code(types.with_changes(lpar=[], rpar=[]))})"


def dataset_method(name: str) -> Callable[[cst.Call], Rewrite]:
    """Return the translation of a function of a dataset that is a method here."""

    def rewrite(call: cst.Call) -> Rewrite:
        if not call.args or call.args[0].star or call.args[0].keyword is not None:
            return Rewrite(left=f"dataset.{name}(...)")
        owner = call.args[0].value
        if not isinstance(owner, cst.Name | cst.Attribute | cst.Call | cst.Subscript) and not owner.lpar:
            owner = owner.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return Rewrite(call.with_changes(func=cst.Attribute(owner, cst.Name(name)), args=call.args[1:]))

    return rewrite


# Functions that return what `Dataset.apply` takes, by their names in tf.data.experimental, and the methods that do the same.
TRANSFORMATIONS = {
    "enumerate_dataset": "enumerate",
    **{
        name: name
        for name in (
            "bucket_by_sequence_length",
            "group_by_window",
            "ignore_errors",
            "rejection_resample",
            "scan",
            "snapshot",
            "take_while",
            "unbatch",
            "unique",
        )
    },
}


def apply_transformation(call: cst.Call, method: str) -> Rewrite:
    """Translate ``dataset.apply(tf.data.experimental.NAME(...))`` to the method of that name."""
    inner = cst.ensure_type(call.args[0].value, cst.Call)
    func = cst.ensure_type(call.func, cst.Attribute)
    return Rewrite(call.with_changes(func=func.with_changes(attr=cst.Name(method)), args=inner.args))


def tensor_spec(call: cst.Call) -> Rewrite:
    """Translate ``tf.TensorSpec``: shapes are tuples. The name is dropped, since it tells nothing."""
    given = by_name(call.args, "shape", "dtype", "name")
    shape = _tuple(given["shape"]) if given and "shape" in given else None
    if given is None or shape is None or isinstance(given["shape"], cst.Call):
        return Rewrite(left="replicant.data.TensorSpec(shape, dtype) with a tuple as its shape")
    dtype = code(given["dtype"]) if "dtype" in given else '"float32"'
    return Rewrite(call.with_changes(args=[cst.Arg(shape), cst.Arg(cst.parse_expression(dtype))]))


def feature(call: cst.Call) -> Rewrite:
    """Translate ``FixedLenFeature([], dtype)``: shapes are tuples."""
    first = call.args[0] if call.args else None
    shape = _tuple(first.value) if first is not None else None
    return Rewrite(call if first is None or shape is None else call.with_deep_changes(first, value=shape))


def tensor_shape(call: cst.Call) -> Rewrite:
    """Translate ``tf.TensorShape``: shapes are tuples."""
    shape = _tuple(call)
    return Rewrite(shape) if shape is not None else Rewrite(left="shapes are tuples")


def load_latest_weights(call: cst.Call) -> Rewrite:
    """Translate ``model.load_weights(tf.train.latest_checkpoint(folder))``: load the newest file with weights."""
    inner = cst.ensure_type(call.args[0].value, cst.Call)
    files = f'pathlib.Path({code(inner.args[0].value)}).glob("*.weights.h5")'
    newest = cst.parse_expression(f"max({files}, key=lambda file: file.stat().st_mtime)")
    check = "this loads weights that Keras 3 has saved: the newest file that ends in .weights.h5"
    return Rewrite(call.with_deep_changes(call.args[0], value=newest), frozenset({"pathlib"}), check)


def print_outside(call: cst.Call) -> Rewrite:
    """Translate ``tf.print`` in ordinary code."""
    if any(a.keyword is not None and a.keyword.value not in ("end", "sep") for a in call.args):
        return Rewrite(left="print(...), or print(..., file=...)")
    return Rewrite(call.with_changes(func=cst.Name("print")))


def print_traced(call: cst.Call) -> Rewrite:
    """Translate ``tf.print`` in code that is traced, where Python's print would run once, with tracers."""
    if any(a.keyword is not None or a.star for a in call.args):
        return Rewrite(left='jax.debug.print("...{}...", value)')
    values = [a for a in call.args if not isinstance(a.value, cst.SimpleString)]
    texts = [
        str(a.value.evaluated_value).replace("{", "{{").replace("}", "}}") if isinstance(a.value, cst.SimpleString) else "{}"
        for a in call.args
    ]
    arguments = "".join(f", {code(a.value)}" for a in values)
    return Rewrite(cst.parse_expression(f"jax.debug.print({' '.join(texts)!r}{arguments})"), frozenset({"jax"}))


def mirrored_strategy(call: cst.Call) -> Rewrite:
    """Leave out ``cross_device_ops``, which `replicant.MirroredStrategy` does not take."""
    given = by_name(call.args, "devices", "cross_device_ops")
    if given is None or "cross_device_ops" not in given:
        return Rewrite(call)
    kept = [a for a in call.args if a.value is given.get("devices")]
    check = "cross_device_ops was left out, because XLA chooses how to reduce"
    return Rewrite(call.with_changes(args=[a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in kept]), check=check)


def left_out(call: cst.Call) -> list[cst.CSTNode]:
    """Return the names of TensorFlow in ``cross_device_ops``, which no longer count."""
    ops = (by_name(call.args, "devices", "cross_device_ops") or {}).get("cross_device_ops")
    return [ops.func if isinstance(ops, cst.Call) else ops] if ops is not None else []


def older_multi_worker_strategy(call: cst.Call) -> Rewrite:
    """Translate ``tf.distribute.experimental.MultiWorkerMirroredStrategy``, whose first argument is ``communication``."""
    given = by_name(call.args, "communication", "cluster_resolver")
    if given is None:
        return Rewrite(left="replicant.MultiWorkerMirroredStrategy(cluster_resolver, communication_options)")
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = [cst.Arg(given["cluster_resolver"])] if "cluster_resolver" in given else []
    carried = code(given["communication"]) if "communication" in given else "AUTO"
    if carried.endswith("AUTO"):
        return Rewrite(call.with_changes(args=new))
    options = cst.parse_expression(f"replicant.CommunicationOptions(implementation={carried})")
    new.append(cst.Arg(options, keyword=cst.Name("communication_options"), equal=tight))
    check = "to TensorFlow, communication is a hint; here, anything but what the devices use (NCCL on GPUs, RING on CPUs) raises"
    return Rewrite(call.with_changes(args=new), frozenset({"replicant"}), check)


def preemption_handler(call: cst.Call) -> Rewrite:
    """Leave out ``cluster_resolver``, which `replicant.PreemptionCheckpointHandler` does not need."""
    names = ("cluster_resolver", "checkpoint_or_checkpoint_manager", "checkpoint_dir", "termination_config")
    given = by_name(call.args, *names)
    if given is None:
        return Rewrite(left="replicant.PreemptionCheckpointHandler(manager)")
    kept = [a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in call.args if a.value is not given.get("cluster_resolver")]
    return Rewrite(call.with_changes(args=kept))


def termination_config(call: cst.Call) -> Rewrite:
    """Leave ``tf.distribute.experimental.TerminationConfig`` alone where `replicant.TerminationConfig` would take it otherwise."""
    given = by_name(call.args, "termination_watcher_fn", "exit_fn", "grace_period")
    if given is None or sum(argument.keyword is None for argument in call.args) > 2:
        return Rewrite(
            left="replicant.TerminationConfig(termination_watcher_fn, exit_fn, grace_period=seconds), which has no save_fn"
        )
    return Rewrite(call)


def dataset_creator(call: cst.Call) -> Rewrite:
    """Translate ``DatasetCreator(dataset_fn)`` to the function, which `fit` takes."""
    given = by_name(call.args, "dataset_fn", "input_options")
    if given is None or set(given) != {"dataset_fn"}:
        return Rewrite(left="pass dataset_fn itself to fit")
    return Rewrite(given["dataset_fn"], check="fit takes this function, and calls it with an input context")


# The arguments of apply_gradients that Keras 3 lacks, with the values that change nothing.
_SUMMED = {"skip_gradients_aggregation": "False", "experimental_aggregate_gradients": "True"}


def apply_gradients(call: cst.Call) -> Rewrite:
    """Translate ``optimizer.apply_gradients``, which takes the gradients alone. In TensorFlow, it can leave their sum out."""
    given = {argument.keyword.value: argument for argument in call.args if argument.keyword is not None}
    if any(name in given and code(given[name].value) != same for name, same in _SUMMED.items()):
        return Rewrite(
            left="Keras 3 has no such argument: optimizer.apply_gradients sums the gradients over the replicas itself. Leave out "
            "the all_reduce before it and the argument, or divide summed gradients by strategy.num_replicas_in_sync"
        )
    kept = [a for a in call.args if a.keyword is None or a.keyword.value not in (*_SUMMED, "name")]
    if len(kept) == len(call.args):
        return Rewrite(call)
    return Rewrite(call.with_changes(args=[a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in kept]))


def connected_resolver(call: cst.Call) -> Rewrite:
    """Translate ``TPUClusterResolver.connect(tpu)`` to the resolver alone."""
    new = call.with_changes(func=cst.parse_expression("replicant.cluster.TPUClusterResolver"))
    return Rewrite(new, frozenset({"replicant"}))


def saved_model(call: cst.Call) -> Rewrite:
    """Translate ``tf.saved_model.save(model, folder)``."""
    given = by_name(call.args, "obj", "export_dir", "signatures", "options")
    if given is None or set(given) != {"obj", "export_dir"} or not isinstance(given["obj"], cst.Name | cst.Attribute):
        return Rewrite(left="model.export(folder), which needs TensorFlow")
    check = 'for a model of Keras; export needs TensorFlow, and to load the model again, model.save("name.keras") does not'
    return Rewrite(cst.parse_expression(f"{code(given['obj'])}.export({code(given['export_dir'])})"), check=check)


# The handlers by the name of what is called, without "tensorflow.".
HANDLERS: dict[str, Callable[[cst.Call], Rewrite]] = {
    "function": function,
    "distribute.MirroredStrategy": mirrored_strategy,
    "distribute.experimental.MultiWorkerMirroredStrategy": older_multi_worker_strategy,
    "distribute.experimental.PreemptionCheckpointHandler": preemption_handler,
    "distribute.experimental.TerminationConfig": termination_config,
    "keras.utils.experimental.DatasetCreator": dataset_creator,
    "config.set_logical_device_configuration": logical_devices,
    "config.experimental.set_virtual_device_configuration": logical_devices,
    "data.Dataset.from_generator": from_generator,
    "TensorSpec": tensor_spec,
    "TensorShape": tensor_shape,
    "io.FixedLenFeature": feature,
    "data.experimental.cardinality": dataset_method("cardinality"),
    "data.experimental.get_single_element": dataset_method("get_single_element"),
    "data.experimental.save": dataset_method("save"),
    **_control_flow.HANDLERS,
    **_files.HANDLERS,
    **_functions.HANDLERS,
    **_images.HANDLERS,
    **_tfds.HANDLERS,
    "distribute.cluster_resolver.TPUClusterResolver.connect": connected_resolver,
    "saved_model.save": saved_model,
}
