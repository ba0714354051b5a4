"""What a worker does in one step of ``fit`` or ``evaluate``."""

from collections.abc import Callable
from typing import Any

import keras

from ..._function import function
from ..._tape import GradientTape
from ...errors import ArgumentError
from ...keras.micro_batches._step import asked_steps
from ...strategies._strategy import Strategy
from ...variables._known import ref_of
from ..servers._gradients import Part
from ..servers._refs import ServerRef
from ..servers._shares import ROWS, LossPart, loss_parts
from ..servers._sums import add_share, put, reset, summed, taken
from ._optimizers import apply_parts


def batch_of(batch: Any) -> tuple[Any, ...]:
    """A batch as (x, y, sample weights) of arrays."""
    return keras.utils.unpack_x_y_sample_weight(batch if isinstance(batch, tuple | list) else (batch,))


def build_model(model: Any, strategy: Strategy, batch: Any, what: str) -> None:
    """Make all variables of the model here, in the scope, since workers cannot make any."""
    _refuse_own_step(model, "train_step" if what == "fit" else "test_step", what)
    if what == "fit" and asked_steps(model) > 1:
        raise ArgumentError(
            "use_micro_batches: under a ParameterServerStrategy, `fit` does not cut batches into micro-batches. Choose a smaller "
            "batch size, or train under a MirroredStrategy or FullyShardedStrategy."
        )
    if not model.compiled or model.optimizer is None:
        raise ArgumentError(
            f"{what}: the model has not been compiled. Call model.compile(optimizer, loss, ...) in strategy.scope()."
        )
    with strategy.scope():
        model._symbolic_build(data_batch=batch_of(batch))  # noqa: SLF001 - builds what `fit` does, including metrics
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)


def _refuse_own_step(model: Any, name: str, what: str) -> None:
    if name in model.__dict__ or getattr(type(model), name) is not getattr(keras.Model, name):
        raise ArgumentError(
            f"{what}: {type(model).__name__} has a {name} of its own, but under a ParameterServerStrategy the workers take the "
            "steps of `compile` (optimizer, loss and metrics). Write a step function that calls your code, and schedule it with a "
            "ClusterCoordinator, or train under a MirroredStrategy, whose `fit` calls the model's own steps."
        )


def step_of(model: Any, kind: str, make: Callable[[Any], Any]) -> Any:
    """A step of this model. It is made again only after the model has been compiled again."""
    compiled = (model.optimizer, _loss_of(model), model._compile_metrics)  # noqa: SLF001 - a new object after each `compile`
    known = model.__dict__.setdefault("_replicant_ps_step", {}).get(kind)
    if known is None or any(one is not other for one, other in zip(known[0], compiled, strict=True)):
        known = model.__dict__["_replicant_ps_step"][kind] = (compiled, make(model))
    return known[1]


def train_step(model: Any, *, shared: bool) -> Callable[[Any], None]:
    """A step that trains on an iterator's next batch. With `shared`, other closures have the rest of the global batch."""
    train = _train_on_part(model) if shared else _train_alone(model)

    def step(iterator: Any) -> None:
        train(*batch_of(next(iterator)))

    return step


def _train_alone(model: Any) -> Callable[[Any, Any, Any], None]:
    @function
    def train(x: Any, y: Any, weights: Any) -> None:
        with summed(_metric_refs(model)):
            with GradientTape() as tape:
                predictions = model(x, training=True)
                loss = model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=weights, training=True)
            _loss_tracker(model).update_state(loss, sample_weight=_num_rows(x))
            model.compute_metrics(x, y, predictions, weights)
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    return train


def _train_on_part(model: Any) -> Callable[[Any, Any, Any], None]:
    """Push gradients and metrics as sums and their divisors, which are merged with those of the other closures."""

    @function
    def train(x: Any, y: Any, weights: Any) -> None:
        tracker, losses = _loss_tracker(model), _LossMetrics(model, _num_rows(x))
        targets: list[tuple[LossPart, Any]] = []
        with summed(_metric_refs(model)):
            with GradientTape(persistent=True) as tape:
                predictions = model(x, training=True)

                def compute() -> Any:
                    return model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=weights, training=True)

                for part in loss_parts(compute, losses.num_rows, losses.refs, has_penalties=_has_penalties(model)):
                    tracker.update_state(part.value, sample_weight=losses.num_rows)
                    losses.take(part)
                    targets.append((part, part.value * part.weight))  # the sum behind the mean
            losses.put_back()
            model.compute_metrics(x, y, predictions, weights)
        losses.push()
        variables = model.trainable_variables
        parts = [Part(tape.gradient(target, variables), part.share, part.weight) for part, target in targets]
        if all(part.share != ROWS for part in parts):  # metrics and moving statistics are means over rows in any case
            parts.append(Part([None] * len(variables), ROWS, losses.num_rows))
        apply_parts(model.optimizer, parts, variables)

    return train


class _LossMetrics:
    """The metrics of a model that are means of losses. What each part of the loss adds to them is kept separate."""

    def __init__(self, model: Any, num_rows: int):
        self.num_rows = num_rows
        loss = _loss_of(model)
        means = [_loss_tracker(model), *([] if loss is None else loss.metrics)]
        self._totals: list[ServerRef] = [ref_of(mean.total) for mean in means]  # type: ignore[misc]  # all on servers
        self._counts: list[ServerRef] = [ref_of(mean.count) for mean in means]  # type: ignore[misc]  # likewise
        self.refs = [*self._totals, *self._counts]
        self._parts: dict[str, tuple[LossPart, list[Any]]] = {}
        self._counted: list[Any] = []

    def take(self, part: LossPart) -> None:
        """Keep what has been added to them as this part's, and reset them."""
        self._parts[part.share] = part, taken(self._totals)
        self._counted = taken(self._counts)
        reset(self.refs)

    def put_back(self) -> None:
        """Put back the sums over rows, which simply add up with those of other closures."""
        if ROWS in self._parts:
            put(self._totals, self._parts.pop(ROWS)[1])
        put(self._counts, self._counted)

    def push(self) -> None:
        """Push the other parts, which are divided once the divisors of all closures are known."""
        for part, totals in self._parts.values():
            for ref, total in zip(self._totals, totals, strict=True):
                add_share(ref, total * (part.weight / max(self.num_rows, 1)), part.share)


def _has_penalties(model: Any) -> bool:
    return bool(model.losses) or type(model).compute_loss is not keras.Model.compute_loss


def test_step(model: Any) -> Callable[[Any], None]:
    """A step that evaluates one batch."""

    @function
    def test(x: Any, y: Any, weights: Any) -> None:
        with summed(_metric_refs(model)):
            predictions = model(x, training=False)
            loss = model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=weights, training=False)
            _loss_tracker(model).update_state(loss, sample_weight=_num_rows(x))
            model.compute_metrics(x, y, predictions, weights)

    def step(batch: Any) -> None:
        test(*batch_of(batch))

    return step


def _metric_refs(model: Any) -> list[ServerRef]:
    return [ref_of(variable) for variable in model.metrics_variables]  # type: ignore[misc]  # all on servers


def _num_rows(x: Any) -> int:
    return next(value.shape[0] for value in keras.tree.flatten(x) if value is not None)


def _loss_tracker(model: Any) -> Any:
    """The metric "loss" of a model."""
    return model._loss_tracker  # noqa: SLF001 - in `metrics`, only its name would identify it


def _loss_of(model: Any) -> Any:
    """What `compile` made of a model's losses; None without any."""
    return model._compile_loss  # noqa: SLF001 - `loss` is the argument of `compile`
