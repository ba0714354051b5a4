"""Measures what the CPU kernels are worth: training steps of four models, and single operations, with and without them.

All ways are compiled in this process. "as JAX comes" has all kernels off, and XLA's option as jaxlib sets it. Steps alternate
between the ways, each after one that does not count, and donate nothing. Medians and minima are printed in ms, and as "cpu" the
least processor time, which other programs disturb least. Run: ``python benchmarks/kernels.py [--steps 15] [--models cnn mlp]
[--ways kernels "as JAX comes"] [--only-models] [--only-products]``.
"""

import argparse
import contextlib
import functools
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ["REPLICANT_KERNELS"] = (
    "attention,avg_pool,direct_conv,dot,max_pool,strided_conv"  # each program says itself which library computes its convolutions
)

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax
from keras import layers

from replicant import kernels
from replicant.kernels.xla._flags import OPTION, VALUE

BATCH = 128
WARM_UP_STEPS = 2
Way = tuple[bool, bool]  # whether the lowerings are on, and whether the option is set
WAYS: dict[str, Way] = {
    "kernels": (True, True),
    "only conv": (False, True),
    "all but conv": (True, False),
    "as JAX comes": (False, False),
}


def cnn() -> keras.Model:
    """Make the network of the Fashion-MNIST guide."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def mlp() -> keras.Model:
    """Make an MLP 784-512-512-10."""
    return keras.Sequential(
        [keras.Input((784,)), layers.Dense(512, activation="relu"), layers.Dense(512, activation="relu"), layers.Dense(10)]
    )


def resnet() -> keras.Model:
    """Make a ResNet with eight layers for images of CIFAR's shape."""

    def conv(x: Any, filters: int, size: int, stride: int = 1) -> Any:
        return layers.Conv2D(filters, size, strides=stride, padding="same", use_bias=False)(x)

    inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(layers.BatchNormalization()(conv(inputs, 16, 3)))
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        y = layers.ReLU()(layers.BatchNormalization()(conv(x, filters, 3, stride)))
        y = layers.BatchNormalization()(conv(y, filters, 3))
        x = layers.ReLU()(layers.Add()([x if stride == 1 else conv(x, filters, 1, stride), y]))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def transformer() -> keras.Model:
    """Make a transformer with four blocks of width 128, for sequences of 128 tokens."""
    inputs = keras.Input((128,), dtype="int32")
    x = layers.Embedding(1000, 128)(inputs)
    for _ in range(4):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 32)(y, y)])
        y = layers.Dense(512, activation="relu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(128)(y)])
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


MODELS: dict[str, Callable[[], keras.Model]] = {"cnn": cnn, "mlp": mlp, "resnet": resnet, "transformer": transformer}


def training_step(name: str) -> tuple[Callable[..., Any], Any, tuple[Any, Any]]:
    """Return a hand-written step with loss, gradients, Adam and accuracy, its first state, and a batch."""
    keras.utils.set_random_seed(1)
    model, optimizer = MODELS[name](), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(0)
    shape = (BATCH, *model.inputs[0].shape[1:])
    x = rng.integers(0, 1000, shape).astype(np.int32) if name == "transformer" else rng.normal(size=shape).astype(np.float32)

    def loss(trainable: Any, others: Any, x: Any, y: Any) -> Any:
        called = model.stateless_call(trainable, others, x, training=True)
        logits, others = called[0], called[1]
        value = -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()
        return value, (logits, others)

    def step(state: Any, x: Any, y: Any) -> Any:
        trainable, others, slots, correct = state
        (value, (logits, others)), gradients = jax.value_and_grad(loss, has_aux=True)(trainable, others, x, y)
        updated = optimizer.stateless_apply(slots, gradients, trainable)
        trainable, slots = updated[0], updated[1]
        return (trainable, others, slots, correct + (logits.argmax(-1) == y).sum()), value

    variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    state = (*[[v.value for v in group] for group in variables], jnp.zeros((), jnp.int32))
    return step, state, (jnp.asarray(x), jnp.asarray(rng.integers(0, 10, BATCH)))


def compiled(function: Callable[..., Any], way: Way, *args: Any) -> Any:
    """Compile `function` in one of the ways."""
    lowerings, option = way
    with contextlib.nullcontext() if lowerings else kernels.disabled():
        lowered = jax.jit(function).lower(*args)
    return lowered.compile(compiler_options={OPTION.removeprefix("--"): VALUE} if option else None)


Times = dict[str, list[tuple[float, float]]]


def alternate(programs: Mapping[str, Callable[[], Any]], rounds: int) -> Times:
    """Return the milliseconds of each round of each program, by the clock and of all processors.

    The rounds alternate. A program that comes after a slower one takes longer, since it finds neither its data in the caches nor
    its memory mapped. So each runs once before it is timed, as in training, and every other round goes backwards.
    """
    times: Times = {name: [] for name in programs}
    for number in range(WARM_UP_STEPS + rounds):
        for name in sorted(programs, key=[*programs].index, reverse=number % 2 == 1):
            program = programs[name]
            jax.block_until_ready(program())
            start, processor = time.perf_counter(), time.process_time()
            jax.block_until_ready(program())
            times[name].append(((time.perf_counter() - start) * 1e3, (time.process_time() - processor) * 1e3))
    return {name: found[WARM_UP_STEPS:] for name, found in times.items()}


def report(name: str, times: Times) -> None:
    """Print one row."""
    cells = []
    for way, found in times.items():
        by_clock, processor = zip(*found, strict=True)
        cells.append(f"{way} {statistics.median(by_clock):8.2f} (min {min(by_clock):.2f}, cpu {min(processor):.2f})")
    print(f"{name:32} {'   '.join(cells)}", flush=True)


def models(names: list[str], ways: list[str], rounds: int) -> None:
    """Measure training steps."""
    for name in names:
        step, state, (x, y) = training_step(name)
        programs = {way: compiled(step, WAYS[way], state, x, y) for way in ways}
        losses = {way: float(program(state, x, y)[1]) for way, program in programs.items()}
        assert max(losses.values()) - min(losses.values()) < 1e-5, losses
        calls = {way: functools.partial(program, state, x, y) for way, program in programs.items()}
        report(name, alternate(calls, rounds))


POOLS = {
    "2x2": ((128, 26, 26, 32), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    "3x3 stride 2": ((32, 56, 56, 64), (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    "3x3 stride 1": ((32, 32, 32, 32), (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
    "2x2 channels first": ((32, 64, 26, 26), (1, 1, 2, 2), (1, 1, 2, 2), "VALID"),
}


def pools(rounds: int) -> None:
    """Measure pooling and its gradient."""
    for name, (shape, window, strides, padding) in POOLS.items():
        x = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
        for kind, combine, first in (("max", lax.max, -np.inf), ("sum", lax.add, 0.0)):

            def pool(x: Any, combine: Any = combine, first: float = first, how: Any = (window, strides, padding)) -> Any:
                return lax.reduce_window(x, first, combine, *how)

            def gradient(x: Any, cotangent: Any, pool: Any = pool) -> Any:
                return jax.vjp(pool, x)[1](cotangent)[0]

            for label, function, args in ((kind, pool, (x,)), (f"gradient of {kind}", gradient, (x, pool(x)))):
                ways = {way: WAYS[way] for way in ("kernels", "as JAX comes")}
                programs = {way: compiled(function, how, *args) for way, how in ways.items()}
                calls = {way: functools.partial(program, *args) for way, program in programs.items()}
                report(f"{label} {name}", alternate(calls, rounds))


REPEATED = 10
PRODUCTS = {  # of matrices whose first axes meet, after those of a batch
    "4096x128, 4096x128": ((4096, 128), (4096, 128)),
    "4096x128, 4096x512": ((4096, 128), (4096, 512)),
    "4096x512, 4096x128": ((4096, 512), (4096, 128)),
    "1024x192, 1024x768": ((1024, 192), (1024, 768)),
    "1024x768, 1024x192": ((1024, 768), (1024, 192)),
    "128x512, 128x512": ((128, 512), (128, 512)),
    "2048x3072, 2048x768": ((2048, 3072), (2048, 768)),
    "128 of 128x128, 128x32": ((128, 128, 128), (128, 128, 32)),
    "128 of 128x32, 128x128": ((128, 128, 32), (128, 128, 128)),
    "48 of 64x64, 64x64": ((48, 64, 64), (48, 64, 64)),
    "32 of 512x512, 512x64": ((32, 512, 512), (32, 512, 64)),
}


def products(rounds: int) -> None:
    """Measure products, ten in a program, so that it is not the memory of results that is measured."""
    rng = np.random.default_rng(0)
    for name, shapes in PRODUCTS.items():
        batch = (0,) if len(shapes[0]) == 3 else ()
        dimensions = (((len(batch),), (len(batch),)), (batch, batch))

        def repeated(lhs: Any, rhs: Any, dimensions: Any = dimensions) -> Any:
            total = jnp.float32(0)
            for _ in range(REPEATED):
                lhs, rhs, total = lax.optimization_barrier((lhs, rhs, total))
                total += lax.optimization_barrier(lax.dot_general(lhs, rhs, dimensions)).ravel()[0]
            return total

        args = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
        times = with_and_without(repeated, args, rounds)
        report(name, times)
        work = 2 * REPEATED * args[0].size * shapes[1][-1]
        print(" " * 33 + ", ".join(f"{way} {work / min(found)[0] / 1e6:.0f} GFLOP/s" for way, found in times.items()), flush=True)


ATTENTION = {
    "32x128x4x32, causal": ((32, 128, 4, 32), True),
    "32x128x4x32": ((32, 128, 4, 32), False),
    "4x512x8x64, causal": ((4, 512, 8, 64), True),
}


def attention(rounds: int) -> None:
    """Measure attention with its gradient."""
    rng = np.random.default_rng(0)
    for name, (shape, is_causal) in ATTENTION.items():

        def loss(arrays: Any, is_causal: bool = is_causal) -> Any:
            return jnp.sum(jnp.asarray(keras.ops.dot_product_attention(*arrays, is_causal=is_causal)) ** 2)

        arrays = [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(3)]
        report(f"attention {name}", with_and_without(jax.value_and_grad(loss), [arrays], rounds))


def with_and_without(function: Callable[..., Any], args: Any, rounds: int) -> Times:
    """Measure a function with the lowerings and without them. XLA's option is set for both."""
    programs = {way: compiled(function, WAYS[way], *args) for way in ("kernels", "only conv")}
    return alternate({way: functools.partial(program, *args) for way, program in programs.items()}, rounds)


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description="Compare the CPU kernels with JAX's own.")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--models", nargs="*", choices=[*MODELS], default=[*MODELS])
    parser.add_argument("--ways", nargs="*", choices=[*WAYS], default=[*WAYS])
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--only-products", action="store_true", help="only products and attention")
    only.add_argument("--only-models", action="store_true", help="no single operations")
    arguments = parser.parse_args()
    print(f"jax {jax.__version__}, jaxlib {version('jaxlib')}, keras {keras.__version__}, Python {platform.python_version()}")
    if not arguments.only_products:
        models(arguments.models, arguments.ways, arguments.steps)
    if not (arguments.only_products or arguments.only_models):
        pools(arguments.steps)
    if not arguments.only_models:
        products(arguments.steps)
        attention(arguments.steps)


if __name__ == "__main__":
    main()
