"""The gradients of a batch of ``fit``, computed by each replica in micro-batches.

Each replica cuts its rows into micro-batches, computes one after the other, and adds up their gradients. After the last one, the
replicas add up theirs. So this is written for one replica, under ``jax.shard_map``.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.sharding import PartitionSpec

from ...errors import ArgumentError
from ...reductions._micro_batches import Kind, kinds
from ...replicas._collectives import AXIS, MeshAxis, ReduceOp, SingleReplica
from ...replicas._micro import MicroBatch, in_micro_batch
from ...replicas._placement import Placement
from ...tracing.gradients._gathered_variable import vjp
from ...tracing.jaxprs._host_calls import host_call_in
from ..cpu._recurrent import in_global_view
from ..losses._loss_sums import InLayers, LossSums, summing
from ._layer_state import seeds_of, tell_state
from ._rows import Batch
from ._weights import layouts_of


@dataclasses.dataclass(frozen=True)
class Found:
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


class MicroBatches:
    """The micro-batches of one step.

    Args:
        model: The model.
        placement: The devices.
        batch: The rows of all replicas.
        steps: The number of micro-batches of each replica.
        scale: By what the optimizer multiplies the loss.
        keeps_outputs: Whether the outputs of the model are needed.
    """

    def __init__(self, model: Any, placement: Placement, batch: Batch, steps: int, scale: Any, *, keeps_outputs: bool):
        self._model, self._batch, self._scale = model, batch, scale
        self._several = not placement.on_one_device
        self._placement = dataclasses.replace(placement, factored=False)
        self._group: Any = SingleReplica()
        if self._several:
            rest = placement.model_axis_at_rest if placement.has_model_axis else None
            self._group = MeshAxis(placement.num_replicas, placement.deadlocks, placement.bytes_per_pack, rest)
        self._size = max(1, -(-(batch.each + bool(batch.tail)) // steps))
        self._keeps_outputs = keeps_outputs
        self._training = {"training": True} if model._call_has_training_arg else {}
        self._kinds: list[Kind] = []
        self._changed: set[int] = set()  # the variables that are not trained and that the model changes
        self._seeds = seeds_of(model)
        self._tree: Any = None  # the structure of the outputs

    def compute(self, trainable: list[Any], others: list[Any]) -> Found:
        """Compute all micro-batches."""
        placement = self._placement
        self._weights = layouts_of(placement, self._model.trainable_variables, trainable)
        self._others = layouts_of(placement, self._model.non_trainable_variables, others)
        arguments = (list(trainable), list(others), self._batch.main, self._batch.last, self._scale)
        if not self._several:
            results = self._on_replica(*arguments)
        else:
            rows, whole = PartitionSpec(AXIS), PartitionSpec()
            weights = [each.spec for each in self._weights], [each.spec for each in self._others]
            results = jax.shard_map(
                self._on_replica,
                mesh=placement.mesh,
                axis_names={AXIS},  # how the devices of one replica share its work is left to XLA
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
        return Found(loss, losses, gradients, others, outputs)

    @property
    def _replicas(self) -> int:
        return self._group.num_replicas

    # On one replica.

    def _on_replica(self, trainable: list[Any], others: list[Any], main: list[Any], last: list[Any], scale: Any) -> Any:
        """Return the sums over all replicas, and this replica's outputs."""
        self._trainable, self._scale = trainable, scale
        self._learn(main if self._batch.each else last)
        start = [
            layout.whole(x) if i in self._changed else x for i, (x, layout) in enumerate(zip(others, self._others, strict=True))
        ]
        divisors = self._divisors(start, main, last)
        sums = [jnp.zeros((), jnp.result_type(float))] * (1 + self._num_losses)
        gradients = [layout.start_of_sum() for layout in self._weights]

        def add(state: Any, rows: list[Any], counts: Any = None) -> Any:
            sums, gradients, others = state
            new = self._micro_batch(others, rows, divisors)
            if counts is not None:
                new = self._where(counts, new, others)
            sums = [a + b.astype(a.dtype) for a, b in zip(sums, new.sums, strict=True)]
            gradients = [a + b.astype(a.dtype) for a, b in zip(gradients, new.gradients, strict=True)]
            return (sums, gradients, new.others), new.outputs

        (sums, gradients, after), outputs, tail = self._each(add, (sums, gradients, start), main, last)
        sums, gradients = self._summed(sums, gradients)
        after = [self._agreed(i, x) if i in self._changed else x for i, x in enumerate(after)]
        return sums, gradients, after, outputs, tail

    def _where(self, counts: Any, new: _Result, others: list[Any]) -> _Result:
        """Return a micro-batch that counts only on some replicas, but for what it has drawn."""

        def kept(x: Any) -> Any:
            return jnp.where(counts, x, jnp.zeros_like(x))

        after = [
            value if value is old or i in self._seeds else jnp.where(counts, value, old)
            for i, (value, old) in enumerate(zip(new.others, others, strict=True))
        ]
        return _Result([kept(x) for x in new.sums], [kept(x) for x in new.gradients], after, new.outputs)

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

    def _learn(self, rows: list[Any]) -> None:
        """Trace a micro-batch, and find out what it changes, what its losses are, and which divisors are known."""
        size = min(self._size, len(rows[0]))
        closed, sums = self._trace_losses(rows, size)
        double, twice = self._trace_losses(rows, 2 * size)
        if any(isinstance(x, int) and y != 2 * x for x, y in zip(sums.own_divisors, twice.own_divisors, strict=True)):
            raise ArgumentError(
                "use_micro_batches: a loss function does not return its values for each row, so it is not known how those of "
                "micro-batches make the loss of the whole batch. Return one loss per example, and leave the reduction to Keras."
            )
        self._check_losses()
        self._check_host_calls(closed.jaxpr)
        tell_state(self._model, self._changed)
        self._kinds = kinds(closed, double)
        if {Kind.UNKNOWN, Kind.RATIO} & {*self._kinds}:
            raise ArgumentError(
                "use_micro_batches: a layer adds a loss (add_loss, or an activity regularizer) that is neither a sum nor a mean "
                "over the rows of the batch, so it is not known how those of micro-batches make that of the whole batch. Add a sum "
                "or mean over rows, or write a custom loop."
            )
        self._known_divisors = [x if x is None or isinstance(x, int) else ... for x in sums.own_divisors]
        self._size_learned = size

    def _trace_losses(self, rows: list[Any], size: int) -> tuple[Any, LossSums]:
        """Trace the losses of layers for a number of rows."""
        sums = LossSums()

        def losses_of(rows: list[Any]) -> list[Any]:
            weights, rest = [each.zeros() for each in self._weights], [each.zeros() for each in self._others]
            _, losses, outputs, after = self._forward(weights, rest, rows, sums)
            self._changed = {i for i, (new, old) in enumerate(zip(after, rest, strict=True)) if new is not old}
            leaves, self._tree = jax.tree.flatten(outputs)
            self._check_outputs(leaves, size)
            return losses

        return jax.make_jaxpr(losses_of)([jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for x in rows]), sums

    def _check_losses(self) -> None:
        compiled = self._model._compile_loss
        if any(isinstance(each.loss, keras.losses.Circle) for each in ([] if compiled is None else compiled._flat_losses)):
            raise ArgumentError(
                "use_micro_batches: keras.losses.Circle compares the rows of a batch with each other, which those of different "
                "micro-batches cannot be. Train without micro-batches."
            )

    def _check_host_calls(self, jaxpr: Any) -> None:
        """Raise if replicas of several devices call the host, which JAX cannot lower while XLA shares out their work."""
        size = self._placement.model_parallel_size
        if self._placement.has_model_axis and (found := host_call_in(jaxpr)) is not None:
            raise ArgumentError(
                f"use_micro_batches: the model calls the host ({found}), but each replica has {size} devices "
                "(model_parallel_size), and JAX has no such calls in the micro-batches of one. Use accumulate_steps=1 or "
                "model_parallel_size=1, or leave out the call."
            )

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
            weights = [layout.whole(layout.tied(x, rows[0])) for x, layout in zip(self._trainable, self._weights, strict=True)]
            rest = [self._read_other(i, x) for i, x in enumerate(others)]
            _, _, _, after = self._forward(weights, rest, rows, sums)
            new = [jnp.asarray(sums.own_divisors[i], jnp.result_type(float)) for i in asked]
            new = new if counts is None else [jnp.where(counts, x, jnp.zeros_like(x)) for x in new]
            return (
                [a + b for a, b in zip(totals, new, strict=True)],
                [after[i] if i in self._changed else x for i, x in enumerate(others)],
            ), []

        start = [jnp.zeros((), jnp.result_type(float)) for _ in asked]
        (totals, _), _, _ = self._each(add, (start, others), main, last)
        for i, total in zip(asked, self._group.all_reduce(ReduceOp.SUM, totals), strict=True):
            known[i] = total
        return known

    def _micro_batch(self, others: list[Any], rows: list[Any], divisors: list[Any]) -> _Result:
        row = rows[0]
        trainable = [layout.tied(x, row) for x, layout in zip(self._trainable, self._weights, strict=True)]
        frozen = [
            x if i in self._changed else layout.tied(x, row) for i, (x, layout) in enumerate(zip(others, self._others, strict=True))
        ]

        def loss_of(shifts: list[Any]) -> Any:
            weights = [layout.whole(*each) for layout, *each in zip(self._weights, trainable, shifts, strict=True)]
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

        shifts = [x if layout.axis is None else layout.zeros() for x, layout in zip(self._trainable, self._weights, strict=True)]
        if any(layout.axis is not None for layout in [*self._weights, *self._others]):
            held = [x for x, layout in zip(self._trainable, self._weights, strict=True) if layout.axis is None]
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
            # Keras knows the losses of layers by their ids, and would drop one that has the id of one of an earlier trace.
            model._clear_losses()
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

    def _read_other(self, i: int, value: Any) -> Any:
        return value if i in self._changed else self._others[i].whole(value)

    def _summed(self, sums: list[Any], gradients: list[Any]) -> tuple[list[Any], list[Any]]:
        """Sum over the replicas, once: of what lies in slices, each replica gets its own."""
        gradients = [x.astype(layout.dtype) for x, layout in zip(gradients, self._weights, strict=True)]
        if not self._several:
            return sums, gradients
        cut = {i: layout.axis for i, layout in enumerate(self._weights) if layout.axis is not None}
        rest = [x for i, x in enumerate(gradients) if i not in cut]
        summed = iter(self._group.all_reduce(ReduceOp.SUM, [*sums, *rest]))
        sums = [next(summed) for _ in sums]
        slices = iter(self._group.sums_of_slices([gradients[i] for i in cut], list(cut.values())))
        return sums, [next(slices) if i in cut else next(summed) for i in range(len(gradients))]

    def _agreed(self, i: int, value: Any) -> Any:
        """Return what all replicas keep of a variable that each has changed by itself: the mean of floats, or the first one's."""
        if not self._several or i in self._seeds:
            return value
        if jnp.issubdtype(value.dtype, jnp.inexact):
            (value,) = self._group.all_reduce(ReduceOp.MEAN, [value])
        else:
            value = self._group.all_gather(value[None], 0)[0]
        return self._others[i].slice_of(value, self._group.replica_id())


def _joined(a: Any, b: Any) -> Any:
    return jnp.concatenate([a, b]) if len(b) else a
