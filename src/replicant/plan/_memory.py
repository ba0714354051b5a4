"""``strategy.memory``: the bytes that one training step needs on each of a strategy's own devices, and the batch that fits."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._display import columns, table
from ..errors import ArgumentError, ArgumentTypeError
from ..replicas._context import entered
from ..replicas._device_memory import check_limit, memory_of_device
from ..replicas._placement import Placement
from ..replicas._planning import Held, zeros
from ..replicas._values import PerReplica
from ._chips import Target
from ._compile import FoundStep, find_step
from ._make import total_bytes
from ._plan import memory_rows, of_which_gradients, size
from ._waiting import waiting

_MOST_COMPILED = 20  # programs in the search for the largest batch
_BY_LINE = 6  # the first of them are chosen by a line, the others halve what is left


@dataclasses.dataclass(frozen=True, repr=False)
class Memory:
    """The memory that one training step needs on each device.

    Attributes:
        num_devices: The number of devices.
        batch_size: The rows of the global batch.
        weights: The bytes of the trainable weights.
        untrained_weights: The bytes of the weights that are not trained.
        optimizer_state: The bytes of the optimizer's state.
        other_state: The bytes of metrics and other state.
        batch: The bytes of the batch.
        temporary: The bytes of all temporary arrays, of results and of the program, as the compiler says.
        limit: The bytes of a device's memory; None if nobody knows them.
        largest_batch: The rows of the largest global batch that fits into `limit`; None if no limit was given.
        num_replicas: The number of replicas; 0 for as many as devices.
        largest_gathered: The bytes of the largest variable that lies in slices, as each device has it while it computes. They are
            part of `temporary`. 0 if there is none.
        largest_gathered_name: The name of that variable.
    """

    num_devices: int
    batch_size: int
    weights: int
    untrained_weights: int
    optimizer_state: int
    other_state: int
    batch: int
    temporary: int
    limit: int | None = None
    largest_batch: int | None = None
    num_replicas: int = 0
    largest_gathered: int = 0
    largest_gathered_name: str = ""

    @property
    def gradients(self) -> int:
        """The bytes of the gradients, one for each trainable weight. They are part of `temporary`."""
        return of_which_gradients(self.weights, self.temporary)

    @property
    def activations(self) -> int:
        """The bytes of activations, gathered weights and other temporary arrays: what is left of `temporary`."""
        return self.temporary - self.gradients

    @property
    def bytes_per_device(self) -> int:
        """The bytes that each device must hold at once."""
        held = self.weights + self.untrained_weights + self.optimizer_state + self.other_state + self.batch
        return held + self.temporary

    @property
    def fits(self) -> bool:
        """Whether this fits into `limit`. True if there is none."""
        return self.limit is None or self.bytes_per_device <= self.limit

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the table, each with a name and a value."""
        known = "" if self.limit is None else f" of {size(self.limit)}"
        rows = [
            (
                "batch per replica",
                f"{self.batch_size // (self.num_replicas or self.num_devices)} rows (global batch {self.batch_size})",
            ),
            *memory_rows(self, self.batch, self.temporary),
            *([("largest variable, gathered", self._gathered())] if self.largest_gathered else []),
            ("each device holds", f"{size(self.bytes_per_device)}{known}"),
        ]
        if self.limit is not None:
            rows.append(("does it fit", "yes" if self.fits else f"NO, by {size(self.bytes_per_device - self.limit)}"))
        if self.largest_batch is not None:
            rows.append(("largest global batch that fits", str(self.largest_batch or "none")))
        return rows

    def _gathered(self) -> str:
        known = self.limit is not None and self.largest_gathered > self.limit
        return f"{size(self.largest_gathered)} ({self.largest_gathered_name}){', MORE than a device holds' if known else ''}"

    def __str__(self) -> str:
        return "\n".join(columns(self.rows(), left=(0, 1)))

    def __repr__(self) -> str:
        return f"<Memory of a batch of {self.batch_size} rows: {size(self.bytes_per_device)} on each of {self.num_devices} devices>"

    def _repr_html_(self) -> str:
        return table(self.rows())


def memory_of(strategy: Any, model: Any, batch: Any, limit: float | None) -> Memory:
    """Return the memory of a training step under a strategy, for ``strategy.memory``."""
    train, rows, limit = _training(model), _rows(batch), check_limit(limit, "memory")
    devices = strategy.placement.devices or tuple(jax.devices()[:1])
    num_replicas = strategy.num_replicas_in_sync
    if strategy.placement.world is not None:
        raise ArgumentError(
            f"memory works for the devices of one process, but {strategy!r} spans several. Use strategy.plan(fn, args, "
            "topology='gpu:8xh100'), or `replicant plan`, for those."
        )
    if rows % num_replicas:
        raise ArgumentError(
            f"memory needs a batch that the replicas can share evenly; got {rows} rows for {num_replicas} replicas. Pass a "
            f"multiple of {num_replicas} rows, for example {rows + -rows % num_replicas}."
        )

    def needed(rows_per_replica: int) -> Memory:
        count = rows_per_replica * num_replicas
        shaped = jax.tree.map(lambda x: zeros((count, *x.shape[1:]), x.dtype), batch, is_leaf=_has_shape)
        return _compiled(strategy, lambda: train(strategy, shaped), devices, count, limit)

    with waiting("memory"):
        found = needed(rows // num_replicas)
        if limit is None:
            return dataclasses.replace(found, limit=memory_of_device(devices[0]))
        most = largest(lambda k: needed(k).bytes_per_device, rows // num_replicas, limit, found.bytes_per_device)
    return dataclasses.replace(found, largest_batch=most * num_replicas)


def _has_shape(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _rows(batch: Any) -> int:
    """Return the number of rows of a global batch."""
    leaves: list[Any] = jax.tree.leaves(batch, is_leaf=_has_shape)
    wrong = [x for x in leaves if not _has_shape(x) or isinstance(x, PerReplica)]
    if wrong or not leaves:
        raise ArgumentTypeError(
            "memory takes a global batch of arrays, or of objects with a shape and a dtype, such as jax.ShapeDtypeStruct; got "
            f"{(wrong[0] if wrong else batch)!r} of type {type(wrong[0] if wrong else batch).__name__}."
        )
    counts: set[int] = {x.shape[0] if x.shape else 0 for x in leaves}
    if len(counts) > 1 or 0 in counts:
        shapes = ", ".join(str(tuple(x.shape)) for x in leaves)
        raise ArgumentError(f"memory: all arrays of a batch must have the same number of rows, at least one; got shapes {shapes}.")
    return counts.pop()


def _training(model: Any) -> Callable[[Any, Any], None]:
    """Return a function that trains one step on a global batch, under a strategy."""
    if hasattr(model, "train_on_batch"):
        return lambda _, batch: _train_model(model, batch)
    if not callable(model):
        raise ArgumentTypeError(
            f"memory takes a compiled Keras model, a function that makes one, or a step for `run`; got {model!r} of type "
            f"{type(model).__name__}."
        )
    fn = getattr(model, "python_function", model)
    if inspect.signature(fn).parameters:
        return lambda strategy, batch: strategy.run(fn, args=(_shared(batch, strategy.num_replicas_in_sync),))

    def make_and_train(strategy: Any, batch: Any) -> None:
        with strategy.scope():
            made = model()
        if not hasattr(made, "train_on_batch"):
            raise ArgumentTypeError(f"memory: {fn.__qualname__} must return a compiled Keras model; it returned {made!r}.")
        _train_model(made, batch)

    return make_and_train


def _train_model(model: Any, batch: Any) -> None:
    before, model.train_function = model.train_function, None  # one that is there already would train
    try:
        model.train_on_batch(*(batch if isinstance(batch, tuple) else (batch,)))
    finally:
        model.train_function = before


def _shared(batch: Any, num_replicas: int) -> Any:
    """Return a replica's batch, or all replicas' batches, of zeros."""
    if num_replicas == 1:
        return batch
    return jax.tree.map(
        lambda x: PerReplica.from_stacked(zeros((num_replicas, x.shape[0] // num_replicas, *x.shape[1:]), x.dtype)), batch
    )


def _compiled(strategy: Any, train: Callable[[], None], devices: Sequence[Any], rows: int, limit: int | None) -> Memory:
    """Compile the step that `train` computes, for each device by itself, and return what it needs. Nothing is computed."""
    n = strategy.num_replicas_in_sync
    with entered(strategy, None):
        step = find_step(train, Target("these devices", "here", len(devices), None), strategy, keeps=True)
    held, temporary = _held_and_temporary(step, Placement(tuple(devices)))
    gathered = [x for x in held if x.layout == "sliced" and x.kind in ("weights", "untrained weights")]
    most = max(gathered, key=lambda x: x.bytes_in_use, default=None)
    return Memory(
        len(devices),
        rows,
        total_bytes(held, "weights", n),
        total_bytes(held, "untrained weights", n),
        total_bytes(held, "optimizer state", n),
        total_bytes(held, "other state", n),
        total_bytes(held, "batch", n),
        temporary,
        limit,
        num_replicas=n,
        largest_gathered=0 if most is None else most.bytes_in_use,
        largest_gathered_name="" if most is None else most.name,
    )


def _held_and_temporary(step: FoundStep, placement: Placement) -> tuple[Sequence[Held], int]:
    memory = step.lower(placement).compile().memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return step.held_on(placement), memory.temp_size_in_bytes + max(0, results) + memory.generated_code_size_in_bytes


def largest(needed: Callable[[int], int], start: int, limit: int, needed_at_start: int) -> int:
    """Return the largest number for which `needed`, which grows with it, is at most `limit`; 0 if there is none.

    Each call of `needed` is dear. If many of them do not decide, the result is the largest number known to fit.

    >>> largest(lambda rows: 100 + 7 * rows, 8, 1000, 156)
    128
    """
    known = {start: needed_at_start}
    low, high = (start, None) if needed_at_start <= limit else (0, start)
    while (high is None or high - low > 1) and len(known) < _MOST_COMPILED:
        rows = _guess(known, low, high, limit)
        known[rows] = needed(rows)
        low, high = (rows, high) if known[rows] <= limit else (low, rows)
    return low


def _guess(known: dict[int, int], low: int, high: int | None, limit: int) -> int:
    """Return a number above `low` and below `high`: first where a line through two known points meets the limit, then halfway."""
    halfway = 2 * low if high is None else (low + high) // 2
    guess = halfway
    if 1 < len(known) <= _BY_LINE:
        a, b = (low, high) if low in known and high in known else (min(known), max(known))
        slope = (known[b] - known[a]) / (b - a)
        if slope > 0:
            guess = a + math.floor((limit - known[a]) / slope)
        if guess <= low:
            guess = low + 1 if low - 1 not in known else halfway  # which does not fit if each row takes as much
    return max(low + 1, guess if high is None else min(guess, high - 1))
