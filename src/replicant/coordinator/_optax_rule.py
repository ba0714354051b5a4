"""A gradient transformation on a server, which applies it to its own shards of the variables and of the state."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import ArgumentError
from .servers._padded_update import update_padded
from .workers import _pickling

_STEPS = (0, 1, 2, 999_999)  # counts at which a transformation is tried
_SCALES = (1e-3, 1e3, 1e12)  # sizes of gradients with which it is tried


class Probe(NamedTuple):
    """The kind of each leaf of a transformation's state, in order: "slot", "count" or "constant"."""

    kinds: list[str]


class OptaxRule:
    """Implements ``servers._apply.Rule``.

    Args:
        blob: the pickled transformation and its Probe.
        table: for each (server, shard), the shard's shape and the shards of the state that belong to it.
    """

    def __init__(self, blob: bytes, table: dict[tuple[int, int], tuple[tuple[int, ...], list[int]]], server: int):
        self._transformation, self._probe = _pickling.loads(blob)
        self._table = {shard: entry for (home, shard), entry in table.items() if home == server}

    def slots(self, shard: int) -> list[int]:
        return self._table[shard][1]

    def update(
        self, step: int, learning_rate: float, items: list[tuple[int, np.ndarray, list[np.ndarray]]], outs: list[list[np.ndarray]]
    ) -> None:
        program = functools.partial(self._compiled, np.int32(step))
        update_padded(program, lambda shard: self._table[shard][0], items, outs)

    @functools.cached_property
    def _compiled(self) -> Any:
        return jax.jit(
            lambda step, gradients, values: [
                _updated(self._transformation, self._probe, step, gradient, old)
                for gradient, old in zip(gradients, values, strict=True)
            ]
        )


def _updated(transformation: Any, probe: Probe, step: Any, gradient: Any, old: list[Any]) -> list[Any]:
    """The new [value, *slots]."""
    value, *slots = old
    update, state = transformation.update(gradient, _state(transformation, probe, value, step, slots), value)
    kept = [leaf for leaf, kind in zip(jax.tree.leaves(state), probe.kinds, strict=True) if kind == "slot"]
    return [value + update.astype(value.dtype), *kept]


def _state(transformation: Any, probe: Probe, value: Any, step: Any, slots: list[Any]) -> Any:
    """The transformation's state after `step` updates."""
    leaves, structure = jax.tree.flatten(transformation.init(value))
    given = iter(slots)
    filled = {"slot": lambda _: next(given), "count": lambda leaf: jnp.asarray(step, leaf.dtype), "constant": lambda leaf: leaf}
    return jax.tree.unflatten(structure, [filled[kind](leaf) for leaf, kind in zip(leaves, probe.kinds, strict=True)])


def check_transformation(transformation: Any) -> Probe:
    """Find out what the state of a transformation consists of. Raises ArgumentError if servers cannot apply it."""
    if not (callable(getattr(transformation, "init", None)) and callable(getattr(transformation, "update", None))):
        raise ArgumentError(
            f"OptaxOptimizer takes a transformation with init and update, such as optax.adam(0.001). Received: {transformation!r}."
        )
    value = jnp.asarray([0.5, -1.0, 2.0])
    probe = Probe([_kind(leaf) for leaf in jax.tree.leaves(transformation.init(value))])
    for step in _STEPS:
        _check_step(transformation, probe, value, step)
    for scale in _SCALES:
        _check_elementwise(transformation, value, scale * jnp.asarray([1.0, -2.0, 30.0]))
    return probe


def _kind(leaf: Any) -> str:
    if leaf.shape == (3,):
        return "slot"
    if leaf.shape or not jnp.issubdtype(leaf.dtype, np.number):
        raise _refused(f"for a variable of shape (3,), it keeps an array of shape {leaf.shape} and dtype {leaf.dtype}")
    return "count" if jnp.issubdtype(leaf.dtype, jnp.integer) else "constant"


def _check_step(transformation: Any, probe: Probe, value: Any, step: int) -> None:
    slots = [x for x, kind in zip(jax.tree.leaves(transformation.init(value)), probe.kinds, strict=True) if kind == "slot"]
    before = _state(transformation, probe, value, step, slots)
    _, after = transformation.update(jnp.ones_like(value), before, value)
    for one, other, kind in zip(jax.tree.leaves(before), jax.tree.leaves(after), probe.kinds, strict=True):
        if kind != "slot" and other != one + (kind == "count"):
            raise _refused(f"it keeps a number that is neither constant nor a count of its updates: {one} became {other}")


def _check_elementwise(transformation: Any, value: Any, gradient: Any) -> None:
    whole, _ = transformation.update(gradient, transformation.init(value), value)
    for i in range(3):
        part = value[i : i + 1]
        alone, _ = transformation.update(gradient[i : i + 1], transformation.init(part), part)
        if not np.allclose(alone, whole[i : i + 1], rtol=1e-4):
            raise _refused("it mixes the elements of its gradients, as clip_by_global_norm does")


def _refused(why: str) -> ArgumentError:
    return ArgumentError(
        f"Servers cannot apply this transformation to a shard or some rows of a variable: {why}. Use one that works element by "
        "element, such as optax.adam, and clip gradients in the scheduled function."
    )
