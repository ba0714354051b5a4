"""Models that begin with layers for text: these layers run on the host, and what follows them is compiled.

A functional or sequential model with inputs of strings is cut in two. The *front* are its inputs and the host layers that depend on
nothing but inputs and other such layers. The *rest* is a functional model, with the same layers and variables, from what the front
computes to the outputs. ``fit``, ``evaluate`` and ``predict`` compute the front for the data they get. Their steps call the rest.
"""

import dataclasses
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from ...errors import ArgumentError, ArgumentTypeError
from ...input._dataset import Dataset
from ...input.distributed._distributed import DistributedDataset
from .._internals import ExpandDims, Functional, Reshape, Squeeze

# Operations of Keras that only change the shape of strings. Those of numbers are compiled.
_SHAPING: dict[type, Callable[[Any, Any], Any]] = {
    ExpandDims: lambda operation, x: np.expand_dims(x, operation.axis),
    Reshape: lambda operation, x: np.reshape(x, operation.newshape),
    Squeeze: lambda operation, x: np.squeeze(x, operation.axis),
}
_COMPUTED = "computed on the host: {}"  # the keys of a batch whose front has been computed


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """A model that is cut in two.

    Attributes:
        name: The name of the model.
        struct: The inputs of the model, as it wants them.
        frontier: The tensors between front and rest.
        makers: The calls of layers that give tensors, by the ids of the tensors.
        outputs: The outputs of the model, in its structure.
        rest: The model from the frontier to the outputs that the front does not give; None if it gives all.
        used: The places in the frontier of the tensors that the rest takes.
    """

    name: str
    struct: Any
    frontier: list[Any]
    makers: dict[int, Any]
    outputs: Any
    rest: Any
    used: list[int]

    def prepared(self, inputs: Any) -> dict[str, Any]:
        """Compute the front for one batch, or for all rows."""
        if _is_prepared(inputs):
            return inputs
        values = {id(tensor): _ranked(value, tensor) for tensor, value in self._matched(inputs)}
        return {_COMPUTED.format(at): self._value_of(tensor, values) for at, tensor in enumerate(self.frontier)}

    def _matched(self, inputs: Any) -> Iterator[tuple[Any, Any]]:
        """Yield each input tensor with its value."""
        tensors = keras.tree.flatten(self.struct)
        if isinstance(inputs, Mapping):
            named = self.struct if isinstance(self.struct, Mapping) else {tensor.name: tensor for tensor in tensors}
            missing = [name for name in named if name not in inputs]
            if missing:
                raise ArgumentError(f"the model {self.name!r} needs the inputs {missing}, which are not among {list(inputs)}.")
            yield from ((tensor, inputs[name]) for name, tensor in named.items())
            return
        alone = len(tensors) == 1 and not (isinstance(inputs, list | tuple) and len(inputs) == 1 and hasattr(inputs[0], "shape"))
        given = [inputs] if alone or not isinstance(inputs, list | tuple) else list(inputs)
        if len(given) != len(tensors):
            raise ArgumentError(f"the model {self.name!r} has {len(tensors)} inputs; got {len(given)}.")
        yield from zip(tensors, given, strict=True)

    def _value_of(self, tensor: Any, values: dict[int, Any]) -> Any:
        """Return the value of a tensor of the front."""
        if id(tensor) not in values:
            node = self.makers[id(tensor)]
            args = [keras.tree.map_structure(lambda each: self._value_of(each, values), arg) for arg in node.arguments.args]
            compute = _host_function(node.operation, tensor)
            assert compute is not None, "the front has only what the host computes"
            values[id(tensor)] = compute(*args)
        return values[id(tensor)]

    def call(self, prepared: dict[str, Any], rest: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs of the model, with `rest` to compute those of the rest."""
        values = [prepared[_COMPUTED.format(at)] for at in range(len(self.frontier))]
        found = {id(tensor): value for tensor, value in zip(self.frontier, values, strict=True)}
        outputs = keras.tree.flatten(self.outputs)
        if rest is not None:
            others = [tensor for tensor in outputs if id(tensor) not in found]
            found |= zip(map(id, others), keras.tree.flatten(rest([values[at] for at in self.used], *args, **kwargs)), strict=True)
        packed = keras.tree.pack_sequence_as(self.outputs, [keras.ops.convert_to_tensor(found[id(tensor)]) for tensor in outputs])
        return packed[0] if isinstance(packed, list | tuple) and len(packed) == 1 else packed


_cuts: weakref.WeakKeyDictionary[Any, Cut | None] = weakref.WeakKeyDictionary()


def cut_of(model: Any) -> Cut | None:
    """Return the cut of a model, or None if it has no inputs of strings."""
    graph = getattr(model, "_functional", None) if isinstance(model, keras.Sequential) else model
    if not isinstance(graph, Functional):
        return None
    if graph not in _cuts:
        _cuts[graph] = _cut(model.name, graph)
    return _cuts[graph]


def _cut(name: str, graph: Any) -> Cut | None:
    struct = graph._inputs_struct
    inputs = keras.tree.flatten(struct)
    if not any(tensor.dtype == "string" for tensor in inputs):
        return None
    nodes = [node for operation in graph.operations for node in operation._inbound_nodes]
    makers = {id(tensor): node for node in nodes for tensor in node.output_tensors}
    frontier: dict[int, Any] = {}
    seen: set[int] = set()
    inside: set[int] = set()
    known = {id(tensor): True for tensor in inputs}
    to_see = keras.tree.flatten(graph._outputs_struct)
    while to_see:
        tensor = to_see.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if not _on_host(tensor, makers, known):
            to_see += makers[id(tensor)].input_tensors
            inside |= set(map(id, makers[id(tensor)].input_tensors))
            continue
        if tensor.dtype == "string":
            raise ArgumentError(
                f"the model {name!r} uses the strings {tensor.name!r} in a compiled program. Only layers of replicant.keras.layers "
                "take strings, directly from an input or from each other, and not inside a nested model."
            )
        frontier[id(tensor)] = tensor
    tensors = list(frontier.values())
    others = [tensor for tensor in keras.tree.flatten(graph._outputs_struct) if id(tensor) not in frontier]
    used = [at for at, tensor in enumerate(tensors) if id(tensor) in inside]
    rest = keras.Model([tensors[at] for at in used], others) if others else None
    return Cut(name, struct, tensors, makers, graph._outputs_struct, rest, used)


def _on_host(tensor: Any, makers: dict[int, Any], known: dict[int, bool]) -> bool:
    """Return whether a tensor is an input, or comes from a host layer whose inputs are on the host as well."""
    if id(tensor) not in known:
        node = makers[id(tensor)]
        on_host = _host_function(node.operation, tensor) is not None
        known[id(tensor)] = on_host and all(_on_host(each, makers, known) for each in node.input_tensors)
    return known[id(tensor)]


def _host_function(operation: Any, result: Any) -> Callable[..., Any] | None:
    """Return what computes an operation on the host; None if it is compiled."""
    shaping = _SHAPING.get(type(operation)) if result.dtype == "string" else None
    return getattr(operation, "on_host", None) if shaping is None else functools.partial(shaping, operation)


def _ranked(value: Any, tensor: Any) -> Any:
    """Add or drop a last axis of size 1, as Keras does."""
    value = value if hasattr(value, "shape") else np.asarray(value, object if tensor.dtype == "string" else None)
    rank, wanted = len(value.shape), len(tensor.shape)
    if rank == wanted - 1 and tensor.shape[-1] == 1:
        return value[..., None]
    return value[..., 0] if rank == wanted + 1 and value.shape[-1] == 1 else value


def _is_prepared(inputs: Any) -> bool:
    return type(inputs) is dict and _COMPUTED.format(0) in inputs


def call_layer(original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a layer. A model that is cut in two calls its front on the host and then its rest."""
    if not isinstance(layer, keras.Model) or not args or any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(args[0])):
        return original(layer, *args, **kwargs)
    cut = cut_of(layer)
    return original(layer, *args, **kwargs) if cut is None else cut.call(cut.prepared(args[0]), cut.rest, *args[1:], **kwargs)


def expand_dims(original: Callable[..., Any], x: Any, axis: Any) -> Any:
    """Add axes to an array. Strings stay on the host, as in ``dataset.map``."""
    if isinstance(x, str) or (isinstance(x, np.ndarray) and x.dtype.kind in "OU"):
        return np.expand_dims(np.asarray(x, object), axis)
    return original(x, axis)


def call_graph(original: Callable[..., Any], graph: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a functional model inside a step. What was computed on the host goes into its rest."""
    if not _is_prepared(inputs):
        return original(graph, inputs, *args, **kwargs)
    cut = cut_of(graph)
    assert cut is not None, "the front of this model was computed"
    return cut.call(inputs, cut.rest and cut.rest.call, *args, **kwargs)


def loop(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a method of a model that takes data, and compute the front of the model first."""
    cut = cut_of(model)
    if cut is None:
        return original(model, *args, **kwargs)
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    given = bound.arguments
    if given.get("x") is not None:
        given["x"] = _data(cut, given["x"])
    validation = given.get("validation_data")
    if isinstance(validation, list | tuple):
        given["validation_data"] = (_data(cut, validation[0]), *validation[1:])
    elif validation is not None:
        given["validation_data"] = _data(cut, validation)
    return original(*bound.args, **bound.kwargs)


def _data(cut: Cut, x: Any) -> Any:
    """Return data of any kind with the front computed."""
    if isinstance(x, Dataset):
        return x.map(functools.wraps(_front_of)(functools.partial(_front_of, cut)))
    if isinstance(x, types.GeneratorType):
        return (_prepared_batch(cut, batch) for batch in x)
    arrays = isinstance(x, list | tuple | str | bytes | Mapping) or hasattr(x, "shape")
    if isinstance(x, DistributedDataset) or (isinstance(x, Iterable) and not arrays):
        raise ArgumentTypeError(
            f"the model {cut.name!r} begins with layers for text, which run on the host. It got a {type(x).__name__}: "
            "give it a replicant.data.Dataset, arrays or a generator, or use the layers in dataset.map."
        )
    return cut.prepared(x)


def _front_of(cut: Cut, x: Any, *rest: Any) -> Any:
    """Compute the front for an element of a dataset."""
    prepared = cut.prepared(x)
    return (prepared, *rest) if rest else prepared


def _prepared_batch(cut: Cut, batch: Any) -> Any:
    """Compute the front for a batch of a generator."""
    return (cut.prepared(batch[0]), *batch[1:]) if isinstance(batch, tuple) else cut.prepared(batch)
