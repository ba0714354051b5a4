"""The training step of ``fit`` in micro-batches, with the numbers of the whole batch.

Each replica cuts its rows into micro-batches, computes one after the other, and adds up their gradients. After the last one, the
replicas add up theirs. So the step is written for one replica, under ``jax.shard_map``. Around it, the optimizer and the metrics
see what they see in Keras's own step: the gradients and the outputs of the whole batch.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import PartitionSpec

from .._accumulate import check_steps
from ..errors import ArgumentError, ArgumentTypeError
from ..reductions._micro_batches import Kind, kinds
from ..replicas._collectives import AXIS, MeshAxis, ReduceOp, SingleReplica
from ..replicas._micro import MicroBatch, in_micro_batch
from ..replicas._placement import Placement
from ..tracing._gathered import gathered_p, vjp
from ._batch_statistics import asks_for_replica_statistics
from ._gathered_weights import follows_keras
from ._loss_sums import InLayers, LossSums, summing
from ._recurrent import in_global_view, placement_of_step

_ASKED = "_replicant_accumulate_steps"


def use_micro_batches(model: Any, accumulate_steps: int) -> None:
    """Make ``fit`` compute each batch of `model` in micro-batches, with the memory of one micro-batch's activations.

    Loss, metrics, gradients and weights are those of the whole batch, also for a batch that does not divide, and with sample
    weights and masks: sums and their divisors are added up. Each replica cuts its rows into `accumulate_steps` micro-batches. The
    replicas sum their gradients once, after the last one, so each of them holds the gradients of all weights until then. Only
    ``BatchNormalization`` gives other numbers, since it normalizes each micro-batch by its own statistics (ReductionWarning says
    so), and so do random layers, which draw for each micro-batch. ``evaluate`` and ``predict`` stay as they are.

    Metrics of ``compile`` get the outputs of the whole batch. If there are such metrics, these outputs are kept until the end.

    Args:
        model: A ``keras.Model``, compiled or not, under a synchronous strategy or none. The setting belongs to this object: call
            the function again for a copy, or for a model that you load from a file.
        accumulate_steps: The number of micro-batches of each replica; 1 computes whole batches again. A replica with fewer rows
            has fewer micro-batches.

    Raises:
        ArgumentTypeError: If `model` is not a ``keras.Model``, or `accumulate_steps` not an int.
        ArgumentError: If `accumulate_steps` is less than 1. From `fit`: if the model has a ``train_step``, ``compute_loss`` or
            ``compute_loss_and_updates`` of its own; if a loss gives one number for all rows; if a layer adds a loss that is
            neither a sum nor a mean over rows; if steps are not compiled; under a ParameterServerStrategy, or a
            FullyShardedStrategy with a model axis.

    >>> import keras, replicant
    >>> with replicant.MirroredStrategy().scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> replicant.keras.use_micro_batches(model, accumulate_steps=8)
    """
    if not isinstance(model, keras.Model):
        raise ArgumentTypeError(f"use_micro_batches: model must be a keras.Model; got {type(model).__name__}.")
    model.__dict__[_ASKED] = check_steps(accumulate_steps, "use_micro_batches")  # no attribute of the layer: Keras would track it
    model.train_function = None  # as compile does, so that the step is traced again


def asked_steps(model: Any) -> int:
    """Return into how many micro-batches a model's batches are cut."""
    return model.__dict__.get(_ASKED, 1)


def in_parts(model: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a model's training step, computed in micro-batches if the model asks for it."""
    steps = asked_steps(model)
    if steps == 1 or computes_parts(step):
        return step
    own = [name for name in ("train_step", "compute_loss_and_updates", "compute_loss") if _is_own(model, name)]
    if own or not follows_keras(model):
        raise ArgumentError(
            f"use_micro_batches: {type(model).__name__} has a {own[0]} of its own, and it is not known how its micro-batches make "
            "the whole batch. Leave the step to Keras, or write a custom loop with replicant.value_and_grad(fn, variables, "
            "accumulate_steps=...)."
        )
    if asks_for_replica_statistics(model):
        raise ArgumentError(
            "use_micro_batches and use_replica_statistics contradict each other: in micro-batches, a BatchNormalization uses the "
            "statistics of one micro-batch of one replica. Use one of the two."
        )
    return MicroBatchStep(model, steps)


def computes_parts(step: Any) -> bool:
    """Whether a step, or one that it wraps, computes micro-batches."""
    while step is not None and not isinstance(step, MicroBatchStep):
        step = getattr(step, "__wrapped__", None)
    return step is not None


def _is_own(model: Any, name: str) -> bool:
    return name in vars(model) or getattr(type(model), name) is not getattr(keras.Model, name)


class MicroBatchStep:
    """Keras's training step, ``(state, data) -> (logs, state)``, in micro-batches.

    Args:
        model: The model.
        steps: The number of micro-batches of each replica.
    """

    def __init__(self, model: Any, steps: int):
        self._model, self._steps = model, steps
        self.__name__ = "train_step"

    def __call__(self, state: Any, data: Any) -> Any:
        """Compute the step in a trace, for the devices of that trace.

        Raises:
            ArgumentError: If the step is not compiled, or the strategy has a model axis.
        """
        placement = placement_of_step()
        if placement is None:
            raise ArgumentError(
                "use_micro_batches: the steps of this model are not compiled, and would take the memory of whole batches. Call "
                "model.compile(...) without run_eagerly=True and jit_compile=False."
            )
        if placement.has_model_axis:
            raise ArgumentError(
                "use_micro_batches: with a model axis, each device would compute with whole weights and take more memory than "
                f"without micro-batches; got model_parallel_size={placement.model_parallel_size}. Leave out one, or write "
                "a custom loop with replicant.value_and_grad(fn, variables, accumulate_steps=...), which keeps the model axis."
            )
        model, (trainable, others, slots, metrics) = self._model, state
        batch = _Batch(data, 1 if placement.on_one_device else placement.num_replicas)
        parts = _Parts(model, placement, batch, self._steps, _loss_scale(model.optimizer, slots))
        found = parts.compute(trainable, others)
        trainable, slots = model.optimizer.stateless_apply(slots, found.gradients, trainable)
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        mapping = list(zip(model.metrics_variables, metrics, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            model._loss_tracker.update_state(found.loss, sample_weight=batch.rows)
            for metric, value in zip(model._compile_loss.metrics if model._compile_loss else [], found.losses, strict=False):
                metric.update_state(value, sample_weight=batch.rows)
            logs = model.compute_metrics(x, y, found.outputs, weights)
        after = [_known(scope, variable, value) for variable, value in mapping]
        return logs, (trainable, found.others, slots, after)


def _known(scope: Any, variable: Any, value: Any) -> Any:
    new = scope.get_current_value(variable)
    return value if new is None else new


def _loss_scale(optimizer: Any, slots: Any) -> Any:
    """Return by what an optimizer multiplies the loss."""
    with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, slots, strict=True))):
        return optimizer.scale_loss(jnp.ones(()))


class _Batch:
    """A global batch: an equal number of rows for each replica, and at most one row more for some of them, the tail."""

    def __init__(self, data: Any, num_replicas: int):
        leaves, self._tree = jax.tree.flatten(data)
        self._leaves = [jnp.asarray(x) for x in leaves]
        self.rows = self._leaves[0].shape[0] if self._leaves and self._leaves[0].ndim else 0
        if any(x.ndim == 0 or x.shape[0] != self.rows for x in self._leaves):
            raise ArgumentError(
                "use_micro_batches: all arrays of a batch need the same number of rows; got the shapes "
                f"{', '.join(str(x.shape) for x in self._leaves)}."
            )
        self.each, self.tail = divmod(self.rows, num_replicas)
        whole = self.each * num_replicas
        self.main = [x[:whole] for x in self._leaves]
        # Replicas without a row of the tail compute a copy, which does not count.
        pad = np.minimum(np.arange(num_replicas if self.tail else 0), self.tail - 1)
        self.last = [x[whole:][pad] if self.tail else x[:0] for x in self._leaves]

    def data(self, rows: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Return rows as (x, y, sample weights)."""
        return keras.utils.unpack_x_y_sample_weight(jax.tree.unflatten(self._tree, rows))


@dataclasses.dataclass(frozen=True)
class _Found:
    """What the micro-batches of all replicas make together."""

    loss: Any
    losses: list[Any]  # those of `compile`, without their weights
    gradients: list[Any]
    others: list[Any]  # the variables that are not trained
    outputs: Any  # of the model, for the whole batch; None if no metric needs them


@dataclasses.dataclass(frozen=True)
class _Result:
    """What one micro-batch makes."""

    sums: list[Any]  # the loss, and those of `compile`
    gradients: list[Any]
    others: list[Any]
    outputs: list[Any]


class _Parts:
    """The micro-batches of one step, on each replica."""

    def __init__(self, model: Any, placement: Placement, batch: _Batch, steps: int, scale: Any):
        self._model, self._batch, self._scale = model, batch, scale
        self._several = not placement.on_one_device
        self._placement = dataclasses.replace(placement, factored=False)
        self._group: Any = SingleReplica()
        if self._several:
            self._group = MeshAxis(placement.num_replicas, placement.deadlocks, placement.bytes_per_pack)
        self._size = max(1, -(-(batch.each + bool(batch.tail)) // steps))
        self._keeps_outputs = model._compile_metrics is not None or _is_own(model, "compute_metrics")
        self._training = {"training": True} if model._call_has_training_arg else {}
        self._kinds: list[Kind] = []
        self._changed: set[int] = set()  # the variables that are not trained and that the model changes
        self._tree: Any = None  # the structure of the outputs

    def compute(self, trainable: list[Any], others: list[Any]) -> _Found:
        """Compute all micro-batches."""
        placement = self._placement
        self._axes = [placement.slice_axis(x.shape, x.dtype, slot=False) for x in trainable]
        self._other_axes = [placement.slice_axis(x.shape, x.dtype, slot=False) for x in others]
        arguments = (list(trainable), list(others), self._batch.main, self._batch.last, self._scale)
        if not self._several:
            results = self._on_replica(*arguments)
        else:
            rows, whole = PartitionSpec(AXIS), PartitionSpec()
            weights = [_spec(axis) for axis in self._axes], [_spec(axis) for axis in self._other_axes]
            results = jax.shard_map(
                self._on_replica,
                mesh=placement.mesh,
                in_specs=(*weights, rows, rows, whole),
                out_specs=(whole, weights[0], weights[1], rows, rows),
                check_vma=False,
            )(*arguments)
        (loss, *losses), gradients, others, main, last = results
        outputs = None
        if self._keeps_outputs:
            outputs = self._tree.unflatten(
                [_joined(a, b[: self._batch.tail * b.shape[0] // self._replicas]) for a, b in zip(main, last, strict=True)]
            )
        return _Found(loss, losses, gradients, others, outputs)

    @property
    def _replicas(self) -> int:
        return self._group.num_replicas

    # On one replica.

    def _on_replica(self, trainable: list[Any], others: list[Any], main: list[Any], last: list[Any], scale: Any) -> Any:
        """Return the sums over all replicas, and this replica's outputs."""
        self._trainable, self._scale = trainable, scale
        self._learn(trainable, others, main if self._batch.each else last)
        start = [
            self._whole(x, axis) if i in self._changed else x
            for i, (x, axis) in enumerate(zip(others, self._other_axes, strict=True))
        ]
        divisors = self._divisors(start, main, last)
        sums = [jnp.zeros((), jnp.float32)] * (1 + self._num_losses)
        gradients = [jnp.zeros(shape, jnp.promote_types(dtype, jnp.float32)) for shape, dtype in self._shapes]

        def add(state: Any, rows: list[Any], counts: Any = None) -> Any:
            sums, gradients, others = state
            new = self._micro_batch(others, rows, divisors)
            if counts is not None:
                new, others = _where(counts, new, others)
            sums = [a + b.astype(a.dtype) for a, b in zip(sums, new.sums, strict=True)]
            gradients = [a + b.astype(a.dtype) for a, b in zip(gradients, new.gradients, strict=True)]
            return (sums, gradients, new.others), new.outputs

        (sums, gradients, after), outputs, tail = self._each(add, (sums, gradients, start), main, last)
        sums, gradients = self._summed(sums, gradients)
        after = [self._agreed(i, x) if i in self._changed else x for i, x in enumerate(after)]
        return sums, gradients, after, outputs, tail

    def _each(self, add: Callable[..., Any], state: Any, main: list[Any], last: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        """Apply `add` to all micro-batches. Return the last state, the outputs of the equal rows, and those of the tail."""
        num_full, rest = divmod(self._batch.each, self._size)
        rows, outputs, tail = num_full * self._size, list[Any](), list[Any]()
        if num_full:
            stacked = [x[:rows].reshape(num_full, self._size, *x.shape[1:]) for x in main]
            state, found = jax.lax.scan(add, state, stacked)
            outputs = [x.reshape(-1, *x.shape[2:]) for x in found]
        if rest:
            state, found = add(state, [x[rows:] for x in main])
            outputs = [_joined(a, b) for a, b in zip(outputs, found, strict=True)] if outputs else found
        if self._batch.tail:
            counts = self._group.replica_id() < self._batch.tail
            state, tail = add(state, last, counts)
        empty = [x[:0] for x in outputs or tail]
        return state, outputs or empty, tail or empty

    def _learn(self, trainable: list[Any], others: list[Any], rows: list[Any]) -> None:
        """Trace a micro-batch, and find out what it changes, what its losses are, and which divisors are known."""
        size = min(self._size, len(rows[0]))
        sums = LossSums()
        whole = [self._shape(x, axis) for x, axis in zip(trainable, self._axes, strict=True)]
        whole_others = [self._shape(x, axis) for x, axis in zip(others, self._other_axes, strict=True)]
        self._shapes = [(x.shape, x.dtype) for x in whole]

        def losses_of(rows: list[Any]) -> list[Any]:
            weights, rest = _zeros(whole), _zeros(whole_others)
            _, losses, outputs, after = self._forward(weights, rest, rows, sums)
            self._changed = {i for i, (new, old) in enumerate(zip(after, rest, strict=True)) if new is not old}
            leaves, self._tree = jax.tree.flatten(outputs)
            self._check_outputs(leaves, size)
            return losses

        closed = jax.make_jaxpr(losses_of)([jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for x in rows])
        self._kinds = kinds(closed.jaxpr)
        if {Kind.UNKNOWN, Kind.RATIO} & {*self._kinds}:
            raise ArgumentError(
                "use_micro_batches: a layer adds a loss (add_loss, or an activity regularizer) that is neither a sum nor a mean "
                "over the rows of the batch, so it is not known how those of micro-batches make that of the whole batch. Add a sum "
                "or mean over rows, or write a custom loop."
            )
        self._known_divisors = [x if x is None or isinstance(x, int) else ... for x in sums.own_divisors]
        self._size_learned = size

    def _check_outputs(self, leaves: list[Any], size: int) -> None:
        compiled = self._model._compile_loss
        self._num_losses = 0 if compiled is None or not compiled.metrics else len(compiled.metrics)
        if self._keeps_outputs and any(x.ndim == 0 or x.shape[0] % size for x in leaves):
            raise ArgumentError(
                "use_micro_batches: the metrics need the outputs of the whole batch, but an output of the model does not have the "
                f"rows of the batch along its first axis: {', '.join(str(x.shape) for x in leaves)} for {size} rows. Compile the "
                "model without metrics."
            )

    def _divisors(self, others: list[Any], main: list[Any], last: list[Any]) -> list[Any]:
        """Return the divisors of all losses for the whole batch. Those that depend on a mask or on weights are added up first."""
        known = [x * self._batch.rows / self._size_learned if isinstance(x, int) else x for x in self._known_divisors]
        asked = [i for i, x in enumerate(known) if x is ...]
        if not asked:
            return known

        def add(state: Any, rows: list[Any], counts: Any = None) -> Any:
            totals, others = state
            sums = LossSums()
            weights = [self._whole(x, axis) for x, axis in zip(self._trainable, self._axes, strict=True)]
            rest = [self._read_other(i, x) for i, x in enumerate(others)]
            _, _, _, after = self._forward(weights, rest, rows, sums)
            new = [jnp.asarray(sums.own_divisors[i], jnp.float32) for i in asked]
            new = new if counts is None else [jnp.where(counts, x, jnp.zeros_like(x)) for x in new]
            return (
                [a + b for a, b in zip(totals, new, strict=True)],
                [after[i] if i in self._changed else x for i, x in enumerate(others)],
            ), []

        start = [jnp.zeros((), jnp.float32) for _ in asked]
        (totals, _), _, _ = self._each(add, (start, others), main, last)
        for i, total in zip(asked, self._group.all_reduce(ReduceOp.SUM, totals), strict=True):
            known[i] = total
        return known

    def _micro_batch(self, others: list[Any], rows: list[Any], divisors: list[Any]) -> _Result:
        trainable = self._tied(self._trainable, self._axes, rows[0])
        frozen = self._tied(others, [None if i in self._changed else axis for i, axis in enumerate(self._other_axes)], rows[0])

        def loss_of(shifts: list[Any]) -> Any:
            weights = [self._whole(x, axis, shift) for x, axis, shift in zip(trainable, self._axes, shifts, strict=True)]
            rest = [self._read_other(i, x) for i, x in enumerate(frozen)]
            sums = LossSums(divisors)
            loss, losses, outputs, after = self._forward(weights, rest, rows, sums)
            share = len(rows[0]) / self._batch.rows
            for kind, each in zip(self._kinds, losses, strict=True):
                loss = loss + (each if kind is Kind.SUM else each * share)
            after = [after[i] if i in self._changed else x for i, x in enumerate(others)]
            values = sums.values[: self._num_losses]
            outputs = jax.tree.leaves(outputs) if self._keeps_outputs else []
            return loss * self._scale, ([loss, *values], after, outputs)

        cut = any(axis is not None for axis in [*self._axes, *self._other_axes])
        shifts = [jnp.zeros(shape, dtype) if axis is not None else x for x, axis, (shape, dtype) in zip(
            self._trainable, self._axes, self._shapes, strict=True)]  # fmt: skip
        if cut:
            held = [x for x, axis in zip(self._trainable, self._axes, strict=True) if axis is None]
            loss, pullback, aux = vjp(loss_of, shifts, held)
        else:
            loss, pullback, aux = jax.vjp(loss_of, shifts, has_aux=True)
        (gradients,) = pullback(jnp.ones_like(loss))
        sums, after, outputs = aux
        return _Result(sums, gradients, after, outputs)

    def _forward(self, trainable: list[Any], others: list[Any], rows: list[Any], sums: LossSums) -> Any:
        """Return the loss of `compile`, those of layers, the outputs, and the new values of the variables that are not trained."""
        model = self._model
        x, y, weights = self._batch.data(rows)
        replica = self._group.replica_id() if self._several else None
        micro_batch = MicroBatch(len(rows[0]), self._batch.rows, self._steps_of_batch(), replica)
        alone = dataclasses.replace(self._placement, fused=True)  # what layers see of the devices
        with in_micro_batch(micro_batch), in_global_view(alone):
            with summing(InLayers()):
                outputs, after, losses = model.stateless_call(trainable, others, x, return_losses=True, **self._training)
            state = [
                *zip(model.trainable_variables, trainable, strict=True),
                *zip(model.non_trainable_variables, others, strict=True),
            ]
            compiled = model._compile_loss
            if compiled is not None:  # its metrics get the losses of the whole batch later
                state += [(variable, jnp.zeros(variable.shape, variable.dtype)) for variable in compiled.variables]
            with keras.StatelessScope(state_mapping=state), summing(sums):
                loss = None if compiled is None else compiled(y, outputs, weights)
            if len(sums.values) != (0 if compiled is None else len(compiled._flat_losses)):
                raise ArgumentError(
                    "use_micro_batches: a loss of the model does not leave the reduction of its values to Keras exactly once. "
                    "Write a loss function that returns one loss per example, or override `call` and not `__call__`."
                )
        losses = [jnp.sum(jnp.asarray(each).astype(jnp.promote_types(jnp.result_type(each), jnp.float32))) for each in losses]
        return (jnp.zeros(()) if loss is None else loss), losses, outputs, after

    def _steps_of_batch(self) -> int:
        return -(-(self._batch.each + bool(self._batch.tail)) // self._size)

    # Slices.

    def _whole(self, part: Any, axis: int | None, shift: Any = None) -> Any:
        """Return a variable whole, and differentiable with respect to `shift`."""
        if axis is None:
            return part if shift is None else shift
        if shift is None:
            whole = self._shape(part, axis)
            shift = jnp.zeros(whole.shape, whole.dtype)
        return gathered_p.bind(part, shift, axis=axis)

    def _tied(self, parts: list[Any], axes: Sequence[int | None], row: Any) -> list[Any]:
        """Return the slices so that XLA gathers them for each micro-batch, and not before the loop over all of them."""
        return [x if axis is None else jax.lax.optimization_barrier((x, row))[0] for x, axis in zip(parts, axes, strict=True)]

    def _read_other(self, i: int, value: Any) -> Any:
        return value if i in self._changed else self._whole(value, self._other_axes[i])

    def _shape(self, part: Any, axis: int | None) -> jax.ShapeDtypeStruct:
        shape = list(part.shape)
        if axis is not None:
            shape[axis] *= self._replicas
        return jax.ShapeDtypeStruct(tuple(shape), part.dtype)

    def _summed(self, sums: list[Any], gradients: list[Any]) -> tuple[list[Any], list[Any]]:
        """Sum over the replicas, once: of what lies in slices, each replica gets its own."""
        gradients = [x.astype(dtype) for x, (_, dtype) in zip(gradients, self._shapes, strict=True)]
        if not self._several:
            return sums, gradients
        cut = {i: axis for i, axis in enumerate(self._axes) if axis is not None}
        rest = [x for i, x in enumerate(gradients) if i not in cut]
        summed = iter(self._group.all_reduce(ReduceOp.SUM, [*sums, *rest]))
        sums = [next(summed) for _ in sums]
        slices = iter(self._group.sums_of_slices([gradients[i] for i in cut], list(cut.values())))
        return sums, [next(slices) if i in cut else next(summed) for i in range(len(gradients))]

    def _agreed(self, i: int, value: Any) -> Any:
        """Return what all replicas keep of a variable that each has changed by itself: the mean of numbers, or one's state."""
        if not self._several:
            return value
        if jnp.issubdtype(value.dtype, jnp.inexact):
            (value,) = self._group.all_reduce(ReduceOp.MEAN, [value])
        axis = self._other_axes[i]
        if axis is None:
            return value
        size = value.shape[axis] // self._replicas
        return jax.lax.dynamic_slice_in_dim(value, self._group.replica_id() * size, size, axis)


def _spec(axis: int | None) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)


def _zeros(shapes: list[Any]) -> list[Any]:
    return [jnp.zeros(x.shape, x.dtype) for x in shapes]


def _joined(a: Any, b: Any) -> Any:
    return jnp.concatenate([a, b]) if len(b) else a


def _where(counts: Any, new: _Result, others: list[Any]) -> tuple[_Result, list[Any]]:
    """Return a micro-batch that counts only on some replicas."""

    def kept(x: Any) -> Any:
        return jnp.where(counts, x, jnp.zeros_like(x))

    after = [
        new_value if new_value is old else jnp.where(counts, new_value, old)
        for new_value, old in zip(new.others, others, strict=True)
    ]
    return _Result([kept(x) for x in new.sums], [kept(x) for x in new.gradients], after, new.outputs), others
