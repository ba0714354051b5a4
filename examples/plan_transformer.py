"""Train a decoder-only transformer of 1.3 billion parameters with a custom training loop: a program to plan before renting devices.

    replicant plan examples/plan_transformer.py --topology v5e:16x16
    replicant plan examples/plan_transformer.py --topology v5e:16x16 --args=--shard-optimizer-state
    python examples/plan_transformer.py --layers 2 --width 128 --heads 4 --length 64 --vocabulary 512 --steps 3

A plan needs only the shapes of the parameters, and no memory for them. The texts are synthetic: numbers that count up.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported

import keras
import numpy as np

import replicant
from _options import positive_int
from replicant.data import Dataset


def main(argv: list[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = parse(argv)
    keras.mixed_precision.set_global_policy(options.policy)
    strategy = replicant.MirroredStrategy(shard_optimizer_state=options.shard_optimizer_state)
    batch_size = options.batch_size_per_replica * strategy.num_replicas_in_sync
    with strategy.scope():
        model, optimizer = transformer(options), keras.optimizers.Adam(2e-4)
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(tokens: Any) -> Any:
        with replicant.GradientTape() as tape:
            logits = model(tokens[:, :-1], training=True)
            each = keras.ops.mean(losses(tokens[:, 1:], logits), axis=-1)
            loss = replicant.compute_average_loss(each, global_batch_size=batch_size)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    @replicant.function
    def step(tokens: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(tokens,)))

    texts = Dataset.range(batch_size * options.steps).map(lambda i: a_text(i, options)).batch(batch_size)
    for number, tokens in enumerate(strategy.experimental_distribute_dataset(texts)):
        print(f"step {number + 1}: loss {float(step(tokens)):.4f}")
    return 0


def a_text(number: int, options: argparse.Namespace) -> np.ndarray:
    """Make a text with one token more than the model reads, because each token is also the label of the one before it."""
    return ((np.arange(options.length + 1) + number) % options.vocabulary).astype(np.int32)


def transformer(options: argparse.Namespace) -> keras.Model:
    """Make a model from token numbers (batch, length) to logits (batch, length, vocabulary)."""
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(options.vocabulary, options.width)(tokens)
    for _ in range(options.layers):
        x = Block(options.width, options.heads, remat=options.remat)(x)
    x = keras.layers.LayerNormalization()(x)
    return keras.Model(tokens, keras.layers.Dense(options.vocabulary, use_bias=False, dtype=options.policy)(x))


class Block(keras.layers.Layer):
    """Causal attention and then two dense layers, each with a residual connection. With `remat`, gradients compute it again."""

    def __init__(self, width: int, heads: int, *, remat: bool):
        super().__init__()
        self.before = [keras.layers.LayerNormalization(), keras.layers.LayerNormalization()]
        self.attention = keras.layers.MultiHeadAttention(heads, width // heads, use_bias=False)
        self.wide = keras.layers.Dense(4 * width, activation="gelu")
        self.narrow = keras.layers.Dense(width)
        self.remat = remat

    def build(self, input_shape: Any) -> None:
        """Make the variables."""
        for layer in self.before:
            layer.build(input_shape)
        self.attention.build(input_shape, input_shape)
        self.wide.build(input_shape)
        self.narrow.build((*input_shape[:-1], 4 * input_shape[-1]))

    def call(self, x: Any) -> Any:
        """Map an array (batch, length, width) to one of the same shape."""

        def body(x: Any) -> Any:  # made anew each time: JAX keeps the trace of a function that it knows, with that trace's weights
            return self._body(x)

        return keras.remat(body)(x) if self.remat else body(x)

    def _body(self, x: Any) -> Any:
        y = self.before[0](x)
        x = x + self.attention(y, y, use_causal_mask=True)
        return x + self.narrow(self.wide(self.before[1](x)))


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description="A decoder-only transformer.")
    sizes = {
        "layers": 24,
        "width": 2048,
        "heads": 16,
        "length": 2048,
        "vocabulary": 32768,
        "batch-size-per-replica": 1,
        "steps": 10,
    }
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=positive_int, default=size, help="default: %(default)s")
    parser.add_argument("--policy", default="mixed_bfloat16", help="dtype policy of Keras (default: %(default)s)")
    parser.add_argument(
        "--remat", action=argparse.BooleanOptionalAction, default=True, help="keep no activations inside the blocks"
    )
    parser.add_argument("--shard-optimizer-state", action="store_true", help="give each device a slice of it")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
