"""``model.evaluate`` on the workers of a ParameterServerStrategy: one of them evaluates each example, once."""

import itertools
from collections.abc import Callable
from typing import Any

import keras

from ...errors import ArgumentError
from ...keras.state._owner import strategy_of
from .._coordinator import ClusterCoordinator
from .._strategy import ParameterServerStrategy
from ._datasets import batches_maker
from ._steps import build_model, step_of, test_step

_SHARDS_PER_WORKER = 2  # so that a slow worker can take fewer than the others


def evaluate(
    original: Callable[..., Any],
    model: Any,
    x: Any = None,
    y: Any = None,
    *args: Any,
    pss_evaluation_shards: int | str = 0,
    **kwargs: Any,
) -> Any:
    """Wrap ``evaluate``: with `pss_evaluation_shards`, the workers do it."""
    strategy, shards = strategy_of(model), pss_evaluation_shards
    if not shards and not isinstance(shards, bool):
        return original(model, x, y, *args, **kwargs)
    check_shards(shards)
    if not isinstance(strategy, ParameterServerStrategy):
        raise ArgumentError(
            f"evaluate(pss_evaluation_shards={shards!r}) is for models made under a ParameterServerStrategy, but the strategy of "
            f"this model is {strategy!r}. Remove the argument."
        )
    if args:
        raise ArgumentError(
            f"evaluate on workers takes x and y by position, and the rest by name; got {len(args)} more positional arguments."
        )
    return _with_callbacks(model, strategy, x, y, shards, **kwargs)


def check_shards(shards: Any) -> None:
    """Raise ArgumentError unless `shards` is a whole number >= 0 or "auto"."""
    if shards != "auto" and (isinstance(shards, bool) or not isinstance(shards, int) or shards < 0):
        raise ArgumentError(
            f'pss_evaluation_shards must be a whole number, 0 to evaluate on the coordinator, or "auto". Received: {shards!r}.'
        )


def _with_callbacks(
    model: Any,
    strategy: ParameterServerStrategy,
    x: Any,
    y: Any,
    shards: int | str,
    *,
    batch_size: int | None = None,
    verbose: Any = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
    _use_cached_eval_dataset: bool = False,
) -> Any:
    evaluation = Evaluation(model, strategy, (x, y, sample_weight), batch_size, steps, shards)
    verbose = 1 if verbose == "auto" else verbose
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = keras.callbacks.CallbackList(
            callbacks, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=evaluation.num_steps, model=model
        )
    callbacks.on_test_begin()
    logs = evaluation.run()
    callbacks.on_test_batch_end((evaluation.num_steps or 1) - 1, logs)
    callbacks.on_test_end(logs)
    return logs if return_dict else model._flatten_metrics_in_order(logs)  # noqa: SLF001 - as Keras's `evaluate` does


class Evaluation:
    """Evaluates one model on one dataset, any number of times.

    The dataset travels to each worker once, and every worker reads all of it. Each of n shards is every n-th batch. So the batches,
    including a smaller last one, are those that the coordinator would have computed.
    """

    def __init__(  # noqa: PLR0917 - the arguments of `evaluate`
        self, model: Any, strategy: ParameterServerStrategy, data: Any, batch_size: int | None, steps: int | None, shards: int | str
    ):
        self._model, self._strategy = model, strategy
        self._coordinator = ClusterCoordinator(strategy)
        make, known_steps = batches_maker(data, batch_size)
        self.num_steps = steps or known_steps
        self._limit = steps
        self._make = make
        self._batches = self._coordinator.create_per_worker_resource(make)
        self._num_shards = _SHARDS_PER_WORKER * strategy.shape.num_workers if shards == "auto" else int(shards)

    def run(self) -> dict[str, float]:
        """Evaluate. Returns the loss and metrics by name."""
        model, coordinator = self._model, self._coordinator
        build_model(model, self._strategy, next(iter(self._make())), "evaluate")
        step, count, limit = step_of(model, "test", _shard_step), self._num_shards, self._limit
        coordinator.join()
        model.reset_metrics()
        for shard in range(count):
            arguments = (self._batches, shard, count, limit)
            coordinator._dispatcher.schedule(step, arguments, {}, alone=True)  # noqa: SLF001 - `schedule` has no `alone` for users
        coordinator.join()
        return {name: float(value) for name, value in model.get_metrics_result().items()}


def _shard_step(model: Any) -> Callable[..., None]:
    test = test_step(model)

    def evaluate_shard(batches: Any, shard: int, num_shards: int, limit: int | None) -> None:
        for batch in itertools.islice(iter(batches), shard, limit, num_shards):
            test(batch)

    return evaluate_shard
