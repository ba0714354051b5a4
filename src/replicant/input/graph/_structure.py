"""Elements: structures of NumPy leaves, their specs, and the names of components in messages."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from ...errors import ArgumentTypeError, DatasetError
from ...runtime._usable_arrays import NUMBERS, check_unmasked, usable

# Strings have no fixed-width dtype here: "string" is the object dtype, and such leaves stay on the host.
STRING = np.dtype(object)


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one component. None in the shape is a size that can differ; strings have dtype object.

    The name is for the reader: specs that differ in nothing else are equal.

    Args:
        shape: The sizes, as a tuple or a list.
        dtype: The dtype.
        name: A name.

    Raises:
        ArgumentTypeError: If `shape` is something else, such as a number or None.

    >>> TensorSpec((None, 28, 28), np.uint8)
    TensorSpec(shape=(None, 28, 28), dtype=uint8)
    >>> TensorSpec([3], name="x")
    TensorSpec(shape=(3,), dtype=float32, name='x')
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype
    name: str | None = dataclasses.field(default=None, compare=False)

    def __init__(self, shape: Sequence[int | None], dtype: Any = np.float32, name: str | None = None) -> None:
        if isinstance(shape, str) or not isinstance(shape, Iterable):
            raise ArgumentTypeError(
                f"TensorSpec takes the sizes of the dimensions as its shape, such as (None, 3), or () for a scalar; got {shape!r}. "
                "The number of dimensions must be known."
            )
        object.__setattr__(self, "shape", tuple(shape))
        dtype = np.dtype(dtype)
        object.__setattr__(self, "dtype", STRING if dtype.kind == "T" else dtype if dtype.isnative else dtype.newbyteorder("="))
        object.__setattr__(self, "name", name)

    def __repr__(self) -> str:
        named = "" if self.name is None else f", name={self.name!r}"
        return f"TensorSpec(shape={self.shape}, dtype={'string' if self.dtype == STRING else self.dtype}{named})"


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class DatasetSpec(TensorSpec):
    """The spec of a component that is a dataset itself, as `window` makes them.

    >>> DatasetSpec(TensorSpec((), np.int64))
    DatasetSpec(TensorSpec(shape=(), dtype=int64))
    """

    element_spec: Any = None

    def __init__(self, element_spec: Any) -> None:
        super().__init__((), STRING)
        object.__setattr__(self, "element_spec", element_spec)

    def __repr__(self) -> str:
        return f"DatasetSpec({self.element_spec})"


@dataclasses.dataclass(frozen=True)
class PerReplicaSpec:
    """The spec of a component that is split over ``num_replicas`` replicas, each of which gets a part of spec ``spec``.

    The first size is None if it can differ between replicas or steps.
    """

    spec: TensorSpec
    num_replicas: int


def is_leaf(value: Any) -> bool:
    """Return whether a value is a leaf: as in tf.data, lists are. Tuples, dicts and other pytrees are structure."""
    return isinstance(value, list)


def flatten(element: Any) -> tuple[list[Any], Any]:
    """Return leaves and structure of an element."""
    return jax.tree_util.tree_flatten(element, is_leaf=is_leaf)


def map_leaves(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply ``fn`` to every leaf of a structure."""
    return jax.tree_util.tree_map(fn, tree, *rest, is_leaf=is_leaf)


def component_names(structure: Any) -> list[str]:
    """Return a readable name for each leaf of a structure (a PyTreeDef).

    >>> component_names(flatten(({"image": 0}, 1))[1])
    ["component [0]['image']", 'component [1]']
    >>> component_names(flatten(0)[1])
    ['the element']
    """
    numbered = jax.tree_util.tree_unflatten(structure, range(structure.num_leaves))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]
    return [f"component {path}" if path else "the element" for path in paths]


def show_structure(structure: Any) -> str:
    """Show a PyTreeDef to a user, such as ``({'a': *}, *)``."""
    return str(structure).removeprefix("PyTreeDef(").removesuffix(")")


def as_leaf(value: Any, name: Callable[[], str]) -> Any:
    """Convert a value to a NumPy array or scalar. ``name`` returns the name for messages.

    Python numbers take tf.data's types (float32, int32), strings become Python objects. Arrays get this machine's byte order.

    Raises:
        DatasetError: If it is not a tensor (lists of unequal lengths, other Python objects), or has masked values.
    """
    if isinstance(value, str | bytes) or ((type(value) is np.ndarray or isinstance(value, np.generic)) and value.dtype in NUMBERS):
        return value

    typed = _is_typed(value)
    array = _as_array(value, name)
    if array.dtype.kind in "US":
        return _strings(value, np.asarray(array), name) if array.ndim else array.item()
    if array.dtype.kind in "Mm":
        raise DatasetError(f"{name()} holds dates or times, of dtype {array.dtype}. Pass numbers: `dates.astype('int64')`.")
    if array.dtype == STRING:
        if array.ndim == 0:
            return _string(array.item(), name)
        _check_strings(array, name)
    if typed:
        return array
    if array.dtype == np.float64:
        return _single(array, name)
    if array.dtype == np.int64 and (array.size == 0 or np.abs(array).max() < 2**31):
        return array.astype(np.int32)
    return array


def _as_array(value: Any, name: Callable[[], str]) -> Any:
    if isinstance(value, list | tuple):
        check_unmasked(value, lambda why: DatasetError(f"{name()} {why}"))
    try:
        array = value if isinstance(value, np.ndarray | np.generic) else np.asarray(value)
    except ValueError as error:
        raise DatasetError(
            f"{name()} is not a tensor: its lists have unequal lengths. "
            f"Pad them to the same length, or yield them one by one. NumPy says: {error}"
        ) from error
    if array.dtype in NUMBERS and array is not value:
        return array
    return usable(array, lambda why: DatasetError(f"{name()} {why}"))


def texts(value: Any, array: np.ndarray) -> np.ndarray:
    """Convert strings to objects. ``array`` is NumPy's version of ``value``, which may lack zero bytes at the ends."""
    if not hasattr(value, "dtype"):
        objects = np.asarray(value, dtype=object)
        if all(isinstance(item, str | bytes) for item in objects.flat):
            return objects
    return array.astype(object)


def _strings(value: Any, array: np.ndarray, name: Callable[[], str]) -> np.ndarray:
    """The strings of a list or an array, as objects. NumPy makes strings of the numbers in a list that holds strings, too."""
    found = texts(value, array)
    if not hasattr(value, "dtype"):
        _check_strings(np.asarray(value, dtype=object), name)
    return found


def _single(array: Any, name: Callable[[], str]) -> Any:
    """Python's floating-point numbers in the precision that tf.data gives them."""
    with np.errstate(over="raise"):
        try:
            return array.astype(np.float32)
        except FloatingPointError:
            raise DatasetError(f"{name()} holds a number that is beyond float32. Pass `np.array(values, np.float64)`.") from None


def spec_of(leaf: Any) -> TensorSpec:
    """Return the spec of a leaf that `as_leaf` returned."""
    if isinstance(leaf, str | bytes):
        return TensorSpec((), STRING)
    return TensorSpec(leaf.shape, leaf.dtype)


def _string(value: Any, name: Callable[[], str]) -> str | bytes:
    """Check that a Python object is a string, the only kind that may be a leaf."""
    if isinstance(value, str | bytes):
        return value
    raise DatasetError(
        f"{name()} is a {type(value).__name__}, which is not a tensor. Use numbers, strings, arrays, or tuples and dicts of them."
    )


def _check_strings(array: np.ndarray, name: Callable[[], str]) -> None:
    """Check that an array of Python objects holds strings only."""
    for item in array.flat:
        if not isinstance(item, str | bytes):
            raise DatasetError(
                f"{name()} is an array of Python objects, and not all are strings: {item!r} is of type {type(item).__name__}. "
                "Give numbers and strings as separate components: of a pandas frame, pass `dict(frame)`."
            )


def _is_typed(value: Any) -> bool:
    """Whether the value has a dtype of its own. Nested lists do if their first item does."""
    while isinstance(value, list | tuple) and len(value):
        value = value[0]
    return hasattr(value, "dtype") or hasattr(value, "__array__")  # a frame of pandas has only the latter
