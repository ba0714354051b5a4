"""The gradients of a batch of ``fit``, computed by each replica in micro-batches.

Each replica cuts its rows into micro-batches, computes one after the other, and adds up their gradients. After the last one, the
replicas add up theirs. So this is written for one replica, under ``jax.shard_map``.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ...reductions._micro_batches import Kind
from ...replicas._collectives import AXIS, ReduceOp
from ...replicas._micro import Rows, added
from ...tracing.gradients._gathered_variable import vjp
from ..losses._loss_sums import LossSums
from ._forward import Forward
from ._layer_state import seeds_of
from ._learn import Learned, learn
from ._weights import Layout, layouts_of


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


def compute(forward: Forward, variables: Sequence[list[Any]], *, scale: Any, keeps_outputs: bool) -> Found:
    """Compute all micro-batches of one step.

    Args:
        forward: The forward pass for the rows of the step.
        variables: The values of the variables that are trained, and of those that are not.
        scale: By what the optimizer multiplies the loss.
        keeps_outputs: Whether the outputs of the model are needed.
    """
    model, placement, batch = forward.model, forward.placement, forward.batch
    made = model.trainable_variables, model.non_trainable_variables
    weights, rest = (layouts_of(placement, *each) for each in zip(made, variables, strict=True))
    trees: list[Any] = []

    def on_replica(trainable: list[Any], others: list[Any], main: list[Any], last: list[Any], scale: Any) -> Any:
        learned = learn(forward, (weights, rest), main if batch.each else last, keeps_outputs=keeps_outputs)
        trees.append(learned.tree)
        return _Replica(forward, weights, rest, learned, trainable, scale, keeps_outputs).compute(others, main, last)

    arguments: Any = (*variables, batch.main, batch.last, scale)
    if placement.on_one_device:
        results = on_replica(*arguments)
    else:
        rows, whole = PartitionSpec(AXIS), PartitionSpec()
        specs = [[layout.spec for layout in each] for each in (weights, rest)]
        results = jax.shard_map(
            on_replica,
            mesh=placement.mesh,
            axis_names={AXIS},  # how the devices of one replica share its work is left to XLA
            in_specs=(*specs, rows, rows, whole),
            out_specs=(whole, *specs, rows, rows),
            check_vma=False,
        )(*arguments)
    (loss, *losses), gradients, others, main, last = results
    tail = [x[: batch.tail * x.shape[0] // forward.group.num_replicas] for x in last]
    outputs = [jnp.concatenate(each) if len(each[1]) else each[0] for each in zip(main, tail, strict=True)]
    return Found(loss, losses, gradients, others, trees[-1].unflatten(outputs) if keeps_outputs else None)


@dataclasses.dataclass(frozen=True)
class _Replica:
    """One replica, which has its rows, and its slices of the variables or the whole of them."""

    forward: Forward
    weights: list[Layout]
    others: list[Layout]
    learned: Learned
    trainable: list[Any]
    scale: Any
    keeps_outputs: bool

    def compute(self, others: list[Any], main: list[Any], last: list[Any]) -> Any:
        """Return the sums over all replicas, and this replica's outputs."""
        changed = self.learned.changed
        start = [layout.whole(x) if i in changed else x for i, (x, layout) in enumerate(zip(others, self.others, strict=True))]
        divisors = self._divisors(start, main, last)
        sums = [jnp.zeros((), jnp.result_type(float))] * (1 + self.learned.num_losses)
        gradients = [layout.start_of_sum() for layout in self.weights]

        def add(state: Any, rows: Rows, counts: Any = None) -> Any:
            sums, gradients, others = state
            new = self._micro_batch(others, rows, divisors)
            if counts is not None:
                new = self._where(counts, new, others)
            return (added(sums, new.sums), added(gradients, new.gradients), new.others), new.outputs

        (sums, gradients, after), outputs, tail = self._each(add, (sums, gradients, start), main, last)
        sums, gradients = self._summed(sums, gradients)
        after = [self._agreed(i, x) if i in changed else x for i, x in enumerate(after)]
        return sums, gradients, after, outputs, tail

    def _where(self, counts: Any, new: _Result, others: list[Any]) -> _Result:
        """Return a micro-batch that counts only on some replicas, but for what it has drawn."""

        def kept(x: Any) -> Any:
            return jnp.where(counts, x, jnp.zeros_like(x))

        seeds = seeds_of(self.forward.model)
        after = [
            value if value is old or i in seeds else jnp.where(counts, value, old)
            for i, (value, old) in enumerate(zip(new.others, others, strict=True))
        ]
        return _Result([kept(x) for x in new.sums], [kept(x) for x in new.gradients], after, new.outputs)

    def _each(self, add: Any, state: Any, main: list[Any], last: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        """Apply `add` to all micro-batches. Return the last state, the outputs of the equal rows, and those of the tail."""
        state, outputs = self.forward.parts.each(add, state, main)
        tail: list[Any] = []
        if self.forward.batch.tail:
            state, tail = add(state, last, self.forward.group.replica_id() < self.forward.batch.tail)
        empty = [x[:0] for x in outputs or tail]
        return state, outputs or empty, tail or empty

    def _divisors(self, others: list[Any], main: list[Any], last: list[Any]) -> list[Any]:
        """Return the divisors of all losses for the whole batch. Those that depend on a mask or on weights are added up first."""
        known = list(self.learned.divisors)
        asked = [i for i, x in enumerate(known) if x is ...]
        if not asked:
            return known

        def add(state: Any, rows: Rows, counts: Any = None) -> Any:
            totals, others = state
            sums = LossSums()
            weights = [layout.whole(layout.tied(x, rows[0])) for x, layout in zip(self.trainable, self.weights, strict=True)]
            _, _, _, after = self.forward(weights, self._read(others), rows, sums)
            new = [jnp.asarray(sums.own_divisors[i], jnp.result_type(float)) for i in asked]
            new = new if counts is None else [jnp.where(counts, x, jnp.zeros_like(x)) for x in new]
            return (added(totals, new), self._after(others, after)), []

        start = [jnp.zeros((), jnp.result_type(float)) for _ in asked]
        (totals, _), _, _ = self._each(add, (start, others), main, last)
        for i, total in zip(asked, self.forward.group.all_reduce(ReduceOp.SUM, totals), strict=True):
            known[i] = total
        return known

    def _micro_batch(self, others: list[Any], rows: Rows, divisors: list[Any]) -> _Result:
        row, changed = rows[0], self.learned.changed
        trainable = [layout.tied(x, row) for x, layout in zip(self.trainable, self.weights, strict=True)]
        frozen = [x if i in changed else layout.tied(x, row) for i, (x, layout) in enumerate(zip(others, self.others, strict=True))]

        def loss_of(shifts: list[Any]) -> Any:
            weights = [layout.whole(*each) for layout, *each in zip(self.weights, trainable, shifts, strict=True)]
            sums = LossSums(divisors)
            loss, losses, outputs, after = self.forward(weights, self._read(frozen), rows, sums)
            share = len(row) / self.forward.batch.rows
            for kind, each in zip(self.learned.kinds, losses, strict=True):
                loss = loss + (each if kind is Kind.SUM else each * share)
            values = sums.values[: self.learned.num_losses]
            outputs = jax.tree.leaves(outputs) if self.keeps_outputs else []
            return loss * self.scale, ([loss, *values], self._after(others, after), outputs)

        shifts = [x if layout.axis is None else layout.zeros() for x, layout in zip(self.trainable, self.weights, strict=True)]
        if any(layout.axis is not None for layout in [*self.weights, *self.others]):
            held = [x for x, layout in zip(self.trainable, self.weights, strict=True) if layout.axis is None]
            loss, pullback, aux = vjp(loss_of, shifts, held)
        else:
            loss, pullback, aux = jax.vjp(loss_of, shifts, has_aux=True)
        (gradients,) = pullback(jnp.ones_like(loss))
        sums, after, outputs = aux
        return _Result(sums, gradients, after, outputs)

    def _read(self, others: list[Any]) -> list[Any]:
        """Return the variables that are not trained as a micro-batch reads them: those that it changes are whole already."""
        changed = self.learned.changed
        return [x if i in changed else layout.whole(x) for i, (x, layout) in enumerate(zip(others, self.others, strict=True))]

    def _after(self, before: list[Any], after: list[Any]) -> list[Any]:
        """Return the variables that are not trained after a micro-batch, for the next one."""
        return [after[i] if i in self.learned.changed else x for i, x in enumerate(before)]

    def _summed(self, sums: list[Any], gradients: list[Any]) -> tuple[list[Any], list[Any]]:
        """Sum over the replicas, once: of what lies in slices, each replica gets its own."""
        gradients = [x.astype(layout.dtype) for x, layout in zip(gradients, self.weights, strict=True)]
        if self.forward.placement.on_one_device:
            return sums, gradients
        cut = {i: layout.axis for i, layout in enumerate(self.weights) if layout.axis is not None}
        rest = [x for i, x in enumerate(gradients) if i not in cut]
        summed = iter(self.forward.group.all_reduce(ReduceOp.SUM, [*sums, *rest]))
        sums = [next(summed) for _ in sums]
        slices = iter(self.forward.group.sums_of_slices([gradients[i] for i in cut], list(cut.values())))
        return sums, [next(slices) if i in cut else next(summed) for i in range(len(gradients))]

    def _agreed(self, i: int, value: Any) -> Any:
        """Return what all replicas keep of a variable that each has changed by itself: the mean of floats, or the first one's."""
        if self.forward.placement.on_one_device or i in seeds_of(self.forward.model):
            return value
        if jnp.issubdtype(value.dtype, jnp.inexact):
            (value,) = self.forward.group.all_reduce(ReduceOp.MEAN, [value])
        else:
            value = self.forward.group.all_gather(value[None], 0)[0]
        return self.others[i].slice_of(value, self.forward.group.replica_id())
