"""``model.fit`` under a ParameterServerStrategy: steps are closures on workers, and callbacks run here at the ends of epochs."""

from collections.abc import Callable
from typing import Any

import keras

from ...errors import ArgumentError
from ...input._dataset import Dataset
from ...keras.loops._fit_callbacks import run_of
from ...keras.state._owner import strategy_of
from .._coordinator import ClusterCoordinator
from .._strategy import ParameterServerStrategy
from ._datasets import batches_maker
from ._evaluate import Evaluation, check_shards
from ._fit_run import EpochRun, follow
from ._steps import build_model, step_of, train_step
from ._tensorboard import write_epoch


def fit(original: Callable[..., Any], model: Any, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Wrap ``fit``, for models whose variables live on parameter servers."""
    strategy = strategy_of(model)
    if not isinstance(strategy, ParameterServerStrategy):
        return original(model, x, y, *args, **kwargs)
    if args:
        raise ArgumentError(
            f"fit under a ParameterServerStrategy takes x and y by position, and the rest by name; got {len(args)} more positional "
            "arguments."
        )
    with follow(model, kwargs.pop("callbacks", None)) as callbacks:
        return _Fit(model, strategy, x, y, callbacks=callbacks, **kwargs).run()


class _Fit:
    """One call of ``fit``."""

    def __init__(
        self,
        model: Any,
        strategy: ParameterServerStrategy,
        x: Any,
        y: Any,
        *,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_data: Any = None,
        shuffle: bool = True,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int = 1,
        pss_evaluation_shards: int | str = 0,
        **others: Any,
    ):
        _refuse(others)
        self._model, self._strategy = model, strategy
        self._coordinator = ClusterCoordinator(strategy)
        self._initial_epoch, self._num_epochs = initial_epoch, epochs
        make, known_steps = batches_maker((x, y), batch_size, _shuffled if shuffle else _repeated)
        self._steps = _steps_of(steps_per_epoch, known_steps)
        if isinstance(run := run_of(model), EpochRun):
            run.num_steps = self._steps
        self._dataset = self._coordinator.create_per_worker_dataset(make)
        check_shards(pss_evaluation_shards)
        self._shards: int | str = pss_evaluation_shards
        self._evaluation: Evaluation | None = None
        self._validation = (validation_data, validation_steps, validation_batch_size, validation_freq)
        self._callbacks = _callback_list(callbacks, verbose, epochs=epochs, steps=self._steps, model=model)

    def run(self) -> Any:
        """Train. Returns Keras's History."""
        model, callbacks = self._model, self._callbacks
        build_model(model, self._strategy, next(iter(self._dataset.make())), "fit")
        shared = self._coordinator._mode.synchronous  # noqa: SLF001 - not public, since users chose it themselves
        step, iterator = step_of(model, "train", lambda model: train_step(model, shared=shared)), iter(self._dataset)
        model.stop_training = False
        callbacks.on_train_begin()
        logs: dict[str, Any] = {}
        for epoch in range(model._initial_epoch or self._initial_epoch, self._num_epochs):  # noqa: SLF001 - what a backup sets
            model.reset_metrics()
            callbacks.on_epoch_begin(epoch)
            for _ in range(self._steps or 0):
                self._coordinator.schedule(step, args=(iterator,))
            self._coordinator.join()
            logs = {name: float(value) for name, value in model.get_metrics_result().items()}
            callbacks.on_train_batch_end((self._steps or 1) - 1, logs)
            logs |= self._validate(epoch)
            write_epoch(callbacks, self._coordinator, epoch)
            callbacks.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
        callbacks.on_train_end(logs)
        return model.history

    def _validate(self, epoch: int) -> dict[str, Any]:
        """Evaluate, here or on the workers, with the servers' current values. No step is running."""
        data, steps, batch_size, every = self._validation
        if data is None or (epoch + 1) % every:
            return {}
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data) if isinstance(data, tuple | list) else (data, None, None)
        if self._shards:
            if self._evaluation is None:
                self._evaluation = Evaluation(self._model, self._strategy, (x, y, weights), batch_size, steps, self._shards)
            logs = self._evaluation.run()
        else:
            logs = self._model.evaluate(
                x,
                y,
                sample_weight=weights,
                batch_size=batch_size,
                steps=steps,
                verbose=0,
                return_dict=True,
                _use_cached_eval_dataset=False,
            )
        return {f"val_{name}": value for name, value in logs.items()}


def _refuse(others: dict[str, Any]) -> None:
    """Raise ArgumentError for arguments of Keras's ``fit`` that parameter servers do not support."""
    unknown = [name for name in others if others[name] is not None and name != "validation_split"]
    if unknown or others.get("validation_split"):
        name = (unknown or ["validation_split"])[0]
        raise ArgumentError(
            f"fit under a ParameterServerStrategy does not take {name}={others[name]!r}. Put weights into the dataset, as "
            "(x, y, sample_weight), and pass validation_data."
        )


def _steps_of(steps_per_epoch: int | None, known_steps: int | None) -> int | None:
    """The steps of an epoch. Raises ArgumentError if they are unknown."""
    if steps_per_epoch is None and known_steps is None:
        raise ArgumentError(
            "fit under a ParameterServerStrategy needs steps_per_epoch: every worker reads its own copy of the dataset, so the end "
            "of an epoch is unknown. Pass the number of steps that all workers take together, and repeat() the dataset."
        )
    return steps_per_epoch or known_steps


def _callback_list(callbacks: Any, verbose: Any, *, epochs: int, steps: int | None, model: Any) -> Any:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    verbose = 1 if verbose == "auto" else verbose
    return keras.callbacks.CallbackList(
        callbacks, add_history=True, add_progbar=verbose != 0, verbose=verbose, epochs=epochs, steps=steps, model=model
    )


def _shuffled(dataset: Dataset, num_rows: int) -> Dataset:
    return dataset.shuffle(num_rows).repeat()


def _repeated(dataset: Dataset, num_rows: int) -> Dataset:
    del num_rows
    return dataset.repeat()
