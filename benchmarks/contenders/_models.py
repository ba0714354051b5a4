"""The models of the cases in Keras, on any backend. Every layer with weights has a name, on which its weights depend (``draw``)."""

from collections.abc import Callable
from typing import Any

import keras
from _cases import VOCABULARY, Case, data, draw
from _serve import Round
from keras import layers


def cnn(x: Any) -> Any:
    """Build the network of the Fashion-MNIST guides."""
    x = layers.MaxPooling2D()(layers.Conv2D(32, 3, activation="relu", name="conv0")(x))
    x = layers.MaxPooling2D()(layers.Conv2D(64, 3, activation="relu", name="conv1")(x))
    x = layers.Dense(64, activation="relu", name="dense0")(layers.Flatten()(x))
    return layers.Dense(10, name="logits")(x)


def mlp(x: Any, units: tuple[int, ...] = (512, 512)) -> Any:
    """Build an MLP."""
    for i, n in enumerate(units):
        x = layers.Dense(n, activation="relu", name=f"dense{i}")(x)
    return layers.Dense(10, name="logits")(x)


def tiny(x: Any) -> Any:
    """Build a network so small that only the cost of a step is left."""
    return mlp(x, (32,))


def resnet(x: Any) -> Any:
    """Build a ResNet: a first convolution, three blocks of two, and the logits."""

    def conv(x: Any, name: str, filters: int, size: int = 3, stride: int = 1) -> Any:
        return layers.Conv2D(filters, size, strides=stride, padding="same", use_bias=False, name=name)(x)

    x = layers.ReLU()(layers.BatchNormalization(name="norm")(conv(x, "conv", 16)))
    for i, (filters, stride) in enumerate(((16, 1), (32, 2), (64, 2))):
        y = layers.ReLU()(layers.BatchNormalization(name=f"block{i}_norm0")(conv(x, f"block{i}_conv0", filters, stride=stride)))
        y = layers.BatchNormalization(name=f"block{i}_norm1")(conv(y, f"block{i}_conv1", filters))
        shortcut = x if stride == 1 else conv(x, f"block{i}_shortcut", filters, 1, stride)
        x = layers.ReLU()(layers.Add()([shortcut, y]))
    return layers.Dense(10, name="logits")(layers.GlobalAveragePooling2D()(x))


def transformer(x: Any) -> Any:
    """Build a transformer that predicts a token at each position, with four heads of 32."""
    x = layers.Embedding(VOCABULARY, 128, name="embedding")(x)
    for i in range(4):
        y = layers.LayerNormalization(name=f"block{i}_norm0")(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 32, name=f"block{i}_attention")(y, y, use_causal_mask=True)])
        y = layers.LayerNormalization(name=f"block{i}_norm1")(x)
        y = layers.Dense(512, activation="relu", name=f"block{i}_dense0")(y)
        x = layers.Add()([x, layers.Dense(128, name=f"block{i}_dense1")(y)])
    return layers.Dense(VOCABULARY, name="logits")(layers.LayerNormalization(name="norm")(x))


NETWORKS: dict[str, Callable[[Any], Any]] = {"cnn": cnn, "mlp": mlp, "tiny": tiny, "resnet": resnet, "transformer": transformer}


def make_model(case: Case) -> Any:
    """Make the case's model with its initial weights."""
    x = keras.Input(case.shape, dtype="int32" if case.name == "transformer" else "float32")
    model = keras.Model(x, NETWORKS[case.name](x))
    for weight in model.trainable_variables:
        name, what = weight.path.rsplit("/", 1)
        if what in ("kernel", "embeddings"):
            weight.assign(draw(name, tuple(weight.shape)))
    return model


def make_loss(reduction: Any = "sum_over_batch_size") -> Any:
    """Make the loss of all cases; with reduction None, one loss per example."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


def per_example(losses: Any) -> Any:
    """Return the mean over an example's positions, if there are several."""
    return losses if len(losses.shape) == 1 else keras.ops.mean(losses, axis=-1)


def fit_rounds(case: Case, model: Any, steps: int, **options: Any) -> Callable[[], Round]:
    """Compile the model, with more options. A round is a ``fit`` of one shuffled epoch, with accuracy."""
    x, y = data(case, steps)
    options = {"steps_per_execution": min(case.steps_per_execution, steps)} | options
    model.compile("adam", make_loss(), metrics=["accuracy"], **options)

    def train() -> Round:
        history = model.fit(x, y, batch_size=case.batch, epochs=1, shuffle=True, verbose=0).history
        return Round(history["loss"][0])

    return train
