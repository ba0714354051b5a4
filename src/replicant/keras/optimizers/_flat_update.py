"""The kernel "flat_update": Adam updates variables whose rows are short as if they had one axis.

XLA:CPU unrolls a loop over up to 31 elements before LLVM looks for vectors in it. With the square root and the division of Adam,
there are none in rows of SHORT_ROWS elements, so it computes element by element. Embedding tables have such rows. Flat arrays have
the same bytes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from jax import Array, lax

from ...kernels._switch import is_on
from ..cpu._recurrent import runs_on_one_cpu

FAMILY = "flat_update"
MIN_SIZE = 16_384  # elements; this and the lengths of rows were measured, see docs/kernels.md
SHORT_ROWS = frozenset({6, *range(9, 32)})

_OPTIMIZERS = (keras.optimizers.Adam, keras.optimizers.AdamW)
_SLOTS = ("_momentums", "_velocities", "_velocity_hats")


def update(original: Callable[..., Any], optimizer: Any, grads: Sequence[Any], variables: Sequence[Any], learning_rate: Any) -> Any:
    """Update variables, given their gradients: those with short rows as flat arrays, and the others as Keras does."""
    pairs = list(zip(grads, variables, strict=True))
    if type(optimizer) not in _OPTIMIZERS or not is_on(FAMILY) or not runs_on_one_cpu():
        return original(optimizer, grads, variables, learning_rate)
    others = [(gradient, variable) for gradient, variable in pairs if not _pays(gradient, variable)]
    if others:
        original(optimizer, *zip(*others, strict=True), learning_rate)
    for gradient, variable in pairs:
        if _pays(gradient, variable):
            _update_flat(optimizer, gradient, variable, learning_rate)
    return None


def _pays(gradient: Any, variable: Any) -> bool:
    shape = tuple(variable.shape)
    if gradient.shape != shape or variable.dtype != "float32":
        return False
    return len(shape) > 1 and shape[-1] in SHORT_ROWS and gradient.size >= MIN_SIZE


class _Flat:
    """What an optimizer may do with a variable, with a value that has one axis."""

    def __init__(self, variable: Any) -> None:
        self.dtype = variable.dtype
        self.value = self.before = _flat(variable.value)

    def __jax_array__(self) -> Array:
        return self.value

    def assign(self, value: Any) -> None:
        self.value = value

    def assign_add(self, change: Any) -> None:
        self.value = self.value + change

    def assign_sub(self, change: Any) -> None:
        self.value = self.value - change


def _flat(value: Any) -> Array:
    """A value with one axis. The barrier keeps XLA from computing in the shape that it has outside."""
    return lax.optimization_barrier(value.reshape(-1))


def _update_flat(optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    """Let a copy of the optimizer that knows only flat variables update one, and assign what it has assigned."""
    index = optimizer._get_variable_index(variable)
    kept = {name: vars(optimizer)[name][index] for name in _SLOTS if vars(optimizer).get(name)}
    flat = {name: _Flat(slot) for name, slot in kept.items()}
    copy = object.__new__(type(optimizer))
    vars(copy).update(vars(optimizer))
    vars(copy).update({name: [slot] for name, slot in flat.items()}, _get_variable_index=lambda _: 0)
    weights = _Flat(variable)
    copy.update_step(_flat(gradient), weights, learning_rate)
    for whole, part in [(variable, weights), *((kept[name], flat[name]) for name in kept)]:
        if part.value is not part.before:
            whole.assign(lax.optimization_barrier(part.value).reshape(variable.shape))
