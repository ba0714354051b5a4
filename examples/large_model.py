"""Train a decoder whose weights, gradients and optimizer state lie in slices on all devices, with Keras ``fit``.

    python examples/large_model.py
    python examples/large_model.py --size 1.3b --plan v5e:16x16
    python examples/large_model.py --size 70b --plan v5p:8x8x8 --quick

The first line trains a tiny model on virtual devices of this machine's CPU. With --plan, nothing is trained, and no weights are
made: the step is compiled for devices that need not be here (`pip install 'replicant-jax[tpu-plan]'` for TPUs), and the program
says what each of them would hold. The exit status is then 1 if the step does not fit. The texts are synthetic: numbers that count
up.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported

import keras
import numpy as np

import replicant
from _options import positive_int
from plan_transformer import a_text, transformer
from replicant.data import Dataset
from replicant.plan import make_plan


class Size(NamedTuple):
    """The numbers that make a decoder."""

    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int


SIZES = {
    "tiny": Size(2, 64, 4, 32, 128),
    "1.3b": Size(24, 2048, 16, 2048, 32768),
    "7b": Size(32, 4096, 32, 2048, 32768),
    "70b": Size(86, 8192, 64, 2048, 32768),
}


def main(argv: list[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = parse(argv)
    if options.plan is not None:
        plan = make_plan(lambda: train(options), options.plan, quick=options.quick)
        print(plan)
        return 0 if plan.fits else 1
    replicant.set_virtual_devices(options.devices)  # without effect where there are GPUs or TPUs
    train(options)
    return 0


def train(options: argparse.Namespace) -> None:
    """Train the model, and say how it lies on the devices."""
    keras.mixed_precision.set_global_policy(options.policy)
    keras.utils.set_random_seed(0)
    if options.mirrored:
        strategy = replicant.MirroredStrategy()
    else:
        strategy = replicant.FullyShardedStrategy(model_parallel_size=options.model_parallel_size)
    batch_size = options.batch_size_per_replica * strategy.num_replicas_in_sync
    with strategy.scope():
        model = transformer(options)
        model.compile(keras.optimizers.Adam(options.learning_rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    if options.accumulate_steps > 1:
        replicant.keras.use_micro_batches(model, accumulate_steps=options.accumulate_steps)
    texts = Dataset.range(batch_size * options.steps).map(lambda i: halves(a_text(i, options))).batch(batch_size)
    model.fit(texts, epochs=options.epochs, verbose=2 if options.plan is None else 0)  # type: ignore[arg-type]  # Keras's own default is a string
    if isinstance(strategy, replicant.FullyShardedStrategy):
        print(str(strategy.explain([*model.variables, *model.optimizer.variables])).splitlines()[-1])


def halves(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what the model reads, and the token after each of them."""
    return text[:-1], text[1:]


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description="A decoder in slices.")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="the number of parameters (default: %(default)s)")
    for name in Size._fields:
        parser.add_argument(f"--{name}", type=positive_int, help="instead of that of the size")
    parser.add_argument("--devices", type=positive_int, default=4, help="virtual devices on a CPU (default: %(default)s)")
    parser.add_argument("--batch-size-per-replica", type=positive_int, default=1, help="texts per replica (default: %(default)s)")
    parser.add_argument("--epochs", type=positive_int, default=2, help="number of epochs (default: %(default)s)")
    parser.add_argument("--steps", type=positive_int, default=20, help="steps of an epoch (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of Adam (default: %(default)s)")
    parser.add_argument("--policy", help="dtype policy of Keras (default: float32 for tiny, else mixed_bfloat16)")
    parser.add_argument(
        "--remat", action=argparse.BooleanOptionalAction, default=True, help="keep no activations inside the blocks"
    )
    parser.add_argument("--accumulate-steps", type=positive_int, default=1, help="micro-batches of a step (default: %(default)s)")
    parser.add_argument("--model-parallel-size", type=positive_int, default=1, help="devices of a replica (default: %(default)s)")
    parser.add_argument("--mirrored", action="store_true", help="use a MirroredStrategy, for comparison")
    parser.add_argument("--plan", metavar="TOPOLOGY", help="plan a step for devices such as v5e:16x16, instead of training")
    parser.add_argument("--quick", action="store_true", help="compile the plan with little effort")
    options = parser.parse_args(argv)
    for name, number in SIZES[options.size]._asdict().items():
        if getattr(options, name) is None:
            setattr(options, name, number)
    if options.width % options.heads:
        parser.error(f"--width {options.width} is no multiple of --heads {options.heads}")
    options.policy = options.policy or ("float32" if options.size == "tiny" else "mixed_bfloat16")
    return options


if __name__ == "__main__":
    sys.exit(main())
