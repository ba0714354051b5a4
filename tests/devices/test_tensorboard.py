"""What the TensorBoard callback writes, read back with TensorBoard's own reader."""

import gc
import json
import re
import subprocess
import sys
import time
import zlib
from io import BytesIO
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorboardX  # noqa: F401 - here, because it sets an environment variable when it is first imported
from PIL import Image
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.graph import keras_util
from tensorboard.util import tensor_util

import replicant
from replicant.data import Dataset
from replicant.errors import ArgumentError, ConfigurationError
from replicant.keras.callbacks import BackupAndRestore, TensorBoard
from replicant.keras.callbacks._pictures import pictures_of
from replicant.summary._event_file import EventFile, buckets
from replicant.summary._png import png

X = np.arange(60, dtype=np.float32).reshape(20, 3) / 60
Y = np.arange(20, dtype=np.float32)

num_replicas = pytest.mark.parametrize("num_replicas", [0, 3], ids=["no strategy", "3 replicas"])
EVERY_EPOCH = ["epoch_learning_rate", "epoch_loss", "epoch_mae", "examples_per_second", "input_wait_share", "replicas"]


def make_model(num_replicas: int = 0, *, optimizer: object = "sgd", **options: object) -> keras.Model:
    keras.utils.set_random_seed(0)
    devices = [f"cpu:{i}" for i in range(num_replicas)]
    strategy = replicant.MirroredStrategy(devices) if devices else replicant.get_strategy()
    with strategy.scope():
        layers = [keras.Input((3,), name="input"), keras.layers.Dense(4, name="first"), keras.layers.Dense(1, name="last")]
        model = keras.Sequential(layers, name="net")
        model.compile(optimizer, "mse", metrics=["mae"], **options)
    return model


def fit(model: keras.Model, callback: TensorBoard, **options: object) -> dict[str, list[float]]:
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0} | options
    return model.fit(X, Y, callbacks=[callback], **options).history


class Run:
    """One run, read back."""

    def __init__(self, folder: Path):
        self._events = event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0})
        self._events.Reload()

    def tags(self, plugin: str = "scalars") -> list[str]:
        return sorted(tag for tag in self._events.Tags()["tensors"] if self._plugin(tag) == plugin)

    def _plugin(self, tag: str) -> str:
        return self._events.SummaryMetadata(tag).plugin_data.plugin_name

    def values(self, tag: str) -> dict[int, np.ndarray]:
        return {event.step: tensor_util.make_ndarray(event.tensor_proto) for event in self._events.Tensors(tag)}

    def steps(self, tag: str) -> list[int]:
        return [event.step for event in self._events.Tensors(tag)]

    def text(self, tag: str) -> str:
        return self.values(tag)[0].item().decode()


@num_replicas
@pytest.mark.long
def test_scalars_of_epochs(tmp_path, num_replicas):
    model = make_model(num_replicas)
    history = fit(model, TensorBoard(tmp_path), validation_data=(X[:8], Y[:8]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train", "validation"]
    train, validation = Run(tmp_path / "train"), Run(tmp_path / "validation")
    assert train.tags() == EVERY_EPOCH
    assert validation.tags() == [
        "epoch_loss",
        "epoch_mae",
        "evaluation_loss_vs_iterations",
        "evaluation_mae_vs_iterations",
    ]
    for name in ("loss", "mae"):
        assert train.values(f"epoch_{name}") == pytest.approx(dict(enumerate(history[name])))
        assert validation.values(f"epoch_{name}") == pytest.approx(dict(enumerate(history[f"val_{name}"])))
        assert validation.values(f"evaluation_{name}_vs_iterations") == pytest.approx(
            dict(zip([3, 6], history[f"val_{name}"], strict=True))
        )
    assert train.values("epoch_learning_rate") == pytest.approx({0: 0.01, 1: 0.01})
    assert train.values("replicas") == {0: max(num_replicas, 1), 1: max(num_replicas, 1)}
    assert all(rate > 0 for rate in train.values("examples_per_second").values())
    assert all(0 <= share <= 1 for share in train.values("input_wait_share").values())


@pytest.mark.cases("epoch-None-no strategy", "batch-steps1-3 replicas", "2-steps3-3 replicas", "7-None-no strategy")
@num_replicas
@pytest.mark.parametrize(
    ("update_freq", "steps"),
    [("epoch", None), ("batch", [1, 2, 3, 4, 5, 6]), (1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (4, [4]), (7, None)],
)
def test_values_of_batches_come_as_often_as_asked(tmp_path, num_replicas, update_freq, steps):
    fit(make_model(num_replicas), TensorBoard(tmp_path, update_freq=update_freq))
    batch_tags = [] if steps is None else ["batch_input_wait_seconds", "batch_loss", "batch_mae"]
    train = Run(tmp_path / "train")
    assert train.tags() == batch_tags + EVERY_EPOCH
    assert [train.steps(tag) for tag in batch_tags] == [steps] * len(batch_tags)


def test_the_last_batch_shows_what_the_epoch_shows(tmp_path):
    history = fit(make_model(2), TensorBoard(tmp_path, update_freq="batch"))
    values = Run(tmp_path / "train").values("batch_loss")
    assert [values[3], values[6]] == pytest.approx(history["loss"])


def test_no_batch_hook_so_keras_reads_no_log_values():
    callback = TensorBoard(update_freq=1000, write_steps_per_second=True, profile_batch=5)
    hooks = ["on_batch_end", "on_train_batch_begin", "on_train_batch_end", "on_test_batch_begin", "on_test_batch_end"]
    assert [hook for hook in hooks if not getattr(callback, hook)._is_default] == []


@num_replicas
@pytest.mark.long_cases("3 replicas")
def test_several_batches_in_one_execution(tmp_path, num_replicas):
    model = make_model(num_replicas, steps_per_execution=2)
    fit(model, TensorBoard(tmp_path, update_freq=1, write_steps_per_second=True), batch_size=4)
    train = Run(tmp_path / "train")
    assert train.steps("batch_loss") == [2, 4, 5, 7, 9, 10]
    assert train.steps("batch_steps_per_second") == [2, 4, 5, 7, 9, 10]
    rates = (train.values("examples_per_second"), train.values("epoch_steps_per_second"))
    assert [rates[0][epoch] / rates[1][epoch] for epoch in (0, 1)] == pytest.approx([4, 4])  # 20 examples, 5 batches


def test_steps_per_second_only_if_asked(tmp_path):
    fit(make_model(), TensorBoard(tmp_path / "epoch", write_steps_per_second=True))
    assert "epoch_steps_per_second" in Run(tmp_path / "epoch/train").tags()
    assert "batch_steps_per_second" not in Run(tmp_path / "epoch/train").tags()
    assert not {"epoch_steps_per_second", "batch_steps_per_second"} & set(EVERY_EPOCH)


def test_examples_and_waits_are_those_of_the_dataset(tmp_path):
    slow = Dataset.from_tensor_slices((X, Y)).batch(8).map(lambda x, y: (slowly(x), y))
    callback = TensorBoard(tmp_path, write_steps_per_second=True, update_freq=2)
    make_model(2).fit(slow, epochs=2, verbose=0, callbacks=[callback])
    train = Run(tmp_path / "train")
    waits = train.values("batch_input_wait_seconds")
    assert sorted(waits) == [2, 4, 6]
    assert 0.05 < waits[6] < 10  # of one batch, not of the fit
    rate, steps = train.values("examples_per_second"), train.values("epoch_steps_per_second")
    assert [rate[epoch] / steps[epoch] for epoch in (0, 1)] == pytest.approx([20 / 3, 20 / 3])
    assert train.values("input_wait_share")[1] > 0.5


def slowly(x: np.ndarray) -> np.ndarray:
    time.sleep(0.1)
    return x


@pytest.mark.long
def test_time_of_validation_is_not_time_of_training(tmp_path):
    slow = Dataset.from_tensor_slices((X, Y)).batch(2).map(lambda x, y: (slowly(x), y))  # a second
    fit(make_model(), TensorBoard(tmp_path), validation_data=slow)
    assert Run(tmp_path / "train").values("examples_per_second")[1] > 20


def test_learning_rate_follows_schedules_and_loss_scaling(tmp_path):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.5, 0.125])
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(schedule))
    fit(make_model(optimizer=scaled), TensorBoard(tmp_path))
    assert Run(tmp_path / "train").values("epoch_learning_rate") == {0: 0.5, 1: 0.125}


def test_an_evaluation_of_its_own(tmp_path):
    model = make_model(2)
    fit(model, TensorBoard(tmp_path / "fit"))
    results = model.evaluate(X, Y, verbose=0, return_dict=True, callbacks=[TensorBoard(tmp_path / "test")])
    assert [path.name for path in (tmp_path / "test").iterdir()] == ["validation"]
    assert Run(tmp_path / "test/validation").values("evaluation_loss_vs_iterations") == pytest.approx({6: results["loss"]})


@num_replicas
def test_histograms_and_images_of_weights(tmp_path, num_replicas):
    model = make_model(num_replicas)
    fit(model, TensorBoard(tmp_path, histogram_freq=2, write_images=True), epochs=3)
    train = Run(tmp_path / "train")
    paths = ["first/bias", "first/kernel", "last/bias", "last/kernel"]
    assert train.tags("histograms") == [f"net/{path}/histogram" for path in paths]
    assert train.tags("images") == [f"net/{path}/image" for path in paths]
    assert [train.steps(f"net/{path}/histogram") for path in paths] == [[0, 2]] * 4
    kernel = np.asarray(model.get_layer("first").kernel)
    rows = train.values("net/first/kernel/histogram")[2]
    assert rows.shape == (30, 3)
    assert (rows[0, 0], rows[-1, 1], rows[:, 2].sum()) == (pytest.approx(kernel.min()), pytest.approx(kernel.max()), 12)
    width, height, picture = train.values("net/first/kernel/image")[2]
    assert (width, height) == (b"4", b"3")
    assert (unpack(picture) == pictures_of(kernel)[0][..., 0]).all()


def unpack(file: bytes) -> np.ndarray:
    """The gray values of a PNG file."""
    width, height = int.from_bytes(file[16:20]), int.from_bytes(file[20:24])
    lines = zlib.decompress(file[file.index(b"IDAT") + 4 : file.index(b"IEND") - 8])
    return np.frombuffer(lines, np.uint8).reshape(height, width + 1)[:, 1:]


@pytest.mark.parametrize(
    ("values", "filled"),
    [
        ([], {}),
        ([7, 7, 7], {29: [7, 7, 3]}),
        ([0, 0.5, 1, 2, 30], {0: [0, 1, 2], 1: [1, 2, 1], 2: [2, 3, 1], 29: [29, 30, 1]}),
    ],
)
def test_buckets(values, filled):
    rows = buckets(np.array(values))
    assert {int(i): rows[i].tolist() for i in np.flatnonzero(rows[:, 2])} == filled


@pytest.mark.parametrize(
    ("weight", "pictures"),
    [
        (np.array(3.0), [[[0]]]),
        (np.array([0.0, 1, 2]), [[[0], [128], [255]]]),
        (np.array([[0.0, 1, 5]]), [[[0], [51], [255]]]),
        (np.array([[0.0, 1], [2, 3], [4, 5]]), [[[0, 102, 204], [51, 153, 255]]]),
        (np.arange(8.0).reshape(2, 2, 2) * 255 / 7, [[[0, 73], [146, 219]], [[36, 109], [182, 255]]]),
        (np.array([np.nan, 1.0, 2.0]), [[[0], [0], [255]]]),
        (np.array([np.nan]), [[[0]]]),
        (np.zeros((2, 2, 2, 2)), []),
        (np.zeros((0, 3)), []),
    ],
)
def test_pictures(weight, pictures):
    assert [picture[..., 0].tolist() for picture in pictures_of(weight)] == pictures


def test_at_most_three_pictures_and_colours():
    assert [picture.shape for picture in pictures_of(np.zeros((5, 6, 7, 3)))] == [(6, 7, 3)] * 3


def test_png_is_read_by_others():
    for channels in (1, 3, 4):
        image = np.arange(2 * 5 * channels, dtype=np.uint8).reshape(2, 5, channels)
        assert (np.asarray(Image.open(BytesIO(png(image)))).reshape(2, 5, channels) == image).all()


def test_weights_that_are_not_finite_are_told(tmp_path):
    model = make_model()
    model.get_layer("first").kernel.assign(np.full((3, 4), np.nan))
    with pytest.warns(
        UserWarning, match=r"Epoch 0: the histograms leave out values that are not finite: .*net/first/kernel \(12 of 12\)"
    ):
        fit(model, TensorBoard(tmp_path, histogram_freq=1), epochs=1)
    assert Run(tmp_path / "train").values("net/first/kernel/histogram")[0].sum() == 0


def test_the_model_as_text_and_graph(tmp_path):
    model = make_model(2)
    fit(model, TensorBoard(tmp_path))
    train = Run(tmp_path / "train")
    assert train.tags("text") == ["model/config", "model/summary"]
    assert "first (Dense)" in train.text("model/summary")
    config = train.text("model/config").removeprefix("```json\n").removesuffix("\n```")
    assert json.loads(config) == json.loads(model.to_json())
    assert train.tags("graph_keras_model") == ["keras"]
    graph = keras_util.keras_model_to_graph_def(json.loads(train.text("keras")))
    assert [node.name for node in graph.node] == ["net/input", "net/first", "net/last"]


class Subclassed(keras.Model):
    def __init__(self, width):
        super().__init__()
        self.width, self.dense = width, keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        raise NotImplementedError("no config here")


def test_a_subclassed_model_without_config(tmp_path):
    model = Subclassed(object())
    model.compile("sgd", "mse", metrics=["mae"])
    fit(model, TensorBoard(tmp_path, histogram_freq=1))
    train = Run(tmp_path / "train")
    assert train.text("model/config") == "This model has no config: NotImplementedError: no config here"
    assert train.tags("graph_keras_model") == []
    assert len(train.tags("histograms")) == 2


def test_no_model_if_not_asked(tmp_path):
    fit(make_model(), TensorBoard(tmp_path, write_graph=False))
    assert Run(tmp_path / "train").tags("text") == []


@pytest.mark.cases("3 replicas")
@num_replicas
def test_several_fits_into_one_folder_go_on(tmp_path, num_replicas):
    model, callback = make_model(num_replicas), TensorBoard(tmp_path, update_freq=1)
    fit(model, callback)
    fit(model, callback, initial_epoch=2, epochs=3)
    fit(model, TensorBoard(tmp_path, update_freq=1), initial_epoch=3, epochs=4)
    assert len(list((tmp_path / "train").iterdir())) == 3
    train = Run(tmp_path / "train")
    assert train.steps("epoch_loss") == [0, 1, 2, 3]
    assert train.steps("batch_loss") == list(range(1, 13))


def test_two_callbacks_at_once(tmp_path):
    model = make_model(2)
    function = None
    for _ in range(2):
        callbacks = [TensorBoard(tmp_path / "a", update_freq=1), TensorBoard(tmp_path / "b", update_freq=3)]
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=callbacks)
        assert function in (None, model.train_function)  # both have left it
        function = model.train_function
    assert Run(tmp_path / "a/train").steps("batch_loss") == [1, 2, 3, 4, 5, 6]
    assert Run(tmp_path / "b/train").steps("batch_loss") == [3, 6]


def test_it_leaves_a_fit_that_was_backed_up(tmp_path):
    model = make_model(2)
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[BackupAndRestore(tmp_path / "b"), TensorBoard(tmp_path, update_freq=1)])
    assert type(model.train_function).__name__ == "StepLoop"
    model.fit(X, Y, batch_size=8, verbose=0)
    assert Run(tmp_path / "train").steps("batch_loss") == [1, 2, 3]


def test_logs_that_are_arrays_or_nested(tmp_path):
    model = make_model()
    model.compile("sgd", "mse", metrics=[PerColumn(name="both")])
    fit(model, TensorBoard(tmp_path, update_freq=3), epochs=1)
    train = Run(tmp_path / "train")
    assert [tag for tag in train.tags() if "both" in tag] == [
        "batch_both/0",
        "batch_both/1",
        "epoch_both/0",
        "epoch_both/1",
    ]
    assert train.values("epoch_both/1") == {0: 2}


class PerColumn(keras.metrics.Metric):
    def update_state(self, *args, **kwargs):
        pass

    def result(self):
        return keras.ops.convert_to_tensor([1.0, 2.0])


class Raise(keras.callbacks.Callback):
    def __init__(self, error, epoch):
        super().__init__()
        self.error, self.epoch = error, epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise self.error


@pytest.mark.cases("ValueError")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.long
def test_an_interrupted_fit_leaves_whole_files_and_the_model_as_it_was(tmp_path, error):
    model, callback = make_model(2), TensorBoard(tmp_path, update_freq=1, profile_batch=(2, 1000))
    with pytest.raises(error):
        model.fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[callback, Raise(error, 2)])
    gc.collect()  # ends the threads that Keras leaves
    assert callback._files == {}
    assert type(model.train_function).__name__ == "StepLoop"
    assert Run(tmp_path / "train").steps("batch_loss") == [1, 2, 3, 4, 5, 6]
    assert len(profiles(tmp_path)) == 1
    fit(model, TensorBoard(tmp_path, update_freq=1), initial_epoch=2, epochs=3)
    assert Run(tmp_path / "train").steps("batch_loss") == [1, 2, 3, 4, 5, 6, 7, 8, 9]


PROGRAM = """
import os, signal, sys, threading
import replicant
replicant.set_virtual_devices(2)
import keras, numpy as np
from replicant.keras.callbacks import TensorBoard

def forever():
    for i in range(10**9):
        if i == 20:
            os.kill(os.getpid(), signal.SIGINT)
        yield np.ones((4, 3)), np.ones(4)

with replicant.MirroredStrategy().scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
try:
    model.fit(forever(), steps_per_epoch=10**9, verbose=0, callbacks=[TensorBoard(sys.argv[1], update_freq=1)])
except KeyboardInterrupt:
    ours = [thread for thread in threading.enumerate()[1:] if not thread.name.startswith("ThreadPoolExecutor")]  # Keras's
    print("interrupted", ours)
    sys.stdout.flush()
    os._exit(0)  # nothing more is flushed
"""


@pytest.mark.long
def test_ctrl_c_amid_an_epoch(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "interrupted []\n", done.stderr[-2000:]
    steps = Run(tmp_path / "train").steps("batch_loss")
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 15


def test_no_epochs_and_no_batches(tmp_path):
    fit(make_model(2), TensorBoard(tmp_path / "no_epochs", update_freq=1), epochs=0)
    assert Run(tmp_path / "no_epochs/train").tags() == []
    batches = ((X, Y) for _ in range(3))
    with pytest.warns(UserWarning, match="ran out of data"):
        make_model(2).fit(batches, shuffle=False, steps_per_epoch=3, epochs=2, verbose=0, callbacks=[TensorBoard(tmp_path / "dry")])
    train = Run(tmp_path / "dry/train")
    rates, shares = train.values("examples_per_second"), train.values("input_wait_share")
    assert rates[0] > 0
    assert (rates[1], shares[1]) == (0, 0)


def profiles(folder: Path) -> list[Path]:
    return list((folder / "train/plugins/profile").glob("*/*.xplane.pb"))


@pytest.mark.cases("2-1", "profile_batch3-1")
@pytest.mark.parametrize(("profile_batch", "num_profiles"), [(0, 0), (2, 1), ((2, 4), 1), ((5, 1000), 1), (1000, 0)])
def test_profiles(tmp_path, profile_batch, num_profiles):
    fit(make_model(2), TensorBoard(tmp_path, profile_batch=profile_batch))
    assert len(profiles(tmp_path)) == num_profiles


def test_a_profiler_that_is_busy_stops_no_training(tmp_path):
    first = TensorBoard(tmp_path / "first", profile_batch=(1, 1000))
    second = TensorBoard(tmp_path / "second", profile_batch=2)
    with pytest.warns(UserWarning, match="No profile of batch 2: JAX's profiler did not start"):
        make_model().fit(X, Y, batch_size=8, verbose=0, callbacks=[second, first])
    assert (len(profiles(tmp_path / "first")), len(profiles(tmp_path / "second"))) == (1, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"histogram_freq": -1}, "histogram_freq must be a number of epochs, 1 or more, or 0 for no histograms; got -1"),
        ({"histogram_freq": 0.5}, "histogram_freq must be .*; got 0.5"),
        ({"histogram_freq": True}, "histogram_freq must be .*; got True"),
        ({"write_images": True}, "but histogram_freq=0 writes none. Set histogram_freq=1"),
        ({"update_freq": "step"}, 'update_freq must be "epoch", "batch" or a number of batches, 1 or more; got \'step\''),
        ({"update_freq": 0}, "update_freq must be .*; got 0"),
        ({"profile_batch": -1}, r"profile_batch must be 0 \(no profile\), the number of a batch .*; got -1"),
        ({"profile_batch": (4, 2)}, r"profile_batch must be .* with 1 <= first <= last, .*; got \(4, 2\)"),
        ({"profile_batch": "10,20"}, r"profile_batch must be .* as in profile_batch=\(10, 20\); got '10,20'"),
        (
            {"embeddings_freq": 1},
            "embeddings_freq must be 0, because TensorBoard's projector reads .* TensorFlow checkpoints; got 1",
        ),
    ],
)
def test_arguments_that_cannot_be(options, message):
    with pytest.raises(ArgumentError, match=message):
        TensorBoard(**options)


def test_without_the_writer(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "tensorboardX.event_file_writer", raising=False)
    with pytest.raises(ConfigurationError, match=r"event files need tensorboardX, .*pip install replicant-jax\[tensorboard\]"):
        TensorBoard()


def test_tensorflow_is_not_asked_for(tmp_path):
    fit(make_model(), TensorBoard(tmp_path))
    assert "tensorflow" not in sys.modules


def test_nobody_can_guess_the_name_of_an_event_file(tmp_path: Path) -> None:
    """Whoever could might plant a link there, and what it leads to would be overwritten."""
    for _ in range(2):
        EventFile(tmp_path).close()
    names = [re.fullmatch(r"events\.out\.tfevents\.\d{10}\..+\.\d+\.\d{6}\.([0-9a-f]{16})\.v2", p.name) for p in tmp_path.iterdir()]
    assert len({name[1] for name in names if name is not None}) == 2
