"""The elements that a generator yields."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ...errors import ArgumentError, ArgumentTypeError, ElementError
from ...runtime._own_memory import own
from ..graph._blocks import Block
from ..graph._graph import FUNCTION, NOT_COMPARED, UNKNOWN, Cursor, Node, State, sample
from ..graph._structure import STRING, TensorSpec, as_leaf, component_names, flatten, show_structure, spec_of
from ._begun import Look, Passes, is_looking


@dataclasses.dataclass(frozen=True, eq=False)
class Generator(Node):
    """What ``make(*args)`` yields. ``signature`` is a structure of TensorSpecs, or None to use the first element's.

    ``make`` is called once for each pass. Whoever only ``looks`` at elements begins the next one, and leaves it to the next reader.
    """

    inputs: tuple[Node, ...] = dataclasses.field(default=(), metadata=NOT_COMPARED)
    make: Callable[..., Any] = dataclasses.field(default=iter, metadata=FUNCTION)
    args: tuple[Any, ...] = ()
    signature: Any = None
    passes: Passes = dataclasses.field(default_factory=Passes, metadata=NOT_COMPARED)
    looks: bool = False

    @property
    def label(self) -> str:
        return f"from_generator({getattr(self.make, '__qualname__', type(self.make).__qualname__)})"

    @property
    def spec(self) -> Any:
        return self.signature if self.signature is not None else self._inferred

    @functools.cached_property
    def _inferred(self) -> Any:
        if self.passes.spec is not None:
            return self.passes.spec
        element = sample(self)
        return None if element is None else free_spec(*flatten(element))

    @property
    def cardinality(self) -> int:
        return UNKNOWN

    @property
    def sampled(self) -> Node:
        return dataclasses.replace(self, looks=True)

    def begin(self, *, looks: bool) -> Iterator[Any]:
        """Return a pass over what the generator yields, from the beginning, or a look at it."""

        def make() -> Iterator[Any]:
            return iter(self.make(*self.args))

        return Look(self.passes, make) if looks else self.passes.begin(make)

    def open(self, state: State | None = None) -> Cursor:
        return GeneratorCursor(self, state["next"] if state else 0)


class GeneratorCursor(Cursor):
    """Runs the generator from its beginning, and skips what another cursor has read."""

    def __init__(self, node: Generator, position: int) -> None:
        self.node = node
        self.looks = node.looks or is_looking()
        self.expected = None if node.signature is None else _Expected(node.signature)
        self.iterator: Iterator[Any] | None = None
        self.position = position
        self.failure: Exception | None = None

    def _next(self) -> Any:
        """The next element as it was yielded. Raises StopIteration at the end."""
        if self.iterator is None:
            self.iterator = self.node.begin(looks=self.looks)
            to_skip, self.position = self.position, 0
            for _ in range(to_skip):
                self._next()
        try:
            element = next(self.iterator)
        except StopIteration:
            raise
        except Exception as error:
            note = f"The generator of `from_generator` raised this instead of yielding element {self.position}."
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            raise
        if self.expected is None:  # it decides about the others, even if this cursor skips it
            self.expected = _Expected(free_spec(*flatten(element)))
            self.node.passes.spec = self.expected.spec
        self.position += 1
        return element

    def pull(self, limit: int) -> Block | None:
        failure, self.failure = self.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame
        made: list[list[Any]] = []
        try:
            while len(made) < limit:
                made.append(self._checked(self._next()))
        except StopIteration:
            pass
        except Exception as error:
            if not made:
                raise
            self.failure = error  # raised after the elements that came before it
        return Block.of_elements(self.expected.structure, made) if made and self.expected else None

    def _checked(self, element: Any) -> list[Any]:
        leaves, structure = flatten(element)
        assert self.expected is not None, "an element was read"
        return self.expected.leaves(leaves, structure, self.position - 1)

    def skip(self, count: int) -> int:
        for skipped in range(count):
            try:
                self._next()
            except StopIteration:
                return skipped
        return count

    def reset(self) -> None:
        self.close()
        self.iterator, self.position, self.failure = None, 0, None

    def close(self) -> None:
        if isinstance(self.iterator, Look):
            self.iterator.close()
        self.iterator = iter(())  # a generator that nobody else holds runs its `finally` blocks; others can be read on

    def state(self) -> State:
        return {"next": self.position}


class _Expected:
    """What every element must look like."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self.specs, self.structure = flatten(spec)

    def leaves(self, found: list[Any], structure: Any, number: int) -> list[Any]:
        """Return the leaves in the expected dtypes.

        Raises:
            ElementError: If the structure or a shape differs, or a conversion would change values.
        """
        if structure != self.structure:
            raise ElementError(
                f"from_generator: element {number} has the structure {show_structure(structure)}, expected "
                f"{show_structure(self.structure)} of {self.spec}. Yield the same structure every time (tuples and dicts are "
                "structure, a list is one tensor)."
            )
        names = component_names(structure)
        named = zip(found, self.specs, names, strict=True)
        # A generator may write to its arrays again before it yields the next element.
        return [fitted(own(leaf), spec, f"from_generator: {name} of element {number}") for leaf, spec, name in named]


def fitted(value: Any, spec: TensorSpec, name: str) -> Any:
    """Return the value with the dtype of its spec.

    Raises:
        ElementError: If it has another shape, or would change.
    """
    if spec.dtype == np.float64 and isinstance(value, float | list):
        value = _double(value)
    leaf = as_leaf(value, lambda: name)
    found = spec_of(leaf)
    sizes_fit = len(found.shape) == len(spec.shape) and all(b in (None, a) for a, b in zip(found.shape, spec.shape, strict=True))
    if sizes_fit and found.dtype == spec.dtype:
        return leaf
    converted = _converted(leaf if hasattr(value, "dtype") else value, found.dtype, spec.dtype) if sizes_fit else None
    if converted is None:
        raise ElementError(
            f"{name} is {found}, expected {spec}. Give `output_signature` the shape (None where sizes differ) and dtype of all "
            "elements."
        )
    return converted


def _double(value: Any) -> Any:
    """Python's floating-point numbers as they are, without rounding them to the precision that `as_leaf` gives them."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal lengths, which `as_leaf` refuses
        return value
    return array[()] if array.dtype == np.float64 else value


def _converted(value: Any, found: np.dtype, wanted: np.dtype) -> Any:
    """The value in another dtype, or None if that would change it."""
    if not np.size(value) and not hasattr(value, "dtype"):
        return np.empty(np.shape(value), wanted)  # an empty list has no type
    if STRING in (found, wanted) or not (np.can_cast(found, wanted, "same_kind") or (found.kind in "iu" and wanted.kind in "iu")):
        return None
    if hasattr(value, "dtype"):
        return value.astype(wanted) if np.can_cast(found, wanted, "same_kind") else None
    try:
        made = np.asarray(value, wanted)[()]  # converts Python numbers from their full precision
    except OverflowError:
        return None
    rounded = found.kind in "iu" and wanted.kind == "f" and np.any(np.asarray(made).astype(object) != np.asarray(value, object))
    return None if rounded else made


def free_spec(leaves: list[Any], structure: Any, method: str = "from_generator: ", which: str = "element 0") -> Any:
    """Return ranks and dtypes of an element, with any sizes, because one element says nothing about the sizes of others."""
    names = component_names(structure)
    specs = [spec_of(as_leaf(leaf, lambda i=i: f"{method}{names[i]} of {which}")) for i, leaf in enumerate(leaves)]
    return jax.tree_util.tree_unflatten(structure, [TensorSpec((None,) * len(spec.shape), spec.dtype) for spec in specs])


def signature_of(output_types: Any, output_shapes: Any, output_signature: Any) -> Any:
    """Return the signature that the arguments of `from_generator` say: a structure of TensorSpecs, or None.

    Raises:
        ArgumentError: If dtypes come without shapes, or a signature is said twice.
        ArgumentTypeError: If they are not dtypes, or the shapes have another structure.
    """
    if output_types is None and output_shapes is None:
        return output_signature
    leaves, structure = flatten(output_types)
    if output_signature is not None or output_types is None:
        raise ArgumentError("from_generator: give either output_signature, or output_types together with output_shapes.")
    if output_shapes is None and not all(_is_dtype(leaf) for leaf in leaves):
        return output_types  # a signature, as the second argument
    if output_shapes is None:
        raise ArgumentError(
            "from_generator: output_types need output_shapes. Give output_signature instead, a structure (tuples and dicts) of "
            f"`TensorSpec(shape, dtype)`, or neither. Received: output_types={output_types!r}."
        )
    try:
        shapes = structure.flatten_up_to(output_shapes)
        specs = [TensorSpec(tuple(shape), dtype) for shape, dtype in zip(shapes, leaves, strict=True)]
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            "from_generator: output_types must be a structure (tuples, dicts) of dtypes, and output_shapes a shape for each of "
            f"them. Received: {output_types!r} and {output_shapes!r}."
        ) from error
    return jax.tree_util.tree_unflatten(structure, specs)


def _is_dtype(value: Any) -> bool:
    try:
        return not isinstance(value, TensorSpec) and np.dtype(value) is not None
    except TypeError:
        return False


def generator(make: Callable[..., Any], signature: Any, args: Any) -> Generator:
    """Return a source of what ``make(*args)`` yields.

    Raises:
        ArgumentTypeError: If ``make`` is not a function, or the signature contains anything but specs.
    """
    if not callable(make):
        raise ArgumentTypeError(
            "from_generator takes a function that returns a new iterator each time, so that every pass can start again. "
            f"Received: {make!r}."
        )
    if signature is not None:
        for leaf in flatten(signature)[0]:
            if not isinstance(leaf, TensorSpec):
                raise ArgumentTypeError(
                    f"from_generator: output_signature must be a structure (tuples, dicts) of TensorSpec. Received: {leaf!r}."
                )
    return Generator(make=make, args=tuple(args or ()), signature=signature)
