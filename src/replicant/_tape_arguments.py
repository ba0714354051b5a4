"""The targets and sources of gradients, and their checks."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .errors import ArgumentError, ArgumentTypeError, GradientError
from .replicas._values import is_array
from .variables._known import is_variable, objects, ref_of
from .variables._ref import Ref


def targets_of(target: Any, output_gradients: Any) -> tuple[list[Any], list[Any]]:
    """Return the float arrays of a target, and the weights of their elements."""
    leaves, tree = jax.tree.flatten(target)
    if output_gradients is None:
        weights: Sequence[Any] = [None] * len(leaves)
    else:
        weights, weights_tree = jax.tree.flatten(output_gradients)
        if weights_tree != tree:
            raise ArgumentError(
                f"output_gradients has the structure {weights_tree}, but the target has {tree}. They must be equal."
            )
    targets, cotangents = [], []
    for leaf, weight in zip(leaves, weights, strict=True):
        if not is_array(leaf):
            continue  # a constant has no gradient
        checked_target(leaf)
        targets.append(leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf))  # the object itself: a tape may know it by that
        cotangents.append(
            jnp.ones(leaf.shape, leaf.dtype) if weight is None else jnp.broadcast_to(weight, leaf.shape).astype(leaf.dtype)
        )
    return targets, cotangents


class Sources:
    """The sources of a gradient.

    Args:
        sources: A nested structure of variables and arrays, or of modules and States of Flax NNX, which stand for what is in them.
    """

    def __init__(self, sources: Any):
        nodes, self._tree = jax.tree.flatten(sources, is_leaf=lambda x: x is None or is_variable(x) or isinstance(x, objects.stops))
        self._parts = [
            objects.gradients(x) if isinstance(x, objects.stops) and not is_variable(x) else ([x], lambda found: found[0])
            for x in nodes
        ]
        self.leaves: list[Any] = [leaf for leaves, _ in self._parts for leaf in leaves]

    def structured(self, found: Sequence[Any]) -> Any:
        """Return the gradients of the leaves in the structure of the sources."""
        rest = iter(found)
        return jax.tree.unflatten(self._tree, [rebuilt([next(rest) for _ in leaves]) for leaves, rebuilt in self._parts])


def checked_target(target: Any) -> Any:
    """Return a target of a float dtype.

    Raises:
        ArgumentTypeError: If it has another dtype.
    """
    if not jnp.issubdtype(target.dtype, jnp.inexact):
        raise ArgumentTypeError(f"The target of a gradient must be of a float dtype; got {target.dtype}.")
    return target


def check_not_on_servers(refs: Iterable[Ref]) -> None:
    """Raise GradientError if a variable lies on parameter servers, where gradients may be rows of it only."""
    for ref in refs:
        if ref.elsewhere:
            raise GradientError(
                f"Variable {ref.name!r} lies on parameter servers, where it has no jacobian and cannot be used in a function with "
                "custom_gradient. Use its value: x = variable.value()."
            )


def source_array(source: Any) -> Any:
    """Return a source that is an array.

    Raises:
        ArgumentTypeError: If it is anything else.
    """
    if not isinstance(source, jax.Array):
        raise ArgumentTypeError(f"A source of a gradient must be a variable or a JAX array; {not_differentiable(source)}")
    return source


def not_differentiable(value: Any) -> str:
    """Say in a message what was given instead of an array or variable."""
    got = f"got {value!r} of type {type(value).__name__}."
    # Nothing records what NumPy computes, and JAX makes a new constant of a NumPy array at each use.
    return f"{got} Convert it before the tape records: x = jnp.asarray(x)." if is_array(value) else got


def dtype_of(source: Any) -> Any:
    """Return the dtype of a source."""
    return ref_of(source).dtype if is_variable(source) else source_array(source).dtype


def shape_of(source: Any) -> tuple[int, ...]:
    """Return the shape of a source."""
    return tuple(ref_of(source).shape) if is_variable(source) else source_array(source).shape


def zeros_like(source: Any) -> Any:
    """Return zeros for a source without a path to the target."""
    return jnp.zeros(shape_of(source), dtype_of(source))
