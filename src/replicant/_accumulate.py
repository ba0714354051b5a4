"""A loss and its gradients, computed for one micro-batch after the other and added up."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from .errors import ArgumentError, ArgumentTypeError
from .reductions import _micro_batches
from .replicas._context import active_replica_context
from .replicas._micro import MicroBatch, Parts, added, in_micro_batch, shapes_of, wide
from .replicas._values import is_array
from .variables._known import is_variable
from .variables._libraries import connect_libraries
from .variables._recorder import current_recorder


def check_steps(steps: Any, what: str) -> int:
    """Return `steps` if it can be a number of micro-batches.

    Raises:
        ArgumentError: If it is less than 1.
        ArgumentTypeError: If it is not an int.
    """
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise ArgumentTypeError(
            f"{what}: accumulate_steps must be an int, a number of micro-batches; got {steps!r} of type {type(steps).__name__}."
        )
    if steps < 1:
        raise ArgumentError(f"{what}: accumulate_steps must be at least 1; got {steps}. 1 computes the whole batch at once.")
    return steps


def accumulate(compute: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], steps: int, *, has_aux: bool) -> Any:
    """Return what ``compute(*args, **kwargs)`` does, computed in micro-batches of the rows of all arrays among the arguments.

    Args:
        compute: A function that returns ``(value, gradients)``, or with `has_aux` ``((value, aux), gradients)``.
        args: Positional arguments.
        kwargs: Keyword arguments.
        steps: The number of micro-batches. There are fewer if there are not enough rows.
        has_aux: Whether there is an `aux`.

    Raises:
        ArgumentError: If the arrays have different numbers of rows, or `aux` has an array without them.
        ReductionError: If the value of the whole batch is not the sum of those of its micro-batches.
    """
    batch = _Batch(args, kwargs)
    if steps == 1 or batch.rows < 2:
        return compute(*args, **kwargs)
    return _Accumulation(compute, batch, steps, has_aux=has_aux).compute()


class _Batch:
    """The arguments of a function, of which all arrays that are not scalars have the rows of the batch along axis 0."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]):
        leaves, self._tree = jax.tree_util.tree_flatten_with_path((args, kwargs), is_leaf=is_variable)
        self._leaves = [leaf for _, leaf in leaves]
        self._where = [i for i, x in enumerate(self._leaves) if is_array(x) and jnp.ndim(x) > 0]
        self.names = [_name(leaves[i][0]) for i in self._where]
        self.arrays = [jnp.asarray(self._leaves[i]) for i in self._where]
        sizes = [x.shape[0] for x in self.arrays]
        if not sizes:
            raise ArgumentError(
                "value_and_grad with accumulate_steps cuts the rows of its arguments into micro-batches, but none of them is an "
                "array with rows. Pass the batch as an argument."
            )
        if len(set(sizes)) > 1:
            listing = ", ".join(f"{name} has {size}" for name, size in zip(self.names, sizes, strict=True))
            raise ArgumentError(
                "value_and_grad with accumulate_steps cuts the rows of all arrays among its arguments, so they need equally many: "
                f"{listing}. Let the function read arrays that are not part of the batch from the code around it."
            )
        self.rows = sizes[0]

    def arguments(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of one micro-batch."""
        leaves = list(self._leaves)
        for i, array in zip(self._where, arrays, strict=True):
            leaves[i] = array
        return jax.tree.unflatten(self._tree, leaves)


def _name(path: Any) -> str:
    place, *rest = path
    return ("args" if place.idx == 0 else "kwargs") + jax.tree_util.keystr(tuple(rest))


@dataclasses.dataclass(frozen=True)
class _Form:
    """The structure of what a function returns, with what is not an array in its `aux`."""

    tree: Any = None
    aux_tree: Any = None
    aux_leaves: Sequence[Any] = ()


class _Accumulation:
    """One call of a function, computed in micro-batches."""

    def __init__(self, fn: Callable[..., Any], batch: _Batch, steps: int, *, has_aux: bool):
        self._fn, self._batch, self._has_aux = fn, batch, has_aux
        self._parts = Parts(batch.rows, -(-batch.rows // steps))
        self._form = _Form()  # of the last trace
        self._asides: list[Any] = []  # what was assigned in it
        self._first: list[Any] = []  # what was assigned in the first trace

    def compute(self) -> Any:
        start, dtypes = self._learn([x[: self._parts.size] for x in self._batch.arrays])
        with self._noting_once():
            (sums, assigned), auxes = self._parts.each(self._add, start, self._batch.arrays, self._in_loop)
        values = iter(assigned)
        for aside in self._first:
            aside.put_back(list(itertools.islice(values, len(aside.values()))))
        sums = [x.astype(dtype) for x, dtype in zip(sums, dtypes, strict=True)]
        value, gradients = jax.tree.unflatten(self._form.tree, sums)
        return ((value, self._joined(auxes)) if self._has_aux else value), gradients

    def _learn(self, rows: list[Any]) -> tuple[Any, list[Any]]:
        """Trace a micro-batch, check its loss, and return the state before the first one, and the dtypes of the sums."""
        closed = jax.make_jaxpr(lambda rows: self._traced(rows, []))(rows)
        first = self._asides
        _micro_batches.check(closed, self._of_twice(rows), self._batch.names, self._parts.number)
        self._first = first
        avals: list[Any] = [v.aval for v in closed.jaxpr.outvars[: self._form.tree.num_leaves]]  # of arrays
        zeros = [jnp.zeros(aval.shape, wide(aval.dtype)) for aval in avals]
        return (zeros, [x for aside in first for x in aside.before()]), [aval.dtype for aval in avals]

    def _of_twice(self, rows: list[Any]) -> Any:
        """Trace twice as many rows, to see which divisors grow with them."""
        size = len(rows[0])
        try:
            with self._noting_once():
                return jax.make_jaxpr(lambda rows: self._traced(rows, []))(shapes_of(rows, 2 * size))
        except Exception as error:
            raise ArgumentError(
                f"value_and_grad: accumulate_steps needs a function that takes any number of rows. This one took {size}, those of "
                f"a micro-batch, but with {2 * size} it raised {type(error).__name__}: {error}"
            ) from error

    def _in_loop(self, state: Any, rows: Sequence[Any]) -> Any:
        recorder = current_recorder()
        if recorder is None:
            return self._add(state, rows)
        with recorder.reading_in_loop(rows[0]):
            return self._add(state, rows)

    def _add(self, state: Any, rows: Sequence[Any]) -> Any:
        """Add a micro-batch. Return the new state, and the micro-batch's auxiliary arrays."""
        sums, assigned = state
        parts, auxes, after = self._traced(rows, assigned)
        return (added(sums, parts), [new.astype(old.dtype) for new, old in zip(after, assigned, strict=True)]), auxes

    def _traced(self, rows: Sequence[Any], assigned: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the value and the gradients of a micro-batch, its auxiliary arrays, and what was assigned."""
        args, kwargs = self._batch.arguments(rows)
        values = iter(assigned)
        self._asides = [provider.Aside() for provider in connect_libraries()]
        for aside, first in zip(self._asides, self._first, strict=False):
            aside.follow(first, list(itertools.islice(values, len(first.values()))))
        with ExitStack() as stack:
            stack.enter_context(in_micro_batch(MicroBatch(len(rows[0]), self._batch.rows, self._parts.number)))
            for aside in self._asides:
                stack.enter_context(aside)
            value, gradients = self._fn(*args, **kwargs)
        value, aux = value if self._has_aux else (value, ())
        if jnp.ndim(value) > 0:
            raise ArgumentError(
                f"value_and_grad: the function must return a scalar loss; got an array of shape {jnp.shape(value)}. Sum it, for "
                "instance with replicant.compute_average_loss(per_example_loss, global_batch_size=...)."
            )
        sums, tree = jax.tree.flatten((value, gradients))
        aux_leaves, aux_tree = jax.tree.flatten(aux)
        self._form = _Form(tree, aux_tree, aux_leaves)
        return [*map(jnp.asarray, sums)], _arrays(aux_leaves, len(rows[0])), [x for aside in self._asides for x in aside.values()]

    def _joined(self, arrays: Sequence[Any]) -> Any:
        rest = iter(arrays)
        return jax.tree.unflatten(self._form.aux_tree, [next(rest) if is_array(x) else x for x in self._form.aux_leaves])

    @staticmethod
    @contextmanager
    def _noting_once() -> Iterator[None]:
        """Forget what compute_average_loss notes in the ``with`` block: the first trace has noted it."""
        context = active_replica_context()
        noted = 0 if context is None else len(context.counts)
        yield
        if context is not None:
            del context.counts[noted:]


def _arrays(leaves: Sequence[Any], num_rows: int) -> list[Any]:
    """Return the arrays among the leaves of an `aux`."""
    for x in leaves:
        if is_array(x) and (jnp.ndim(x) == 0 or x.shape[0] != num_rows):
            raise ArgumentError(
                "value_and_grad with accumulate_steps joins the auxiliary arrays of all micro-batches along their rows, but "
                f"one has shape {jnp.shape(x)} where the micro-batch has {num_rows} rows. Return one entry per example, and "
                "reduce it outside."
            )
    return [x for x in leaves if is_array(x)]
