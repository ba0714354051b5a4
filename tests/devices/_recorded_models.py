"""The models whose weights TensorFlow and Keras 2 have recorded in tests/tensorflow_files/weights, and their inputs."""

from typing import Any

import keras
import numpy as np
from keras import layers as L  # noqa: N812 - as where the files were written


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
        left, right = (head(y) for head in self.heads.values())
        return left + 0.5 * right


def sequential() -> keras.Model:
    return keras.Sequential([keras.Input((6,)), L.Dense(8, activation="relu"), L.BatchNormalization(momentum=0.9), L.Dense(3)])


def functional() -> keras.Model:
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    shared = L.Dense(5, activation="relu", name="shared")
    y = L.Dense(4, activation="tanh", name="hidden")(L.Concatenate()([shared(a), shared(b)]))
    return keras.Model([a, b], [L.Dense(2, name="first")(y), L.Dense(1, name="second")(y)])


def text() -> keras.Model:
    x = keras.Input((7,), dtype="int32")
    return keras.Model(x, L.Dense(2)(L.LSTM(5)(L.Embedding(11, 4)(x))))


def nested() -> keras.Model:
    inner = keras.Sequential([keras.Input((6,)), L.Dense(5, activation="relu"), L.Dense(4)], name="inner")
    x = keras.Input((6,))
    return keras.Model(x, L.Dense(2, name="out")(L.Dropout(0.0, seed=7)(inner(x))))


def attention() -> keras.Model:
    x = keras.Input((5, 8))
    y = L.LayerNormalization(epsilon=1e-5)(L.Add()([x, L.MultiHeadAttention(2, 4, name="mha")(x, x)]))
    return keras.Model(x, L.GlobalAveragePooling1D()(L.Dense(4)(y)))


def conv() -> keras.Model:
    x = keras.Input((8, 8, 3))
    y = L.BatchNormalization()(L.Conv2D(4, 3, padding="same", activation="relu")(x))
    return keras.Model(x, L.Dense(2)(L.GlobalAveragePooling2D()(L.SeparableConv2D(5, 3)(y))))


def subclass() -> keras.Model:
    model = Net()
    model(inputs("subclass"))
    return model


MAKERS = {each.__name__: each for each in (sequential, functional, text, nested, attention, conv, subclass)}


def inputs(which: str, shift: int = 99) -> Any:
    def waves(*shape: int) -> np.ndarray:
        return np.sin(0.7 * np.arange(np.prod(shape)) + shift).astype("float32").reshape(shape)

    if which == "functional":
        return [waves(8, 4), waves(8, 4) * 0.5]
    if which == "text":
        return ((np.arange(8 * 7) * 5 + shift) % 11).astype("int32").reshape(8, 7)
    return waves(8, *{"attention": (5, 8), "conv": (8, 8, 3)}.get(which, (6,)))


def outputs(model: keras.Model, which: str) -> list[np.ndarray]:
    """The predictions of a model, flat, one for each output."""
    found = model(inputs(which), training=False)
    return [np.asarray(each).ravel() for each in (found if isinstance(found, list | tuple) else [found])]
