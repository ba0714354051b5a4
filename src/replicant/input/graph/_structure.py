"""Elements: structures of NumPy leaves, their specs, and how a component is named in messages."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from replicant.errors import DatasetError

# Strings have no fixed-width dtype here: "string" is the object dtype, and such leaves stay on the host.
STRING = np.dtype(object)


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one component. A None in the shape is a size that can differ; strings have dtype object.

    >>> TensorSpec((None, 28, 28), np.uint8)
    TensorSpec(shape=(None, 28, 28), dtype=uint8)
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype

    def __init__(self, shape: tuple[int | None, ...], dtype: Any) -> None:
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "dtype", np.dtype(dtype))

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={'string' if self.dtype == STRING else self.dtype})"


@dataclasses.dataclass(frozen=True)
class PerReplicaSpec:
    """Spec of one component that is split over replicas: ``spec`` is what each of the ``num_replicas`` replicas gets.

    The first size is None where replicas, or steps, can differ.
    """

    spec: TensorSpec
    num_replicas: int


def is_leaf(value: Any) -> bool:
    """Lists are tensors, as in tf.data; tuples, dicts, named tuples and registered pytrees are structure."""
    return isinstance(value, list)


def flatten(element: Any) -> tuple[list[Any], Any]:
    """Leaves and structure of an element."""
    return jax.tree_util.tree_flatten(element, is_leaf=is_leaf)


def map_leaves(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """The structure with ``fn`` applied to every leaf."""
    return jax.tree_util.tree_map(fn, tree, *rest, is_leaf=is_leaf)


def component_names(structure: Any) -> list[str]:
    """A readable name for each leaf of a structure (a PyTreeDef).

    >>> component_names(flatten(({"image": 0}, 1))[1])
    ["component [0]['image']", 'component [1]']
    >>> component_names(flatten(0)[1])
    ['the element']
    """
    numbered = jax.tree_util.tree_unflatten(structure, range(structure.num_leaves))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]
    return [f"component {path}" if path else "the element" for path in paths]


def show_structure(structure: Any) -> str:
    """A PyTreeDef as a user reads it: ``({'a': *}, *)``."""
    return str(structure).removeprefix("PyTreeDef(").removesuffix(")")


def as_leaf(value: Any, name: Callable[[], str]) -> Any:
    """The value as a NumPy array or scalar; ``name`` is called for messages.

    Python numbers take tf.data's types (float32, int32), strings become Python objects.

    Raises:
        DatasetError: not a tensor (lists of unequal lengths, other Python objects).
    """
    if isinstance(value, str | bytes):
        return value
    typed = _is_typed(value)
    try:
        array = value if isinstance(value, np.generic) else np.asarray(value)
    except ValueError as error:
        raise DatasetError(
            f"{name()} is not a tensor: its lists have unequal lengths. "
            f"Pad them to one length, or yield them one by one. NumPy says: {error}"
        ) from error
    if array.dtype.kind in "US":
        return texts(value, np.asarray(array)) if array.ndim else array.item()
    if array.dtype == STRING and array.ndim == 0:
        return _string(array.item(), name)
    if typed:
        return array
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.int64 and (array.size == 0 or np.abs(array).max() < 2**31):
        return array.astype(np.int32)
    return array


def texts(value: Any, array: np.ndarray) -> np.ndarray:
    """Strings as objects; ``array`` is what NumPy makes of ``value``, which may have lost zero bytes at their ends."""
    if not hasattr(value, "dtype"):
        objects = np.asarray(value, dtype=object)
        if all(isinstance(item, str | bytes) for item in objects.flat):
            return objects
    return array.astype(object)


def spec_of(leaf: Any) -> TensorSpec:
    """Spec of one leaf that `as_leaf` returned."""
    if isinstance(leaf, str | bytes):
        return TensorSpec((), STRING)
    return TensorSpec(leaf.shape, leaf.dtype)


def _string(value: Any, name: Callable[[], str]) -> str | bytes:
    """The only Python objects that may be leaves."""
    if isinstance(value, str | bytes):
        return value
    raise DatasetError(
        f"{name()} is a {type(value).__name__}, which is not a tensor. Give numbers, strings, arrays, or tuples and dicts of them."
    )


def _is_typed(value: Any) -> bool:
    """Whether the value brings its own dtype; nested lists do if their first item does."""
    while isinstance(value, list | tuple) and len(value):
        value = value[0]
    return hasattr(value, "dtype")
