"""The one table of what Replicant wraps in Flax, which has no public hooks at these places.

Every wrapper does what Flax does unless a step of Replicant is being traced.
"""

import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Iterable
from typing import Any

import flax
import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import graphlib
from flax.nnx.nn import normalization
from jax.core import Tracer

from ..errors import BackendError, LostStateError, VariableError
from ..replicas._context import ReplicaContext, active_replica_context
from ..variables._recorder import current_recorder
from ._rules import MIRRORED
from ._statistics import compute_stats
from ._stored import RawValue, is_of_keras, is_outside, may_be_used, may_change

_EXPECTED: list[tuple[Any, str, tuple[str, ...] | None]] = [
    (nnx.Variable, "_raw_value", None),
    (nnx.Variable, "_can_update", None),
    (nnx.Variable, "_check_can_update", ("self",)),
    (nnx.Pytree, "_check_valid_context", ("self", "error_msg")),
    (nnx.Pytree, "_setattr", ("self", "name", "value")),
    (nnx.Pytree, "_graph_node_clear", ("self",)),
    (nnx.Pytree, "_graph_node_init", ("self", "attributes")),
    (nnx.RngStream, "__call__", ("self",)),
    (nnx.metrics.Welford, "update", ("self", "kwargs")),
    (normalization, "_compute_stats", ("x", "axes", "dtype", "axis_name")),
]


def check() -> None:
    """Raise BackendError if the installed Flax does not have what is wrapped."""
    for owner, name, parameters in _EXPECTED:
        found = vars(owner).get(name)
        if found is None or (
            parameters is not None and tuple(inspect.signature(found).parameters)[: len(parameters)] != parameters
        ):
            raise BackendError(
                f"Flax {flax.__version__} is not supported: {owner.__name__}.{name} is not what Replicant knows. Install a version "
                'that Replicant was tested with: pip install "replicant-jax[nnx]".'
            )


def install() -> RawValue:
    """Wrap everything. Return what takes the place of ``nnx.Variable._raw_value``."""
    check()
    variable: Any = nnx.Variable
    raw_value = RawValue(vars(variable)["_raw_value"])
    can_update, check_can_update = vars(variable)["_can_update"].fget, vars(variable)["_check_can_update"]
    variable._raw_value = raw_value
    variable._can_update = property(lambda self: can_update(self) or may_change(self), doc=can_update.__doc__)

    def check_here(self: Any) -> None:
        if not may_change(self):
            check_can_update(self)

    variable._check_can_update = check_here
    _wrap(nnx.Pytree, "_check_valid_context", check_context)
    _wrap(nnx.Pytree, "_setattr", set_attribute)
    _wrap(nnx.Pytree, "_graph_node_clear", clear)
    _wrap(nnx.Pytree, "_graph_node_init", fill)
    _renew_registry()
    _wrap(nnx.RngStream, "__call__", draw)
    _wrap(nnx.metrics.Welford, "update", functools.partial(update_welford, raw_value))
    _wrap(normalization, "_compute_stats", compute_stats)
    return raw_value


def _renew_registry() -> None:
    """Give the classes that exist already the wrapped functions: Flax keeps those of each class in a table."""
    for kind, known in list(graphlib.GRAPH_REGISTRY.items()):
        if issubclass(kind, nnx.Pytree):
            new = {name: getattr(kind, f"_graph_node_{name}") for name in ("clear", "init")}
            graphlib.GRAPH_REGISTRY[kind] = dataclasses.replace(known, **new)


def _wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    original = vars(owner)[name]

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, wrapped)


def check_context(original: Any, module: Any, error_msg: Any) -> None:
    """Let a step use a module that was made outside, in its own trace."""
    if not may_be_used(module):
        original(module, error_msg)


def set_attribute(original: Any, module: Any, name: str, value: Any) -> None:
    """Set an attribute. In a step, refuse what exists only in its trace: later steps would not set it again."""
    if current_recorder() is not None and may_be_used(module):
        found = jax.tree.leaves(value, is_leaf=_is_node)
        if any(isinstance(x, Tracer) or (_is_node(x) and not is_outside(x)) for x in found):
            raise LostStateError(_would_be_lost(module, name))
    original(module, name, value)


def _would_be_lost(module: Any, name: str) -> str:
    return (
        f"A compiled step sets the attribute {name!r} of a {type(module).__name__}, which was made outside, to a value that exists "
        "only while the step is traced, so later steps would not set it again. Make a Variable outside, "
        f"`module.{name} = nnx.Variable(jnp.zeros(shape))`, and assign its value in the step, `module.{name}[...] = value`, or "
        "return the value from the step. (`sow` sets such an attribute, too.)"
    )


class _Cleared(threading.local):
    def __init__(self) -> None:
        self.attributes: dict[int, dict[str, Any]] = {}


_cleared = _Cleared()


def clear(original: Any, module: Any) -> None:
    """Empty a module that `fill` will fill with what a transformed function has made of it. In a step, note what it had.

    Raises:
        VariableError: If it is a model of Keras (``KERAS_NNX_ENABLED``). Its variables would be left with values of the trace.
    """
    if current_recorder() is not None and is_of_keras(type(module)):
        raise VariableError(_is_of_keras(module))
    if current_recorder() is not None and may_be_used(module):
        _cleared.attributes[id(module)] = dict(vars(module))
    original(module)


def fill(original: Any, module: Any, attributes: Iterable[tuple[Any, Any]]) -> None:
    """Fill a module again. In a step, one that was made outside keeps its parts, whose Variables have their new values by now.

    Flax would give it new containers at each transformation, and arrays that exist only in the trace.
    """
    before = _cleared.attributes.pop(id(module), None)
    if before is None:
        original(module, attributes)
        return
    after: dict[str, Any] = {}
    for key, value in attributes:
        name, found = str(key), jax.tree.leaves(value, is_leaf=_is_node)
        nodes = [x for x in found if _is_node(x)]
        if any(not is_outside(x) for x in nodes) or (name not in before and any(isinstance(x, Tracer) for x in found)):
            vars(module).update(before)
            raise LostStateError(_would_be_lost(module, name))
        of_data = nodes or any(isinstance(x, Tracer) for x in found) or name.startswith("_pytree__")
        after[name] = before[name] if of_data and name in before else value
    original(module, after.items())


def _is_of_keras(module: Any) -> str:
    return (
        f"A compiled step passes a Keras {type(module).__name__} to a transformation of Flax NNX, such as nnx.value_and_grad. That "
        "works with modules of Flax only, even with KERAS_NNX_ENABLED. For a Keras model, record the loss with "
        "replicant.GradientTape, write `grads = tape.gradient(loss, model.trainable_variables)`, and update with an optimizer of "
        "Keras."
    )


def _is_node(value: Any) -> bool:
    return isinstance(value, nnx.Pytree | nnx.Variable)


def _several() -> ReplicaContext | None:
    """Return the replica context of the step that is being traced, if there are several replicas."""
    context = active_replica_context()
    return context if context is not None and current_recorder() is not None and context.num_replicas_in_sync > 1 else None


def draw(original: Any, stream: Any) -> Any:
    """Draw a key that differs by replica. Replica 0 draws the key of one device, and the stream's state is the same on all."""
    key, context = original(stream), _several()
    if context is None:
        return key
    replica = context.replica_id_in_sync_group
    data, folded = jax.random.key_data(key), jax.random.key_data(_folded(key, replica))
    return jax.random.wrap_key_data(jnp.where(replica == 0, data, folded), impl=jax.random.key_impl(key))


_REPLICAS = 0x7E93A11C  # arbitrary


def _folded(key: Any, replica: Any) -> Any:
    # `fold_in(key, r)` is `split(key)[r]` in JAX 0.12, which a step may draw with as well. The constant leads away from it.
    def fold(key: Any) -> Any:
        return jax.random.fold_in(jax.random.fold_in(key, _REPLICAS), replica)

    for _ in key.shape:  # a stream that was split holds several keys
        fold = jax.vmap(fold)
    return fold(key)


def mirror_welford(raw_value: RawValue, metric: Any) -> None:
    """Let the Variables of a Welford metric be the same on all replicas: its moments cannot be added up."""
    for variable in (metric.count, metric.mean, metric.m2):
        raw_value.cell(variable, MIRRORED)


def update_welford(raw_value: RawValue, original: Any, metric: Any, **kwargs: Any) -> None:
    """Update a Welford metric. In a replica, use the moments of the values of all replicas."""
    context = _several()
    if context is None or metric.argname not in kwargs:
        original(metric, **kwargs)
        return
    mirror_welford(raw_value, metric)
    values = jnp.asarray(kwargs[metric.argname], metric.mean.dtype)
    count, total = context.all_reduce("SUM", (jnp.asarray(values.size, metric.count.dtype), values.sum()))
    mean = total / jnp.maximum(count, 1)
    m2 = context.all_reduce("SUM", ((values - mean) ** 2).sum())
    before = metric.count[...]
    delta = mean - metric.mean[...]
    metric.count[...] += count
    whole = jnp.maximum(metric.count[...], 1)
    metric.mean[...] += delta * count / whole
    metric.m2[...] += m2 + delta * delta * count * before / whole
