"""``model.fit`` under a ParameterServerStrategy: steps are scheduled on the workers, callbacks run here at the ends of epochs."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from .._function import function
from .._tape import GradientTape
from ..errors import ArgumentError
from ..input._dataset import Dataset
from ..keras import _internals
from ..keras._fit import strategy_of
from ._coordinator import ClusterCoordinator
from ._strategy import ParameterServerStrategy

_DEFAULT_BATCH = 32


def connect() -> None:
    """Teach Keras's fit."""
    _internals.wrap_method(_internals.JAXTrainer, "fit", _fit)


def _fit(original: Callable[..., Any], model: Any, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
    strategy = strategy_of(model)
    if not isinstance(strategy, ParameterServerStrategy):
        return original(model, x, y, *args, **kwargs)
    if args:
        raise ArgumentError(
            f"fit under a ParameterServerStrategy takes x and y by position and the rest by name; got {len(args)} more."
        )
    return _Fit(model, strategy, x, y, **kwargs).run()


class _Fit:
    """One call of fit."""

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
        **others: Any,
    ):
        unknown = [name for name in others if others[name] is not None and name != "validation_split"]
        if unknown or others.get("validation_split"):
            name = (unknown or ["validation_split"])[0]
            raise ArgumentError(
                f"fit under a ParameterServerStrategy does not take {name}={others[name]!r}. Put weights into the dataset, as "
                "(x, y, sample_weight), and pass validation_data."
            )
        self._model, self._strategy = model, strategy
        self._coordinator = ClusterCoordinator(strategy)
        self._epochs = range(initial_epoch, epochs)
        make, known_steps = _dataset_maker(x, y, batch_size, shuffle)
        if steps_per_epoch is None and known_steps is None:
            raise ArgumentError(
                "fit under a ParameterServerStrategy needs steps_per_epoch: every worker reads its own copy of the dataset, so "
                "nobody sees where an epoch ends. Pass the number of steps that all workers take together, and repeat() the "
                "dataset."
            )
        self._steps = steps_per_epoch or known_steps
        self._dataset = self._coordinator.create_per_worker_dataset(make)
        self._validation = (validation_data, validation_steps, validation_batch_size, validation_freq)
        verbose = 1 if verbose == "auto" else verbose
        self._callbacks = (
            callbacks
            if isinstance(callbacks, keras.callbacks.CallbackList)
            else keras.callbacks.CallbackList(
                callbacks,
                add_history=True,
                add_progbar=verbose != 0,
                verbose=verbose,
                epochs=epochs,
                steps=self._steps,
                model=model,
            )
        )

    def run(self) -> Any:
        """Train. Returns Keras's History."""
        model, callbacks = self._model, self._callbacks
        self._build()
        step, iterator = _cached_step_of(model), iter(self._dataset)
        model.stop_training = False
        callbacks.on_train_begin()
        logs: dict[str, Any] = {}
        for epoch in self._epochs:
            model.reset_metrics()
            callbacks.on_epoch_begin(epoch)
            for _ in range(self._steps or 0):
                self._coordinator.schedule(step, args=(iterator,))
            self._coordinator.join()
            logs = {name: float(value) for name, value in model.get_metrics_result().items()}
            callbacks.on_train_batch_end((self._steps or 1) - 1, logs)
            logs |= self._validate(epoch)
            callbacks.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
        callbacks.on_train_end(logs)
        return model.history

    def _build(self) -> None:
        """Make every variable here, in the scope: workers cannot."""
        model = self._model
        if model.optimizer is None:
            raise ArgumentError(
                "fit: the model has not been compiled. Call model.compile(optimizer, loss, ...) in strategy.scope()."
            )
        with self._strategy.scope():
            batch = next(iter(self._dataset.make()))
            model._symbolic_build(data_batch=_batch(batch))
            if not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)

    def _validate(self, epoch: int) -> dict[str, Any]:
        """Evaluate here, on the values that the servers have now: no step is running."""
        data, steps, batch_size, every = self._validation
        if data is None or (epoch + 1) % every:
            return {}
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data) if isinstance(data, tuple | list) else (data, None, None)
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


def _batch(batch: Any) -> tuple[Any, ...]:
    """A batch as (x, y, sample weights) of arrays."""
    return keras.utils.unpack_x_y_sample_weight(batch if isinstance(batch, tuple | list) else (batch,))


def _dataset_maker(x: Any, y: Any, batch_size: int | None, shuffle: bool) -> tuple[Callable[[], Any], int | None]:
    """A function that makes a worker's dataset of batches, and how many steps are one pass over it, if that is known."""
    if callable(x):
        return x, None
    if hasattr(x, "__iter__") and not isinstance(x, np.ndarray | dict | list | tuple) and not hasattr(x, "__array__"):
        return lambda: x, None
    data = (x,) if y is None else (x, y)
    arrays = keras.tree.map_structure(np.asarray, data)
    num_rows = len(keras.tree.flatten(arrays)[0])
    size = batch_size or _DEFAULT_BATCH

    def make() -> Any:
        dataset = Dataset.from_tensor_slices(arrays)
        return (dataset.shuffle(num_rows) if shuffle else dataset).repeat().batch(size)

    return make, math.ceil(num_rows / size)


def _cached_step_of(model: Any) -> Callable[[Any], None]:
    """The step, made anew only when the model has been compiled anew."""
    compiled = (model.optimizer, model._compile_loss, model._compile_metrics)
    known = model.__dict__.get("_replicant_ps_step")
    if known is None or any(one is not other for one, other in zip(known[0], compiled, strict=True)):
        known = model.__dict__["_replicant_ps_step"] = (compiled, _step_of(model))
    return known[1]


def _step_of(model: Any) -> Callable[[Any], None]:
    """What a worker does in one step."""

    @function
    def train(x: Any, y: Any, weights: Any) -> None:
        with GradientTape() as tape:
            predictions = model(x, training=True)
            loss = model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=weights, training=True)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        rows = next(value.shape[0] for value in keras.tree.flatten(x) if value is not None)
        model._loss_tracker.update_state(loss, sample_weight=rows)
        model.compute_metrics(x, y, predictions, weights)

    def step(iterator: Any) -> None:
        train(*_batch(next(iterator)))

    return step
