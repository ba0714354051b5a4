"""``TensorBoard``: writes what ``fit`` and ``evaluate`` do as TensorBoard event files."""

import json
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

from ...errors import ArgumentError
from ...storage._urls import folder_at
from ...summary._event_file import EventFile, import_writer
from ..state._owner import strategy_of
from ._pictures import pictures_of
from ._profile import Profile
from ._watch import attach, detach


class TensorBoard(keras.callbacks.Callback):
    """Writes event files for TensorBoard during ``fit`` and ``evaluate``, without TensorFlow.

    Install it with ``pip install replicant-jax[tensorboard]``. Runs, tags and steps are those of Keras's callback of the same name,
    so dashboards made for that callback work:

    ======================================  =========  =======================================================================
    tag (run ``train`` unless said)         step       when
    ======================================  =========  =======================================================================
    ``epoch_<metric>``                      epoch      always; for the validation data, in the run ``validation``
    ``epoch_learning_rate``                 epoch      always
    ``evaluation_<metric>_vs_iterations``   iteration  after every evaluation; run ``validation``
    ``batch_<metric>``                      iteration  `update_freq`
    ``batch_input_wait_seconds``            iteration  `update_freq`: the seconds in which training waited for a batch of the
                                                       dataset, on average since the last value
    ``epoch_steps_per_second``              epoch      `write_steps_per_second`; ``batch_steps_per_second`` with `update_freq`
    ``<weight's path>/histogram``           epoch      `histogram_freq`; ``<weight's path>/image`` with `write_images`
    ``model/summary``, ``model/config``     0          `write_graph`: texts; ``keras`` is the graph of layers, if there is one
    ``replicas``                            epoch      always: the number of replicas that train the model
    ``examples_per_second``                 epoch      always: examples per second of training, without validation
    ``input_wait_share``                    epoch      always: the share of that time, from 0 to 1, in which training waited for
                                                       the next batch of the dataset
    ======================================  =========  =======================================================================

    An iteration is a batch. The first batch of a new optimizer is 1, and a later fit continues the count.

    The callback waits for the devices once per epoch, and once every `update_freq` batches if it writes ``batch_`` values. It waits
    for nothing else, so it does not slow training down. An interrupted fit leaves complete files.

    Args:
        log_dir: The folder of the event files, which several fits may share: a path, or a URL, at which copies of them are renewed
            twice a minute.
        histogram_freq: Number of epochs between histograms of the weights; 0 for none. Values that are not finite are left out,
            with a warning.
        write_graph: Whether to write the model as text and as a graph of layers.
        write_images: Whether to draw the weights too whenever histograms are written, from black (smallest) to white (largest), in
            at most 3 pictures per weight.
        write_steps_per_second: Whether to write the number of training batches per second.
        update_freq: ``"batch"``, or a number of batches, to write the values that ``fit`` shows at that interval; ``"epoch"`` to
            write no values of batches.
        profile_batch: The batch, or the pair (first, last), of which to record a profile for TensorBoard's profiler
            (``pip install xprof``); counted from 1 in each fit; 0 for none.
        embeddings_freq: Must be 0, because the projector reads TensorFlow checkpoints.

    Raises:
        ArgumentError: If an argument is not as described.
        ConfigurationError: If tensorboardX is not installed.

    Semantics: ``keras.callbacks.TensorBoard``, as TensorFlow executes it.

    >>> import keras, numpy as np, pathlib, replicant, tempfile
    >>> with replicant.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
    ...     model = keras.Sequential([keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     callback = replicant.keras.callbacks.TensorBoard(folder)
    ...     _ = model.fit(np.ones((8, 3)), np.ones(8), epochs=2, verbose=0, callbacks=[callback])
    ...     len(list(pathlib.Path(folder, "train").glob("events.out.tfevents.*")))
    1
    """

    def __init__(  # noqa: PLR0917  (as Keras's)
        self,
        log_dir: str | os.PathLike[str] = "logs",
        histogram_freq: int = 0,
        write_graph: bool = True,
        write_images: bool = False,
        write_steps_per_second: bool = False,
        update_freq: int | str = "epoch",
        profile_batch: int | tuple[int, int] = 0,
        embeddings_freq: int = 0,
    ):
        super().__init__()
        _check(histogram_freq, write_images, embeddings_freq)
        import_writer("event_file_writer")
        self._folder = folder_at("TensorBoard: log_dir", log_dir, ArgumentError)
        if isinstance(self._folder, str) and profile_batch:
            raise ArgumentError(
                f"TensorBoard: profile_batch={profile_batch!r} writes a profile, which needs a log_dir on this machine; got "
                f"{log_dir!r}. Record the profile in another fit, with a local folder."
            )
        self._histogram_freq = histogram_freq
        self._write_graph = write_graph
        self._write_images = write_images
        self._write_steps_per_second = write_steps_per_second
        self._update_freq = _batches_between(update_freq)
        self._profile = Profile(profile_batch, Path(self._folder) / "train")
        self._files: dict[str, EventFile] = {}
        self._fitted: Any = None  # the model; every read of Keras's `self.model` would copy the state into the variables
        self._steps_per_execution = 1
        self._first_step = 0
        self._num_batches = 0  # of this fit
        self._epoch = _Epoch(0)
        self._marked = (0, 0.0)  # batches and time when values of batches were last written
        self._input_seconds = 0.0  # waited since then

    # -- Keras's hooks, but none per batch: see _watch.py

    def on_train_begin(self, logs: Any = None) -> None:
        """Start watching the fit."""
        self.close()
        model = self._fitted = self._current_model()
        self._steps_per_execution = model.steps_per_execution
        self._first_step = _iterations(model) * (getattr(model.optimizer, "gradient_accumulation_steps", None) or 1)
        self._num_batches = 0
        self._profile.rewind()
        attach(model, self)
        if self._write_graph:
            self._write_model()

    def on_train_end(self, logs: Any = None) -> None:
        """Close the files."""
        self.close()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the clock of the epoch."""
        self._epoch = _Epoch(self._num_batches)
        self._marked = (self._num_batches, time.perf_counter())
        self._input_seconds = 0.0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the values of the epoch."""
        self._epoch.stop()
        self._write_epoch(epoch, logs or {})
        if self._histogram_freq and epoch % self._histogram_freq == 0:
            self._write_weights(epoch)
        for file in self._files.values():
            file.flush()

    def on_test_begin(self, logs: Any = None) -> None:
        """Stop the clock of the epoch: its training ends where validation begins."""
        if self._fitted is not None:
            jax.block_until_ready([variable.value for variable in self._current_model().trainable_variables])
            self._epoch.stop()

    def on_test_end(self, logs: Any = None) -> None:
        """Write the values of the evaluation."""
        for name, value in _numbers(logs):
            self._file("validation").scalar(f"evaluation_{name}_vs_iterations", value, _iterations(self.model))
        if self._fitted is None:
            self.close()

    # -- calls of the watched train function

    def on_batch_read(self, num_examples: int, input_seconds: float) -> None:
        """Count a batch that was read."""
        self._num_batches += 1
        self._input_seconds += input_seconds
        self._epoch.take(num_examples, input_seconds)

    def around_step(self) -> AbstractContextManager[Any]:
        """Return a context to enter around the next batches."""
        return self._profile.step(self._num_batches, self._steps_per_execution)

    def on_step_dispatched(self, logs: Any, state: Any) -> None:
        """Note that these batches have been given to the devices."""
        self._profile.done(self._num_batches, state)
        last = self._marked[0]
        if self._update_freq and self._num_batches // self._update_freq > last // self._update_freq:
            self._write_batch(logs)

    # -- writing

    def _current_model(self) -> Any:
        """Return the model with up-to-date variables: during an epoch, Keras keeps their values elsewhere."""
        model: Any = self.model
        model.jax_state_sync()
        return model

    def _file(self, run: str) -> EventFile:
        if run not in self._files:
            self._files[run] = EventFile(
                f"{self._folder.rstrip('/')}/{run}" if isinstance(self._folder, str) else self._folder / run
            )
        return self._files[run]

    def _write_batch(self, logs: Any) -> None:
        file, step = self._file("train"), self._first_step + self._num_batches
        for name, value in _numbers(logs):
            file.scalar(f"batch_{name}", value, step)
        file.scalar("batch_input_wait_seconds", _rate(self._input_seconds, self._num_batches - self._marked[0]), step)
        now = time.perf_counter()  # after reading the values, which waits for the devices
        if self._write_steps_per_second:
            file.scalar("batch_steps_per_second", _rate(self._num_batches - self._marked[0], now - self._marked[1]), step)
        self._marked = (self._num_batches, now)
        self._input_seconds = 0.0

    def _write_epoch(self, epoch: int, logs: dict[str, Any]) -> None:
        model, file, seconds = self._current_model(), self._file("train"), self._epoch.seconds
        for name, value in _numbers(logs | _learning_rate(model)):
            run = "validation" if name.startswith("val_") else "train"
            self._file(run).scalar(f"epoch_{name.removeprefix('val_')}", value, epoch)
        if self._write_steps_per_second:
            file.scalar("epoch_steps_per_second", _rate(self._num_batches - self._epoch.first, seconds), epoch)
        strategy = strategy_of(model)
        file.scalar("replicas", 1 if strategy is None else strategy.num_replicas_in_sync, epoch)
        file.scalar("examples_per_second", _rate(self._epoch.num_examples, seconds), epoch)
        file.scalar("input_wait_share", _rate(self._epoch.input_seconds, seconds), epoch)

    def _write_weights(self, epoch: int) -> None:
        file, not_finite = self._file("train"), []
        for weight in self._current_model().weights:
            name = weight.path.replace(":", "_")
            values = np.asarray(keras.ops.convert_to_numpy(weight.value), np.float64)
            finite = values[np.isfinite(values)]
            if finite.size < values.size:
                not_finite.append(f"{weight.path} ({values.size - finite.size} of {values.size})")
            file.histogram(f"{name}/histogram", finite, epoch)
            if self._write_images and (pictures := pictures_of(values)):
                file.images(f"{name}/image", pictures, epoch)
        if not_finite:
            told = ", ".join(not_finite)
            warnings.warn(f"Epoch {epoch}: the histograms leave out values that are not finite: {told}.", stacklevel=2)

    def _write_model(self) -> None:
        model, file, lines = self._current_model(), self._file("train"), []
        model.summary(line_length=100, print_fn=lines.append, expand_nested=True)
        file.text("model/summary", "```\n" + "\n".join(lines) + "\n```", 0)
        try:
            config = json.loads(model.to_json())
        except Exception as error:  # noqa: BLE001 - a user's get_config may raise anything, and the text reports it
            file.text("model/config", f"This model has no config: {type(error).__name__}: {error}", 0)
            return
        file.text("model/config", "```json\n" + json.dumps(config, indent=2) + "\n```", 0)
        if type(model).__name__ in {"Functional", "Sequential"}:  # TensorBoard draws these from the list of their layers
            file.keras_graph("keras", config, 0)

    def close(self) -> None:
        """Stop profiling and watching, and close the files. This runs whenever ``fit`` or ``evaluate`` ends, even with an error."""
        files, self._files = self._files, {}
        self._fitted = None
        with ExitStack() as stack:
            for file in files.values():
                stack.callback(file.close)
            stack.callback(self._profile.stop)
            detach(self)


class _Epoch:
    """The examples and the time that one epoch of training took."""

    def __init__(self, first: int):
        self.first = first  # number of batches of the fit before this epoch
        self.num_examples = 0
        self.input_seconds = 0.0
        self._start = time.perf_counter()
        self._end: float | None = None

    def take(self, num_examples: int, input_seconds: float) -> None:
        """Count a batch, and restart the clock if an evaluation within the epoch stopped it."""
        self.num_examples += num_examples
        self.input_seconds += input_seconds
        self._end = None

    def stop(self) -> None:
        """Stop the clock, unless another batch comes."""
        if self._end is None:
            self._end = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The seconds from the beginning to the end of the epoch."""
        return (time.perf_counter() if self._end is None else self._end) - self._start


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _numbers(logs: Any) -> Iterator[tuple[str, float]]:
    """Yield the names and values of logs, which may be nested. The elements of an array are numbered."""
    for name, value in (logs if isinstance(logs, dict) else {}).items():
        if isinstance(value, dict):
            yield from _numbers(value)
            continue
        array = np.asarray(value)
        if array.size == 1:
            yield name, float(array.item())
        else:
            yield from ((f"{name}/{i}", float(element)) for i, element in enumerate(array.ravel()))


def _iterations(model: Any) -> int:
    """Return the number of updates that the model's optimizer has made."""
    iterations = getattr(model.optimizer, "iterations", None)
    return 0 if iterations is None else int(np.asarray(keras.ops.convert_to_numpy(iterations)))


def _learning_rate(model: Any) -> dict[str, float]:
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # a LossScaleOptimizer has an inner one
    rate = getattr(optimizer, "learning_rate", None)
    return {} if rate is None else {"learning_rate": float(np.asarray(keras.ops.convert_to_numpy(rate)))}


def _check(histogram_freq: Any, write_images: bool, embeddings_freq: Any) -> None:
    if isinstance(histogram_freq, bool) or not isinstance(histogram_freq, int) or histogram_freq < 0:
        raise ArgumentError(
            f"histogram_freq must be a number of epochs, 1 or more, or 0 for no histograms; got {histogram_freq!r}."
        )
    if write_images and not histogram_freq:
        raise ArgumentError(
            "write_images=True draws weights whenever histograms are written, but histogram_freq=0 writes none. Set "
            "histogram_freq=1 to draw them in every epoch."
        )
    if embeddings_freq != 0:
        raise ArgumentError(
            f"embeddings_freq must be 0, because TensorBoard's projector reads embeddings from TensorFlow checkpoints; got "
            f"{embeddings_freq!r}. Leave it out; histogram_freq=1 shows the distribution of embeddings too."
        )


def _batches_between(update_freq: Any) -> int:
    if update_freq in ("epoch", "batch"):
        return int(update_freq == "batch")
    if isinstance(update_freq, bool) or not isinstance(update_freq, int) or update_freq < 1:
        raise ArgumentError(f'update_freq must be "epoch", "batch" or a number of batches, 1 or more; got {update_freq!r}.')
    return update_freq
