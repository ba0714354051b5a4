"""The context that code runs in: under which strategy, and inside or outside a replica function.

Ordinary code under a strategy's ``scope`` is in cross-replica context, and code inside ``strategy.run`` is in replica context.
Without a strategy, the single replica of the default strategy is the context, as in tf.distribute. Each thread has its own stack.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from ..errors import ArgumentTypeError, ContextError, MixedStrategyError
from ._collectives import Group, ReduceOp, SingleReplica, as_leaf, check_reducible, normalized_axis
from ._own_mesh import mesh_is_set, without_mesh
from ._placement import Placement
from ._planning import Planning
from ._values import Mirrored, PerReplica, is_array, is_distributed


class ActiveStrategy(Protocol):
    """What the rooms below the strategies need from the active strategy."""

    @property
    def placement(self) -> Placement:
        """Where its replicas compute."""
        ...

    def on(self, placement: Placement) -> AbstractContextManager[None]:
        """Let its replicas compute on another placement in the ``with`` block."""
        ...

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas that compute in lockstep."""
        ...

    @property
    def strict(self) -> bool:
        """Whether a sum that counts a gradient several times is an error."""
        ...

    @property
    def told(self) -> set[str]:
        """The warnings about such sums that have already been given."""
        ...


class ReplicaContext:
    """Tells a replica function which replica it is, and lets it exchange values with the other replicas.

    Call ``replicant.get_replica_context()`` inside ``strategy.run`` to get it.

    The collectives of JAX work there as well. For them, the axis of the replicas is ``"replica"``, as in
    ``jax.lax.psum(x, "replica")``, and they count replicas, not rows.

    Semantics: tf.distribute.ReplicaContext.

    >>> import jax.numpy as jnp, replicant
    >>> strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    >>> def step():
    ...     context = replicant.get_replica_context()
    ...     return context.all_reduce("SUM", jnp.float32(context.replica_id_in_sync_group))
    >>> print(strategy.run(step).value)
    1.0
    """

    def __init__(self, strategy: ActiveStrategy, group: Group, *, has_rows: bool = True):
        self._strategy = strategy
        self._group = group
        self._has_rows = has_rows
        # What compute_average_loss notes: the number of rows, the batch size that it was given (or None), and the line of the call.
        self.counts: list[tuple[int, int | None, Any]] = []

    @property
    def strategy(self) -> Any:
        """The Strategy whose ``run`` this is."""
        return self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas that compute in lockstep."""
        return self._group.num_replicas

    @property
    def replica_id_in_sync_group(self) -> jax.Array:
        """This replica's number, from 0 to ``num_replicas_in_sync - 1``, as an int32 scalar array and not a Python int."""
        return self._group.replica_id()

    def all_reduce(self, op: ReduceOp | str, value: Any) -> Any:
        """Combine `value` over all replicas, and give every replica the result.

        The gradient of an all-reduce is the all-reduce of the incoming gradients, even where the replicas have different numbers
        of rows.

        Args:
            op: ``"SUM"`` or ``"MEAN"``, or a ReduceOp. MEAN of integers gives floats.
            value: An array of a numeric dtype, or a nested structure of such arrays, with the same shapes on all replicas.

        Returns:
            The combined value, in the structure and shapes of `value`.

        Raises:
            ArgumentError: If `op` is neither SUM nor MEAN.
            ArgumentTypeError: For Python numbers, and for dtypes that cannot be added.
            RaggedStepError: If the shapes differ between replicas.
        """
        parsed = ReduceOp.parse(op)
        leaves, tree = jax.tree.flatten(value)
        leaves = [as_leaf(leaf, "all_reduce") for leaf in leaves]
        for leaf in leaves:
            check_reducible(leaf, "all_reduce")
        return jax.tree.unflatten(tree, self._group.all_reduce(parsed, leaves))

    def all_gather(self, value: Any, axis: int) -> Any:
        """Concatenate `value` over all replicas along `axis`, in replica order, and give every replica the result.

        The gradient of a replica's value is its part of the sum of the incoming gradients of all replicas. So a loss that compares
        its rows with all rows, as those of SimCLR and CLIP do, has the gradient of one device, once the replicas' gradients are
        added up.

        Args:
            value: An array of rank >= 1, or a nested structure of such arrays. Sizes along `axis` may differ between replicas.
            axis: An int in [-rank, rank).

        Returns:
            The concatenated value, in the structure of `value`.

        Raises:
            ArgumentError: If `axis` is out of range, and for scalars.
            ArgumentTypeError: For Python numbers, and if `axis` is not an int.
            RaggedStepError: If other dimensions differ between replicas.
        """
        leaves, tree = jax.tree.flatten(value)
        leaves = [as_leaf(leaf, "all_gather") for leaf in leaves]
        axes = [normalized_axis(axis, leaf.ndim, "all_gather") for leaf in leaves]
        return jax.tree.unflatten(tree, [self._group.all_gather(x, k) for x, k in zip(leaves, axes, strict=True)])

    def merge_call(self, merge_fn: Callable[..., Any], args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Call ``merge_fn(strategy, *args, **kwargs)`` once, in cross-replica context, with the arguments of all replicas.

        Args:
            merge_fn: A function that gets a PerReplica value for each array, and Python objects as they are. If replicas have
                different numbers of rows, it gets a PerReplica value of the objects that differ.
            args: This replica's positional arguments.
            kwargs: This replica's keyword arguments.

        Returns:
            This replica's part of a PerReplica result, and any other result as it is.

        Raises:
            ArgumentTypeError: If `args` is neither a tuple nor a list.
        """
        if not isinstance(args, tuple | list):
            raise ArgumentTypeError(
                f"merge_call: args must be a tuple or list; got {type(args).__name__}. Write args=(value,) for one argument."
            )
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


class _OfProgram:
    """The strategy of the whole program, in all threads: it is active outside all scopes, in place of the default strategy."""

    def __init__(self) -> None:
        self.make: Callable[[], ActiveStrategy] | None = None
        self.strategy: ActiveStrategy | None = None
        self._lock = threading.Lock()

    def get(self) -> ActiveStrategy | None:
        """Return the strategy, and make it if this is its first use; None if the program has none."""
        if self.strategy is None and self.make is not None:
            with self._lock, entered(default_strategy(), None):  # what makes it asks which strategy is active
                self.strategy = self.strategy or self.make()
        return self.strategy


_NOTHING = nullcontext()
_stack = _Stack()
_default: dict[str, Any] = {}
_of_program = _OfProgram()


def set_program_strategy(make: Callable[[], ActiveStrategy] | None) -> None:
    """Set the function that makes the strategy of the whole program at its first use; None for a program without one."""
    _of_program.make, _of_program.strategy = make, None


def has_program_strategy() -> bool:
    """Whether the whole program has a strategy, even if that is not made yet."""
    return _of_program.make is not None


def program_strategy_is_made() -> bool:
    """Whether the strategy of the whole program is made."""
    return _of_program.strategy is not None


def set_default_strategy(make: Callable[[], ActiveStrategy]) -> None:
    """Set the function that makes the default strategy at its first use. The module that defines that strategy calls this once."""
    _default["make"] = make


def default_strategy() -> ActiveStrategy:
    """Return the strategy that is active outside all scopes: one replica on JAX's default device."""
    if "strategy" not in _default:
        _default["strategy"] = _default["make"]()
        _default["context"] = ReplicaContext(_default["strategy"], SingleReplica())
    return _default["strategy"]


def active_strategy() -> ActiveStrategy:
    """Return the strategy in whose scope or ``run`` this is called; outside all scopes, that of the program, or the default one."""
    return _stack.frames[-1][0] if _stack.frames else _of_program.get() or default_strategy()


def planning() -> Planning | None:
    """Return the plan that is being made, if the active strategy is part of one."""
    return active_strategy().placement.planning


def has_strategy() -> bool:
    """Whether a strategy other than the default one is active."""
    return active_strategy() is not default_strategy()


def get_replica_context() -> ReplicaContext | None:
    """Return the current ReplicaContext, or None in cross-replica context.

    Outside all strategies, this is the context of the default strategy's only replica.
    """
    if _stack.frames and _stack.frames[-1][0] is not default_strategy():
        return _stack.frames[-1][1]
    if not _stack.frames and has_program_strategy():
        return None
    default_strategy()
    return _default["context"]


def in_cross_replica_context() -> bool:
    """Whether this is called in cross-replica context, which is under a strategy but not inside ``run``."""
    return get_replica_context() is None


def active_replica_context() -> ReplicaContext | None:
    """Return the replica context of the current ``run``, that of the default strategy included; None outside ``run``."""
    return _stack.frames[-1][1] if _stack.frames else None


@contextmanager
def entered(strategy: ActiveStrategy, replica: ReplicaContext | None) -> Iterator[None]:
    """Make `strategy` active in the ``with`` block, in the given replica context, or in cross-replica context if it is None."""
    with without_mesh(bool(strategy.placement.devices)) if mesh_is_set() else _NOTHING:
        _stack.frames.append((strategy, replica))
        try:
            yield
        finally:
            _stack.frames.pop()


def require_cross_replica(strategy: ActiveStrategy, what: str, instead: str = "") -> None:
    """Check that `what` of `strategy` may be called here. `instead` says what to write inside ``run``.

    Raises:
        ContextError: Inside ``run``.
        MixedStrategyError: Under another strategy.
    """
    if not _stack.frames:
        if (whole := _of_program.get()) not in (None, strategy):
            raise MixedStrategyError(
                f"Mixing different strategies: {what} of {strategy!r} was called, but `replicant run --strategy` has made "
                f"{whole!r} the strategy of the whole program. Leave --strategy out, or let the program use "
                "replicant.get_strategy()."
            )
        return
    current, replica = _stack.frames[-1]
    if replica is not None and current is not default_strategy():
        hint = instead or "call it outside `run`, or from `get_replica_context().merge_call(...)`"
        raise ContextError(f"{what} needs cross-replica context, but was called inside `strategy.run`: {hint}.")
    if current is not strategy and current is not default_strategy():
        raise MixedStrategyError(
            f"Mixing different strategies: {what} of {strategy!r} was called while {current!r} is active. "
            "Leave the scope of the other strategy first."
        )


def as_mirrored(value: Any, num_replicas: int) -> Any:
    """Return a value that is the same on all replicas in the form in which ``run`` returns it."""
    return value if num_replicas == 1 else Mirrored(value, num_replicas)
