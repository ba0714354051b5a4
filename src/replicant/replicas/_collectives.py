"""All-reduce and all-gather inside a replica function. Only this file names ``lax.psum`` and the other collectives.

A replica context uses one of three groups. They differ in how the replicas run, never in what they compute:

* ``SingleReplica``: one replica, which has nothing to exchange.
* ``MeshAxis``: one SPMD program for equal replicas, under ``jax.shard_map``.
* ``RaggedGroup``: replicas of different sizes, traced one by one (see ``programs/steps/_ragged_exchanges.py``).

``shard_map`` runs with ``check_vma=False``, so a gradient that is taken inside a replica belongs to that replica. The gradient of
an all-reduce is the all-reduce of the incoming gradients, as in TensorFlow.
"""

import enum
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.interpreters import mlir

from ..errors import ArgumentError, ArgumentTypeError
from ._copies import VariableAggregation
from ._model_axis import MODEL, ModelCut, spec_of

AXIS = "replica"  # the name of the mesh axis of all replicas
ALL, SMALL = sys.maxsize, 8_192  # elements: which arrays are joined before they are summed


class ReduceOp(enum.Enum):
    """How the values of several replicas are combined. The strings "SUM" and "MEAN", in any case, are accepted everywhere.

    >>> ReduceOp.parse("sum")
    <ReduceOp.SUM: 'SUM'>
    """

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def parse(cls, op: "ReduceOp | str") -> "ReduceOp":
        """Return the ReduceOp that `op` is or names.

        Raises:
            ArgumentError: If there is no such op.
        """
        if isinstance(op, cls):
            return op
        if isinstance(op, str) and op.upper() in cls.__members__:
            return cls[op.upper()]
        raise ArgumentError(f"{op!r} is not a valid ReduceOp: use ReduceOp.SUM or ReduceOp.MEAN (or their names as strings).")


class Group(Protocol):
    """The replicas that one replica belongs to."""

    num_replicas: int

    def replica_id(self) -> jax.Array: ...
    def all_reduce(self, op: ReduceOp, leaves: Sequence[jax.Array]) -> list[jax.Array]: ...
    def all_gather(self, leaf: jax.Array, axis: int) -> jax.Array: ...
    def merge(self, fn: Callable[..., Any], leaves: Sequence[jax.Array], objects: Sequence[Any]) -> list[jax.Array]: ...


def as_leaf(value: Any, what: str) -> jax.Array:
    """Return `value` as an array to exchange.

    Raises:
        ArgumentTypeError: For Python numbers and other objects, because they are the same on all replicas.
    """
    if isinstance(value, bool | int | float | complex) or not hasattr(value, "dtype"):
        raise ArgumentTypeError(
            f"{what} takes arrays; got {value!r} of type {type(value).__name__}, which is the same on every replica. "
            "If you want to combine one copy per replica, convert it: jnp.asarray(x)."
        )
    return jnp.asarray(value)


def check_reducible(leaf: Any, what: str) -> None:
    """Raise ArgumentTypeError for booleans and strings, which cannot be added."""
    if leaf.dtype == bool or leaf.dtype.kind in "OSU":
        raise ArgumentTypeError(f"{what} cannot add values of dtype {leaf.dtype}: convert them to a numeric dtype first.")


def normalized_axis(axis: Any, rank: int, what: str) -> int:
    """Return `axis` of a value of rank `rank`, counted from the front.

    Raises:
        ArgumentError: If it is out of range.
        ArgumentTypeError: If it is not an int.
    """
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise ArgumentTypeError(f"{what}: axis must be an int; got {axis!r}.")
    if rank == 0:
        raise ArgumentError(f"{what}: axis={axis} is out of range, because each replica's value is a scalar (rank 0).")
    if not -rank <= axis < rank:
        raise ArgumentError(f"{what}: axis={axis} is out of range for values of rank {rank}; it must be in [{-rank}, {rank}).")
    return axis % rank


def mean_of(total: jax.Array, count: Any) -> jax.Array:
    """Return `total` / `count`; integers become the default float dtype."""
    return total / jnp.asarray(count, total.dtype) if jnp.issubdtype(total.dtype, jnp.inexact) else total / count


class SingleReplica:
    """A group of one."""

    num_replicas = 1

    def replica_id(self) -> jax.Array:
        return jnp.zeros((), jnp.int32)

    def all_reduce(self, op: ReduceOp, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        return [mean_of(x, 1) if op is ReduceOp.MEAN else x for x in leaves]

    def all_gather(self, leaf: jax.Array, axis: int) -> jax.Array:
        return leaf

    def merge(self, fn: Callable[..., Any], leaves: Sequence[jax.Array], objects: Sequence[Any]) -> list[jax.Array]:
        return [answer[0] for answer in fn([[x] for x in leaves], objects)]


class MeshAxis:
    """Equal replicas along the mesh axis of a ``shard_map``.

    Args:
        num_replicas: The number of replicas.
        bucket: Leaves of up to so many elements are sent as one flat vector for each dtype, for backends to which each array is an
            exchange of its own: ALL for gloo, SMALL for the threads of a process, and 0 for those that combine sums by themselves.
        bytes_per_pack: The largest piece of such a vector, in bytes; 0 sends it in one piece.
        scatter: Whether sums of which each replica needs a slice are made by a reduce-scatter.
        rest: With a model axis, a function that returns the axis along which a variable of some shape is cut over it at rest.
    """

    def __init__(
        self,
        num_replicas: int,
        bucket: int,
        bytes_per_pack: int = 0,
        rest: Callable[[tuple[int, ...]], int | None] | None = None,
        scatter: bool = False,
    ):
        self.num_replicas = num_replicas
        self._bucket = bucket
        self._bytes_per_pack = bytes_per_pack
        self._rest = rest
        self._scatter = scatter

    def replica_id(self) -> jax.Array:
        return lax.axis_index(AXIS)

    def all_reduce(self, op: ReduceOp, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        sums = self._sum(leaves)
        return [mean_of(x, self.num_replicas) for x in sums] if op is ReduceOp.MEAN else sums

    def _sum(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        buckets: dict[Any, list[int]] = {}
        for i, leaf in enumerate(leaves):
            buckets.setdefault(leaf.dtype if leaf.size <= self._bucket else i, []).append(i)
        alone = [i for indices in buckets.values() if len(indices) == 1 for i in indices]
        sums = dict(zip(alone, lax.psum([leaves[i] for i in alone], AXIS), strict=True))
        for indices in buckets.values():
            if len(indices) > 1:
                parts = [leaves[i] for i in indices]
                flat = self._flat_sum(_joined([part.ravel() for part in parts]))
                sums.update(zip(indices, _cut_like(parts, flat), strict=True))
        return [sums[i] for i in range(len(leaves))]

    def _flat_sum(self, flat: jax.Array) -> jax.Array:
        size = self._bytes_per_pack // flat.dtype.itemsize
        if self._bytes_per_pack == 0 or flat.size <= max(1, size):
            return lax.psum(flat, AXIS)
        starts = range(0, flat.size, max(1, size))
        return _joined([lax.psum(flat[start : start + max(1, size)], AXIS) for start in starts])

    def all_gather(self, leaf: jax.Array, axis: int) -> jax.Array:
        return _all_gather(leaf, axis)

    def sums_of_slices(self, leaves: Sequence[jax.Array], axes: Sequence[int]) -> list[jax.Array]:
        """Sum each leaf over the replicas, and return this replica's slice of each sum along its axis."""
        if self._rest is not None:
            options = {"num_replicas": self.num_replicas, "scatter": self._scatter}
            rests = [self._rest(x.shape) for x in leaves]
            return [sum_p.bind(x, axis=k, rest=rest, **options) for x, k, rest in zip(leaves, axes, rests, strict=True)]
        if self._scatter:
            return [lax.psum_scatter(x, AXIS, scatter_dimension=k, tiled=True) for x, k in zip(leaves, axes, strict=True)]
        # After a reduce-scatter, every later sum over gloo is up to 50 times slower. So sum, then slice.
        me, n = self.replica_id(), self.num_replicas
        sums = self._sum(leaves)
        sizes = [x.shape[k] // n for x, k in zip(leaves, axes, strict=True)]
        return [lax.dynamic_slice_in_dim(x, me * size, size, k) for x, k, size in zip(sums, axes, sizes, strict=True)]

    def merge(self, fn: Callable[..., Any], leaves: Sequence[jax.Array], objects: Sequence[Any]) -> list[jax.Array]:
        n, me = self.num_replicas, self.replica_id()
        columns = [[row[i] for i in range(n)] for row in (lax.all_gather(x, AXIS) for x in leaves)]
        return [lax.dynamic_index_in_dim(jnp.stack(a), me, keepdims=False) if len(a) > 1 else a[0] for a in fn(columns, objects)]

    def sync(self, aggregation: VariableAggregation, value: jax.Array, rows_only: bool) -> jax.Array:
        match aggregation:
            case VariableAggregation.SUM:
                return lax.psum(value, AXIS)
            case VariableAggregation.MEAN:
                return (lax.psum(value, AXIS) / self.num_replicas).astype(value.dtype)
            case _:
                return lax.psum(jnp.where(self.replica_id() == 0, value, jnp.zeros_like(value)), AXIS)


def _joined(vectors: Sequence[jax.Array]) -> jax.Array:
    """Join vectors. XLA on CPU would look up the vector of each number if it computed the vectors in the same loop."""
    return lax.concatenate(lax.optimization_barrier(list(vectors)), 0)


def _cut_like(leaves: Sequence[jax.Array], flat: jax.Array) -> list[jax.Array]:
    """Cut a vector into arrays of the shapes of `leaves`.

    Small ones are cut before anything is computed with them. With a cut of its own in each, XLA would compile every update of a
    variable by itself, and take twice as long; so it compiles those of one shape once.
    """
    parts, start = list[jax.Array](), 0
    for leaf in leaves:
        parts.append(flat[start : start + leaf.size].reshape(leaf.shape))
        start += leaf.size
    small = [i for i, part in enumerate(parts) if part.size <= SMALL]
    for i, part in zip(small, lax.optimization_barrier([parts[i] for i in small]), strict=True):
        parts[i] = part
    return parts


# sum_p sums an array over the replicas, each of several devices, and gives a replica its slice along `axis`, which is cut along
# `rest` over its devices. In a trace, it is one operation that checks can find. `scatter`: whether by a reduce-scatter.
sum_p = jex.Primitive("replicant_sum_of_slices")


@sum_p.def_abstract_eval
def _shape_of_sum(leaf: Any, *, axis: int, num_replicas: int, **_: Any) -> Any:
    return ShapedArray(tuple(n // num_replicas if i == axis else n for i, n in enumerate(leaf.shape)), leaf.dtype)


def _sum_of_slices(leaf: jax.Array, *, axis: int, rest: int | None, num_replicas: int, scatter: bool) -> jax.Array:
    def sum_part(part: jax.Array) -> jax.Array:
        if scatter:
            total = lax.psum_scatter(part, AXIS, scatter_dimension=axis, tiled=True)
        else:
            size = part.shape[axis] // num_replicas
            total = lax.dynamic_slice_in_dim(lax.psum(part, AXIS), lax.axis_index(AXIS) * size, size, axis)
        if rest != axis:
            return total
        size = total.shape[axis] // lax.axis_size(MODEL)
        return lax.dynamic_slice_in_dim(total, lax.axis_index(MODEL) * size, size, axis)

    return _on_each_device(sum_part, None if rest == axis else rest, rest)(leaf)


mlir.register_lowering(sum_p, mlir.lower_fun(_sum_of_slices, multiple_results=False))


def _on_each_device(fn: Callable[[jax.Array], jax.Array], cut_before: int | None, cut_after: int | None) -> Callable[..., Any]:
    """Let each device of a replica call `fn` on its part. XLA would not cut a collective over the replicas by itself."""
    before, after = spec_of(cut_before), spec_of(cut_after)
    return jax.shard_map(fn, axis_names={MODEL}, in_specs=before, out_specs=after, check_vma=False)


def gather_over_model(part: jax.Array, axis: int, cut: ModelCut) -> jax.Array:
    """Gather a variable from the slices of all replicas along `axis`, and leave it cut as it is in use."""
    if cut.rest == axis:  # blocks of replicas, each of blocks of devices
        names, during, after = (AXIS, MODEL), axis, None
    else:
        during = after = cut.use if cut.use not in (None, axis) else cut.rest
        names = (AXIS,)
    whole = _on_each_device(lambda x: lax.all_gather(x, names, axis=axis, tiled=True), during, after)(part)
    return whole if after == cut.use else in_use(whole, cut)


def in_use(array: jax.Array, cut: ModelCut) -> jax.Array:
    """Cut an array that a replica has over its devices."""
    return lax.with_sharding_constraint(array, spec_of(cut.use))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _all_gather(leaf: jax.Array, axis: int) -> jax.Array:
    return lax.all_gather(leaf, AXIS, axis=axis, tiled=True)


def _all_gather_forward(leaf: jax.Array, axis: int) -> tuple[jax.Array, int]:
    return _all_gather(leaf, axis), leaf.shape[axis]


def _all_gather_backward(axis: int, size: int, upstream: jax.Array) -> tuple[jax.Array]:
    # JAX's own rule is a reduce-scatter, after which every later sum over gloo is up to 50 times slower. So sum, then slice.
    total = lax.psum(upstream, AXIS)
    return (lax.dynamic_slice_in_dim(total, lax.axis_index(AXIS) * size, size, axis),)


_all_gather.defvjp(_all_gather_forward, _all_gather_backward)
