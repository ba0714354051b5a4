"""What the recorded checkpoints of TensorFlow were made of, and what was recorded with them: models, optimizers, inputs, losses."""

import hashlib
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np

import replicant
from replicant.data import Dataset

ROWS, STEPS = 8, 5
L, O = keras.layers, keras.optimizers  # noqa: E741 - as the models name them


class Net(keras.Model):
    """Layers in lists and dicts, and one under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [L.Dense(n, activation="relu") for n in (6, 5)]
        self.heads = {"left": L.Dense(2), "right": L.Dense(2)}
        self.norm = L.BatchNormalization(momentum=0.8)
        self.again = self.blocks[0]

    def call(self, x: Any, training: bool = False) -> Any:
        y = self.blocks[1](self.norm(self.blocks[0](x), training=training))
        out = [head(y) for head in self.heads.values()]
        return out[0] + 0.5 * out[1]


def sequential() -> Any:
    return keras.Sequential([keras.Input((6,)), L.Dense(8, activation="relu"), L.BatchNormalization(momentum=0.9), L.Dense(3)])


def functional() -> Any:
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    shared = L.Dense(5, activation="relu", name="shared")
    y = L.Dense(4, activation="tanh", name="hidden")(L.Concatenate()([shared(a), shared(b)]))
    return keras.Model([a, b], [L.Dense(2, name="first")(y), L.Dense(1, name="second")(y)])


def text() -> Any:
    x = keras.Input((7,), dtype="int32")
    return keras.Model(x, L.Dense(2)(L.LSTM(5)(L.Embedding(11, 4)(x))))


def attention() -> Any:
    x = keras.Input((5, 8))
    y = L.LayerNormalization(epsilon=1e-5)(L.Add()([x, L.MultiHeadAttention(2, 4, name="mha")(x, x)]))
    return keras.Model(x, L.GlobalAveragePooling1D()(L.Dense(4)(y)))


def conv() -> Any:
    x = keras.Input((8, 8, 3))
    y = L.BatchNormalization()(L.Conv2D(4, 3, padding="same", activation="relu")(x))
    return keras.Model(x, L.Dense(2)(L.GlobalAveragePooling2D()(L.SeparableConv2D(5, 3)(y))))


def nested() -> Any:
    inner = keras.Sequential([keras.Input((6,)), L.Dense(5, activation="relu"), L.Dense(4)], name="inner")
    x = keras.Input((6,))
    return keras.Model(x, L.Dense(2, name="out")(L.Dropout(0.0, seed=7)(inner(x))))


MODELS = {
    "sequential": sequential,
    "functional": functional,
    "subclass": Net,
    "text": text,
    "attention": attention,
    "conv": conv,
    "nested": nested,
}
OPTIMIZERS = {
    "adam": lambda old: O.Adam(1e-2),
    "sgd_momentum": lambda old: O.SGD(0.05, momentum=0.9, nesterov=not old),
    "adamw_ema": lambda old: O.AdamW(1e-2, weight_decay=0.01, use_ema=True, ema_momentum=0.9),
    "adam_amsgrad": lambda old: O.Adam(1e-2, amsgrad=True),
    "rmsprop": lambda old: O.RMSprop(1e-3, momentum=0.5 if old else 0.9, centered=True),
    "adam_schedule": lambda old: O.Adam(O.schedules.ExponentialDecay(1e-2, 2, 0.5)),
    "loss_scale": lambda old: O.LossScaleOptimizer(O.Adam(1e-2), initial_scale=1024.0, dynamic_growth_steps=3),
    "adagrad": lambda old: O.Adagrad(1e-1),
}


def inputs(which: str, shift: int = 0) -> list[np.ndarray]:
    """The fixed inputs of a model."""

    def wave(*shape: int) -> np.ndarray:
        return np.sin(0.7 * np.arange(np.prod(shape)) + shift).astype("float32").reshape(shape)

    if which == "functional":
        return [wave(ROWS, 4), wave(ROWS, 4) * np.float32(0.5)]
    if which == "text":
        return [((np.arange(ROWS * 7) * 5 + shift) % 11).astype("int32").reshape(ROWS, 7)]
    return [wave(ROWS, *{"attention": (5, 8), "conv": (8, 8, 3)}.get(which, (6,)))]


def target(shape: tuple[int, ...], shift: int) -> np.ndarray:
    return np.cos(0.3 * np.arange(np.prod(shape)) + shift).astype("float32").reshape(shape)


class Recorded:
    """A recorded checkpoint, and the objects of the program that goes on from it.

    Args:
        folder: The folder of the recording.
        strategy: The strategy to go on under.
        built: Whether the optimizer is built before the restore.
    """

    def __init__(self, folder: Path, strategy: replicant.Strategy, *, built: bool = False):
        self.truth = json.loads((folder / "truth.json").read_text())
        self.which, self.strategy = self.truth["model"], strategy
        self.path = folder / self.truth["prefix"]
        keras.utils.set_random_seed(1)
        with strategy.scope():
            self.model = MODELS[self.which]()
            if self.which == "subclass":
                self.model(inputs(self.which)[0])
            self.optimizer = OPTIMIZERS[self.truth["optimizer"]](self.truth["kind"] == "tf_keras_legacy")
            if built:
                self.optimizer.build(self.model.trainable_variables)
            self.step = replicant.Variable(0)
        self.checkpoint = replicant.Checkpoint(model=self.model, optimizer=self.optimizer, step=self.step, epoch=0)

    def predict(self, shift: int = 99) -> list[np.ndarray]:
        found = self.model(self._given(inputs(self.which, shift)), training=False)
        return [np.asarray(each) for each in (found if isinstance(found, list | tuple) else [found])]

    def errors(self) -> float:
        """The largest difference of a prediction from TensorFlow's."""
        told = [np.reshape(each["values"], each["shape"]) for each in self.truth["predictions"]]
        return max(float(np.abs(mine - theirs).max()) for mine, theirs in zip(self.predict(), told, strict=True))

    def wrong(self) -> list[str]:
        """The paths of weights, and the names of variables of the optimizer, that are not TensorFlow's bit for bit."""
        weights = zip(self.model.weights, self.truth["weights"], strict=True)
        found = [mine.path for mine, theirs in weights if digest(mine.value) != theirs["sha256"]]
        theirs = {each["sha256"] for each in self.truth["optimizer_variables"]}
        slots = [each for each in self.optimizer.variables if each.shape]
        return found + [each.path for each in slots if digest(each.value) not in theirs]

    def fit_losses(self) -> list[float]:
        """The losses of the next five steps in ``fit``, whose BatchNormalization sees all rows of a batch on any strategy."""
        given, wanted = self._batches()
        rows = Dataset.from_tensor_slices((self._given(given), self._given(wanted))).batch(ROWS)
        with self.strategy.scope():
            self.model.compile(self.optimizer, ["mse"] * len(wanted) if len(wanted) > 1 else "mse")
        return self.model.fit(rows, epochs=STEPS, steps_per_epoch=1, verbose=0).history["loss"]

    def _batches(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The inputs and targets of the next five steps."""
        shapes = [each.shape for each in self.predict(0)]
        given = [np.concatenate(parts) for parts in zip(*(inputs(self.which, k) for k in range(STEPS)), strict=True)]
        return given, [np.concatenate([target(shape, k) for k in range(STEPS)]) for shape in shapes]

    def losses(self) -> list[float]:
        """The losses of the next five steps of a loop."""
        given, wanted = self._batches()
        rows = Dataset.from_tensor_slices((tuple(given), tuple(wanted))).batch(ROWS)
        step = replicant.function(lambda batch: self.strategy.reduce("SUM", self.strategy.run(self._step, args=batch)))
        return [float(step(batch)) for batch in self.strategy.experimental_distribute_dataset(rows)]

    def _step(self, given: Any, wanted: Any) -> Any:
        with replicant.GradientTape() as tape:
            found = self.model(self._given(list(given)), training=True)
            found = found if isinstance(found, list | tuple) else [found]
            parts = [((y - t) ** 2).reshape(y.shape[0], -1).mean(axis=1) for y, t in zip(found, wanted, strict=True)]
            loss = sum(replicant.compute_average_loss(part, global_batch_size=ROWS) for part in parts)
            scaled = self.optimizer.scale_loss(loss) if isinstance(self.optimizer, O.LossScaleOptimizer) else loss
        gradients = tape.gradient(scaled, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    def _given(self, given: list[Any]) -> Any:
        return tuple(given) if len(given) > 1 else given[0]


def digest(value: Any) -> str:
    array = np.asarray(value)
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
