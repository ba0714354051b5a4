"""Which context the code runs in: under which strategy, and inside or outside a replica function.

cross-replica context: ordinary code under a strategy's ``scope``. replica context: inside ``strategy.run``. Without any strategy
the default strategy's single replica is the context, as in tf.distribute. One stack per thread.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from ..errors import ArgumentTypeError, ContextError, MixedStrategyError
from ._collectives import Group, ReduceOp, SingleReplica, as_leaf, check_reducible, normalized_axis
from ._placement import Placement
from ._planning import Planning
from ._values import Mirrored, PerReplica, is_array, is_distributed


class ActiveStrategy(Protocol):
    """What the rooms below the strategies need of the strategy that is active."""

    @property
    def placement(self) -> Placement:
        """Where its replicas compute."""
        ...

    def on(self, placement: Placement) -> AbstractContextManager[None]:
        """Within the ``with`` block its replicas are somewhere else."""
        ...

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas compute in lockstep."""
        ...

    @property
    def strict(self) -> bool:
        """Whether sums that count gradients several times are errors."""
        ...

    @property
    def told(self) -> set[str]:
        """Which such sums have been told already."""
        ...


class ReplicaContext:
    """What a replica function knows of itself and how it talks to the other replicas.

    Get it with ``replicant.get_replica_context()`` inside ``strategy.run``. Semantics: tf.distribute.ReplicaContext.
    """

    def __init__(self, strategy: ActiveStrategy, group: Group, *, has_rows: bool = True):
        self._strategy = strategy
        self._group = group
        self._has_rows = has_rows
        self.counts: list[tuple[int, int, Any]] = []  # noted by compute_average_loss: rows, the count it was given, and the line

    @property
    def strategy(self) -> Any:
        """The Strategy whose ``run`` this is."""
        return self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas compute in lockstep."""
        return self._group.num_replicas

    @property
    def replica_id_in_sync_group(self) -> jax.Array:
        """This replica's number, 0 to num_replicas_in_sync - 1: an int32 scalar array, not a Python int."""
        return self._group.replica_id()

    def all_reduce(self, op: ReduceOp | str, value: Any) -> Any:
        """Combine `value` over all replicas; every replica gets the result.

        Args:
            op: "SUM" or "MEAN". MEAN of integers gives floats.
            value: array, or nested structure of arrays, of the same shapes and numeric dtypes on all replicas.

        Raises ArgumentError for another op, ArgumentTypeError for Python numbers, RaggedStepError for unequal shapes.
        The gradient of an all-reduce is the all-reduce of the incoming gradients.
        """
        parsed = ReduceOp.parse(op)
        leaves, tree = jax.tree.flatten(value)
        leaves = [as_leaf(leaf, "all_reduce") for leaf in leaves]
        for leaf in leaves:
            check_reducible(leaf, "all_reduce")
        return jax.tree.unflatten(tree, self._group.all_reduce(parsed, leaves))

    def all_gather(self, value: Any, axis: int) -> Any:
        """Concatenate `value` over all replicas along `axis`, in replica order; every replica gets the result.

        Args:
            value: array, or nested structure of arrays, of rank >= 1; sizes along `axis` may differ between replicas.
            axis: int in [-rank, rank).

        Raises ArgumentError for an axis out of range or scalars, RaggedStepError if other dimensions differ.
        """
        leaves, tree = jax.tree.flatten(value)
        leaves = [as_leaf(leaf, "all_gather") for leaf in leaves]
        axes = [normalized_axis(axis, leaf.ndim, "all_gather") for leaf in leaves]
        return jax.tree.unflatten(tree, [self._group.all_gather(x, k) for x, k in zip(leaves, axes, strict=True)])

    def merge_call(self, merge_fn: Callable[..., Any], args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Call ``merge_fn(strategy, *args, **kwargs)`` once, in cross-replica context, with the arguments of all replicas.

        Args:
            merge_fn: called with PerReplica values for arrays, and Python objects as they are; a PerReplica of those that differ,
                where replicas have different numbers of rows.
            args: this replica's positional arguments.
            kwargs: this replica's keyword arguments.

        Returns: this replica's part of a PerReplica result; any other result as it is.
        """
        if not isinstance(args, tuple | list):
            raise ArgumentTypeError(f"merge_call: args must be a tuple or list, got {type(args).__name__}.")
        leaves, tree = jax.tree.flatten((tuple(args), kwargs or {}))
        positions = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
        objects = [None if is_array(leaf) else leaf for leaf in leaves]
        frame: list[Any] = []

        def joint(columns: list[list[Any]], objects: Sequence[Any]) -> list[list[Any]]:
            merged = list(objects)
            for position, column in zip(positions, columns, strict=True):
                merged[position] = PerReplica(column) if len(column) > 1 else column[0]
            all_args, all_kwargs = jax.tree.unflatten(tree, merged)
            with entered(self._strategy, None):
                result = merge_fn(self._strategy, *all_args, **all_kwargs)
            answers, answer_tree = jax.tree.flatten(result, is_leaf=is_distributed)
            frame[:] = [answer_tree, [None if is_array(a) or is_distributed(a) else a for a in answers]]
            n = self.num_replicas_in_sync
            return [
                [jnp.asarray(v) for v in a.values] if is_distributed(a) else [jnp.asarray(a)] * n
                for a in answers
                if is_array(a) or is_distributed(a)
            ]

        arrays = iter(self._group.merge(joint, [jnp.asarray(leaves[i]) for i in positions], objects))
        answer_tree, static = frame
        return jax.tree.unflatten(answer_tree, [next(arrays) if a is None else a for a in static])


class _Stack(threading.local):
    def __init__(self) -> None:
        self.frames: list[tuple[ActiveStrategy, ReplicaContext | None]] = []


_stack = _Stack()
_default: dict[str, Any] = {}


def set_default_strategy(make: Callable[[], ActiveStrategy]) -> None:
    """Say how the default strategy is made, on first use (called once, by the module that defines it)."""
    _default["make"] = make


def default_strategy() -> ActiveStrategy:
    """The strategy that is active outside every scope: one replica on JAX's default device."""
    if "strategy" not in _default:
        _default["strategy"] = _default["make"]()
        _default["context"] = ReplicaContext(_default["strategy"], SingleReplica())
    return _default["strategy"]


def active_strategy() -> ActiveStrategy:
    """The strategy in whose scope or ``run`` this is called; the default strategy (one replica) outside of all."""
    return _stack.frames[-1][0] if _stack.frames else default_strategy()


def planning() -> Planning | None:
    """The plan in the making, if the active strategy is part of one."""
    return active_strategy().placement.planning


def has_strategy() -> bool:
    """Whether a strategy other than the default one is active."""
    return active_strategy() is not default_strategy()


def get_replica_context() -> ReplicaContext | None:
    """The current ReplicaContext; None in cross-replica context. Outside of all strategies, the default strategy's only one."""
    if _stack.frames and _stack.frames[-1][0] is not default_strategy():
        return _stack.frames[-1][1]
    default_strategy()
    return _default["context"]


def in_cross_replica_context() -> bool:
    """Whether this is cross-replica context: under a strategy, and not inside ``run``."""
    return get_replica_context() is None


def active_replica_context() -> ReplicaContext | None:
    """The replica context of a ``run`` in progress, the default strategy's included; None everywhere else."""
    return _stack.frames[-1][1] if _stack.frames else None


@contextmanager
def entered(strategy: ActiveStrategy, replica: ReplicaContext | None) -> Iterator[None]:
    """Make `strategy` current: in cross-replica context, or in the given replica context."""
    _stack.frames.append((strategy, replica))
    try:
        yield
    finally:
        _stack.frames.pop()


def require_cross_replica(strategy: ActiveStrategy, what: str, instead: str = "") -> None:
    """Raise unless `what` of `strategy` may be called here: not inside ``run``, not under another strategy."""
    if not _stack.frames:
        return
    current, replica = _stack.frames[-1]
    if replica is not None and current is not default_strategy():
        hint = instead or "call it outside of `run`, or from `get_replica_context().merge_call(...)`"
        raise ContextError(f"{what} needs cross-replica context, but was called inside `strategy.run`: {hint}.")
    if current is not strategy and current is not default_strategy():
        raise MixedStrategyError(
            f"Mixing different strategies: {what} of {strategy!r} was called while {current!r} is active. "
            "Use one strategy at a time: leave the other's scope first."
        )


def as_mirrored(value: Any, num_replicas: int) -> Any:
    """`value` as run returns it when it is the same on all replicas."""
    return value if num_replicas == 1 else Mirrored(value, num_replicas)
