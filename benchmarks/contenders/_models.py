"""The models of the cases in Keras, on any backend. Every layer with weights has a name, on which its weights depend (``draw``)."""

from collections.abc import Callable
from typing import Any

import keras
from _cases import (
    CATEGORIES,
    CROSSED,
    GPT2_HEADS,
    GPT2_LAYERS,
    GPT2_VOCABULARY,
    GPT2_WIDTH,
    MOBILENET_BLOCKS,
    RESNET50_CLASSES,
    RESNET50_STAGES,
    UNET_LEVELS,
    VIT_LAYERS,
    VIT_WIDTH,
    VOCABULARY,
    WORDS,
    Case,
    data,
    draw,
)
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


def lstm(x: Any) -> Any:
    """Build a classifier of texts."""
    x = layers.LSTM(128, name="lstm")(layers.Embedding(WORDS, 128, name="embedding")(x))
    return layers.Dense(2, name="logits")(x)


def mobilenet(x: Any) -> Any:
    """Build a MobileNet: a first convolution, and seven depthwise separable ones."""

    def norm(x: Any, name: str) -> Any:
        return layers.ReLU()(layers.BatchNormalization(name=name)(x))

    x = norm(layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False, name="conv")(x), "norm")
    for i, (filters, stride) in enumerate(MOBILENET_BLOCKS):
        depthwise = layers.DepthwiseConv2D(3, strides=stride, padding="same", use_bias=False, name=f"block{i}_depthwise")
        x = norm(depthwise(x), f"block{i}_norm0")
        x = norm(layers.Conv2D(filters, 1, use_bias=False, name=f"block{i}_pointwise")(x), f"block{i}_norm1")
    return layers.Dense(10, name="logits")(layers.GlobalAveragePooling2D()(x))


def unet(x: Any) -> Any:
    """Build a U-Net that classifies pixels: three levels down, and three up again."""

    def two(x: Any, name: str, filters: int) -> Any:
        for i in range(2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"{name}_conv{i}")(x)
        return x

    kept = []
    for i, filters in enumerate(UNET_LEVELS):
        kept.append(two(x, f"down{i}", filters))
        x = layers.MaxPooling2D()(kept[-1])
    x = two(x, "bottom", 2 * UNET_LEVELS[-1])
    for i, filters in reversed([*enumerate(UNET_LEVELS)]):
        x = layers.Conv2DTranspose(filters, 2, strides=2, name=f"up{i}")(x)
        x = two(layers.Concatenate()([kept[i], x]), f"up{i}", filters)
    return layers.Conv2D(3, 1, name="logits")(x)


def wide_deep(x: Any) -> Any:
    """Build a wide & deep network over columns of categories, one that crosses two of them, and counts."""
    categories = [x[:, i] for i in range(len(CATEGORIES) + 1)]
    embedded = [layers.Embedding(n, 16, name=f"deep{i}")(c) for i, (n, c) in enumerate(zip(CATEGORIES, categories, strict=False))]
    counts = keras.ops.log1p(keras.ops.cast(x[:, len(categories) :], "float32"))
    y = layers.Concatenate()([*embedded, counts])
    for i, n in enumerate((512, 256)):
        y = layers.Dense(n, activation="relu", name=f"dense{i}")(y)
    sizes = (*CATEGORIES, CROSSED)
    wide = [layers.Embedding(n, 2, name=f"wide{i}")(c) for i, (n, c) in enumerate(zip(sizes, categories, strict=True))]
    return layers.Add()([layers.Dense(2, name="logits")(y), *wide])


class Positions(layers.Layer):
    """Adds a learned vector to each position."""

    def build(self, input_shape: Any) -> None:
        """Make the vectors."""
        self.embeddings = self.add_weight(shape=input_shape[1:], name="embeddings")

    def call(self, inputs: Any) -> Any:
        """Return the sum."""
        return inputs + self.embeddings


def vit(x: Any) -> Any:
    """Build a vision transformer, with three heads of 64 and the mean of the positions instead of a class token."""
    x = layers.Reshape((-1, VIT_WIDTH))(layers.Conv2D(VIT_WIDTH, 8, strides=8, name="patches")(x))
    x = Positions(name="positions")(x)
    for i in range(VIT_LAYERS):
        y = layers.LayerNormalization(name=f"block{i}_norm0")(x)
        x = layers.Add()([x, layers.MultiHeadAttention(3, VIT_WIDTH // 3, name=f"block{i}_attention")(y, y)])
        y = layers.LayerNormalization(name=f"block{i}_norm1")(x)
        y = layers.Dense(4 * VIT_WIDTH, activation="gelu", name=f"block{i}_dense0")(y)
        x = layers.Add()([x, layers.Dense(VIT_WIDTH, name=f"block{i}_dense1")(y)])
    return layers.Dense(10, name="logits")(layers.GlobalAveragePooling1D()(layers.LayerNormalization(name="norm")(x)))


def resnet50(x: Any) -> Any:
    """Build ResNet-50 v1.5, whose bottlenecks have the stride in their 3x3 convolution. It scales bytes to [0, 1].

    As usual, the last gamma of a bottleneck begins with 0, so that the block begins as its shortcut.
    """

    def conv(x: Any, name: str, filters: int, size: int = 1, stride: int = 1, *, active: bool = True, gamma: str = "ones") -> Any:
        padded = layers.ZeroPadding2D(size // 2)(x) if size > 1 else x  # on both sides, with a stride, too
        # Zeros are made quickly, and `make_model` draws the weights.
        made = layers.Conv2D(filters, size, strides=stride, use_bias=False, kernel_initializer="zeros", name=name)
        norm = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, gamma_initializer=gamma, name=f"{name}_norm")
        return layers.ReLU()(norm(made(padded))) if active else norm(made(padded))

    x = conv(layers.Rescaling(1 / 255)(x), "conv", 64, 7, 2)
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))  # after ReLU, zeros do not change a maximum
    for stage, (filters, blocks) in enumerate(RESNET50_STAGES):
        for block in range(blocks):
            name, stride = f"stage{stage}_block{block}", 2 if stage > 0 and block == 0 else 1
            y = conv(conv(x, f"{name}_conv0", filters), f"{name}_conv1", filters, 3, stride)
            y = conv(y, f"{name}_conv2", 4 * filters, active=False, gamma="zeros")
            shortcut = conv(x, f"{name}_shortcut", 4 * filters, 1, stride, active=False) if block == 0 else x
            x = layers.ReLU()(layers.Add()([shortcut, y]))
    return layers.Dense(RESNET50_CLASSES, name="logits")(layers.GlobalAveragePooling2D()(x))


def gelu_tanh(x: Any) -> Any:
    """Return the tanh form of GELU."""
    return keras.activations.gelu(x, approximate=True)


def gpt2(x: Any) -> Any:
    """Build GPT-2 small without dropout. Its logits are products with the embeddings."""
    # Keras would compute the logits of `model(x)` in float32, and those of `fit` in the policy's dtype.
    dtype = keras.mixed_precision.dtype_policy().compute_dtype
    embedding = layers.ReversibleEmbedding(GPT2_VOCABULARY, GPT2_WIDTH, reverse_dtype=dtype, name="embedding")
    x = Positions(name="positions")(embedding(x))
    for i in range(GPT2_LAYERS):
        y = layers.LayerNormalization(epsilon=1e-5, name=f"block{i}_norm0")(x)
        attention = layers.MultiHeadAttention(GPT2_HEADS, GPT2_WIDTH // GPT2_HEADS, name=f"block{i}_attention")
        x = layers.Add()([x, attention(y, y, use_causal_mask=True)])
        y = layers.LayerNormalization(epsilon=1e-5, name=f"block{i}_norm1")(x)
        y = layers.Dense(4 * GPT2_WIDTH, activation=gelu_tanh, name=f"block{i}_dense0")(y)
        x = layers.Add()([x, layers.Dense(GPT2_WIDTH, name=f"block{i}_dense1")(y)])
    return embedding(layers.LayerNormalization(epsilon=1e-5, name="norm")(x), reverse=True)


NETWORKS: dict[str, Callable[[Any], Any]] = {
    network.__name__: network
    for network in (cnn, mlp, tiny, resnet, transformer, lstm, mobilenet, unet, wide_deep, vit, resnet50, gpt2)
}


def make_model(case: Case) -> Any:
    """Make the case's model with its initial weights. Logits have the dtype of its policy, and the loss makes them float32."""
    keras.mixed_precision.set_global_policy(case.policy)
    x = keras.Input(case.shape, dtype=case.dtype)
    model = keras.Model(x, NETWORKS[case.network or case.name](x))
    for weight in model.trainable_variables:
        name, what = weight.path.rsplit("/", 1)
        if what in ("kernel", "embeddings"):
            weight.assign(draw(name, tuple(weight.shape)))
        elif what == "recurrent_kernel":
            weight.assign(draw(weight.path, tuple(weight.shape)))
    return model


def make_loss(reduction: Any = "sum_over_batch_size") -> Any:
    """Make the loss of all cases; with reduction None, one loss per example."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


def per_example(losses: Any) -> Any:
    """Return the mean over an example's positions, if there are several."""
    return losses if len(losses.shape) == 1 else keras.ops.mean(losses, axis=tuple(range(1, len(losses.shape))))


def fit_rounds(case: Case, model: Any, steps: int, **options: Any) -> Callable[[], Round]:
    """Compile the model, with more options. A round is a ``fit`` of one epoch, with accuracy. All but the first are shuffled."""
    x, y = data(case, steps)
    options = {"steps_per_execution": min(case.steps_per_execution, steps)} | options
    model.compile("adam", make_loss(), metrics=["accuracy"], **options)

    first = True

    def train() -> Round:
        nonlocal first
        history = model.fit(x, y, batch_size=case.batch, epochs=1, shuffle=not first, verbose=0).history
        first = False
        return Round(history["loss"][0])

    return train
