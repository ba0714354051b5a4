"""Lowers the training steps of the examples and guides for GPUs that are not there, and draws the table in docs/performance.md.

A step must lower, overwrite its whole state, exchange no more often than it has to, call no Python on the host, move nothing
between host and device, and have no 64-bit floats. ``tests/devices/test_lowering_for_gpu.py`` holds each row to its figures.
Run: ``python benchmarks/gpu_lowering.py [--only transformer] [--write]``.
"""

import argparse
import functools
import importlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")
sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
sys.path.append(str(Path(__file__).resolve().parent / "contenders"))

import keras
import numpy as np

import custom_training
import keras_fit
import keras_multi_device
import large_model
import plan_resnet50
import plan_transformer
import replicant
import wide_embeddings
from _gpu import Cut, Facts, lower, partition
from replicant.data import Dataset

ROOT = Path(__file__).resolve().parents[1]
PAGE, BEGIN, END = ROOT / "docs" / "performance.md", "<!-- lowered for GPUs -->", "<!-- end of lowered for GPUs -->"
ROWS_PER_REPLICA, LENGTH, VOCABULARY = 2, 16, 64
DTYPES = ("float32", "mixed_bfloat16")
DEVICES = (2, 8)


class Row(NamedTuple):
    """A row of the table: what is trained, in which dtype policy, how, and on how many devices."""

    model: str
    dtype: str
    loop: str
    devices: int

    def __str__(self) -> str:
        """Return the row in the form in which tests name it."""
        return "-".join(map(str, self))


class Data(NamedTuple):
    """The shape and dtype of an example, and whether it has a label for each position."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    by_position: bool = False


TEXT = Data((LENGTH,), "int32")
IMAGE = Data((28, 28, 1))


def cnn() -> keras.Model:
    """Build the network of ``examples/custom_training.py``."""
    return keras.Sequential([keras.Input(IMAGE.shape), *custom_training.create_model().layers])


def mlp() -> keras.Model:
    """Build the network of ``examples/keras_multi_device.py``."""
    return keras_multi_device.create_compiled_model(784)


def resnet() -> keras.Model:
    """Build the ResNet of ``benchmarks/training.py``."""
    x = keras.Input((32, 32, 3))
    return keras.Model(x, importlib.import_module("_models").resnet(x))


def transformer(*, remat: bool = False) -> keras.Model:
    """Build the network of ``examples/plan_transformer.py``, with one layer."""
    options = plan_transformer.parse(
        f"--layers 1 --width 32 --heads 2 --vocabulary {VOCABULARY} --{'' if remat else 'no-'}remat "
        f"--policy {keras.mixed_precision.dtype_policy().name}".split()
    )
    return plan_transformer.transformer(options)


def dropout() -> keras.Model:
    """Build the network of ``examples/resume_after_kill.py``."""
    layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dropout(0.3), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((64,)), *layers])


def masked_transformer() -> keras.Model:
    """Build a text classifier whose attention leaves out padding."""
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, 32, mask_zero=True)(tokens)
    x = keras.layers.Add()([x, keras.layers.MultiHeadAttention(2, 16)(x, x)])
    return keras.Model(tokens, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(x)))


def lstm(*, bidirectional: bool = False) -> keras.Model:
    """Build a text classifier with an LSTM."""
    tokens = keras.Input((LENGTH,), dtype="int32")
    layer = keras.layers.LSTM(32)
    x = (keras.layers.Bidirectional(layer) if bidirectional else layer)(keras.layers.Embedding(VOCABULARY, 32)(tokens))
    return keras.Model(tokens, keras.layers.Dense(10)(x))


def embeddings() -> keras.Model:
    """Build the network of ``examples/wide_embeddings.py``, with ten classes, whose step also runs in one process."""
    one = wide_embeddings.make_model(VOCABULARY, 16)
    return keras.Model(one.input, keras.layers.Dense(10)(one.output))


MODELS: dict[str, tuple[Callable[[], Any], Data]] = {
    "CNN": (cnn, IMAGE),
    "MLP": (mlp, Data((784,))),
    "ResNet": (resnet, Data((32, 32, 3))),
    "transformer": (transformer, TEXT._replace(by_position=True)),
    "MLP, dropout": (dropout, Data((64,))),
    "transformer, remat": (functools.partial(transformer, remat=True), TEXT._replace(by_position=True)),
    "masked transformer": (masked_transformer, TEXT),
    "LSTM": (lstm, TEXT),
    "bidirectional LSTM": (functools.partial(lstm, bidirectional=True), TEXT),
    "embeddings": (embeddings, Data((2,), "int32")),
}


def batch_of(data: Data, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Make examples and labels. In a plan only their shapes count."""
    labels = (rows, LENGTH) if data.by_position else (rows,)
    return np.ones((rows, *data.shape), data.dtype), np.zeros(labels, np.int32)


def by_fit(model_of: Callable[[], Any], data: Data, **options: Any) -> None:
    """Train with ``fit``, with an accuracy."""
    strategy = replicant.MirroredStrategy(**options)
    rows = ROWS_PER_REPLICA * strategy.num_replicas_in_sync
    with strategy.scope():
        model = model_of()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(*batch_of(data, rows), batch_size=rows, verbose=0)


def by_loop(model_of: Callable[[], Any], data: Data, *, with_tape: bool, **options: Any) -> None:
    """Train with a custom loop, with a tape or ``value_and_grad``, and with an accuracy."""
    strategy = replicant.MirroredStrategy(**options)
    rows = ROWS_PER_REPLICA * strategy.num_replicas_in_sync
    with strategy.scope():
        model, optimizer = model_of(), keras.optimizers.Adam()
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def loss_of(x: Any, y: Any) -> tuple[Any, Any]:
        predictions = model(x, training=True)
        each = losses(y, predictions)
        if data.by_position:
            each = keras.ops.mean(each, axis=-1)
        return replicant.compute_average_loss(each, global_batch_size=rows), predictions

    def replica_step(x: Any, y: Any) -> Any:
        if with_tape:
            with replicant.GradientTape() as tape:
                loss, predictions = loss_of(x, y)
            gradients = tape.gradient(loss, model.trainable_variables)
        else:
            (loss, predictions), gradients = replicant.value_and_grad(loss_of, model.trainable_variables, has_aux=True)(x, y)
        optimizer.apply(gradients, model.trainable_variables)
        accuracy.update_state(y, predictions)
        return loss

    @replicant.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch))

    for batch in strategy.experimental_distribute_dataset(Dataset.from_tensors(batch_of(data, rows))):
        step(batch)


LOOPS: dict[str, Callable[[Callable[[], Any], Data], None]] = {
    "fit": by_fit,
    "tape": functools.partial(by_loop, with_tape=True),
    "value_and_grad": functools.partial(by_loop, with_tape=False),
    "fit, sliced optimizer": functools.partial(by_fit, shard_optimizer_state=True),
    "tape, sliced optimizer": functools.partial(by_loop, with_tape=True, shard_optimizer_state=True),
}
FURTHER_MODELS = ("MLP, dropout", "transformer, remat", "masked transformer", "bidirectional LSTM", "embeddings")
EXAMPLES = (
    "examples/custom_training.py",
    "examples/keras_fit.py",
    "examples/large_model.py",
    "examples/plan_resnet50.py",
    "examples/plan_transformer.py",
)
LARGE = ("examples/plan_resnet50.py",)  # XLA compiles it for minutes


def rows() -> Iterator[Row]:
    """Yield all rows of the table."""
    models = [name for name in MODELS if name not in FURTHER_MODELS]
    all_loops = [*itertools.product(models, ("fit", "tape", "value_and_grad")), *itertools.product(FURTHER_MODELS, ("fit", "tape"))]
    yield from (Row(model, dtype, loop, n) for model, loop in all_loops for dtype in DTYPES for n in DEVICES)
    yield from (Row("transformer", "mixed_bfloat16", loop, 8) for loop in ("fit, sliced optimizer", "tape, sliced optimizer"))
    yield from (Row(name, dtype, "as it is", n) for name in EXAMPLES for dtype in DTYPES for n in DEVICES)


def program(row: Row) -> Callable[[], None]:
    """Return the program of a row. It sets Keras's dtype policy only while it runs."""

    def run() -> None:
        before = keras.mixed_precision.dtype_policy()
        keras.mixed_precision.set_global_policy(row.dtype)
        try:
            if row.model in EXAMPLES:
                example(row)
            else:
                LOOPS[row.loop](*MODELS[row.model])
        finally:
            keras.mixed_precision.set_global_policy(before)

    return run


def example(row: Row) -> None:
    """Run an example up to its first step, with data of zeros."""
    rows = ROWS_PER_REPLICA * row.devices
    images, labels = batch_of(IMAGE, rows)
    match Path(row.model).stem:
        case "custom_training":
            strategy = replicant.MirroredStrategy()
            data = custom_training.ImageData(images, labels, images, labels)
            inputs = custom_training.distribute(strategy, data, rows)
            steps = custom_training.build_steps(strategy, custom_training.create_parts(strategy), rows)
            steps.train_epoch(inputs.train)
        case "keras_fit":
            with replicant.MirroredStrategy().scope():
                model = keras_fit.create_model(IMAGE.shape)
                keras_fit.compile_model(model)
            model.fit(Dataset.from_tensor_slices((images, labels)).batch(rows), verbose=0)
        case "large_model":
            sizes = f"--layers 2 --width 64 --heads 2 --length {LENGTH} --vocabulary {VOCABULARY} --batch-size-per-replica 2"
            large_model.train(large_model.parse([*sizes.split(), "--steps", "1", "--policy", row.dtype, "--plan", "here"]))
        case "plan_resnet50":
            plan_resnet50.main(["--batch-size-per-replica", str(ROWS_PER_REPLICA), "--steps", "1", "--policy", row.dtype])
        case "plan_transformer":
            sizes = f"--layers 2 --width 64 --heads 2 --length {LENGTH} --vocabulary {VOCABULARY} --batch-size-per-replica 2"
            plan_transformer.main([*sizes.split(), "--policy", row.dtype])


class Line(NamedTuple):
    """A line of the table: the steps of one model and loop."""

    model: str
    loop: str
    facts: dict[str, Facts]  # by dtype policy
    cut: Cut | None  # None if it takes too long to cut


def lines(only: str) -> Iterator[Line]:
    """Lower all rows, and cut the step of each line for two devices. Rows that differ in the number of devices must agree."""
    for (model, loop), group in itertools.groupby(rows(), lambda row: (row.model, row.loop)):
        if only not in model:
            continue
        found: dict[str, Facts] = {}
        for row in group:
            print(row, flush=True, file=sys.stderr)
            facts = lower(program(row), row.devices)
            if found.setdefault(row.dtype, facts) != facts:
                raise SystemExit(f"{row}: {facts} differs from {found[row.dtype]} on fewer devices")
        cut = None if model in LARGE else partition(program(Row(model, min(found), loop, 2)), 2)
        yield Line(model, loop, found, cut)


def table(found: list[Line]) -> str:
    """Draw the table in Markdown."""
    heads = ["model", "loop", "overwritten", "exchanged at once", "arrays", "cuDNN, float32", "cuDNN, bfloat16", "never there"]
    text = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for model, loop, facts, cut in found:
        one = next(iter(facts.values()))
        never = sum(x.callbacks + x.moves + x.has_float64 for x in facts.values())
        kernels = [facts[dtype].kernels if dtype in facts else "" for dtype in DTYPES]
        times = "" if cut is None else ", ".join(f"{n} {kind}" for kind, n in sorted(cut.exchanges.items()))
        arrays = "" if cut is None else str(sum(cut.arrays.values()))
        text.append(f"| {' | '.join([model, loop, f'{one.donated} of {one.state}', times, arrays, *kernels, str(never)])} |")
    return "\n".join(text)


def main() -> int:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/performance.md")
    options = parser.parse_args()
    replicant.set_virtual_devices(max(DEVICES))
    drawn = table(list(lines(options.only)))
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{drawn}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    else:
        print(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
