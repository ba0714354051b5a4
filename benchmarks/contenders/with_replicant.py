"""Replicant: ``fit``, and the custom loop of the guide."""

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import replicant  # before keras, because it sets options that JAX reads when it starts

# isort: split
import keras
from _cases import data
from _models import fit_rounds, make_loss, make_model, per_example
from _serve import Round, parse, serve

from replicant.data import Dataset


def make(args: argparse.Namespace) -> Callable[[], Round]:
    """Make a round of training."""
    if args.case.gpu:
        strategy = replicant.MirroredStrategy(["gpu:0"])
    else:
        replicant.set_virtual_devices(args.replicas)
        strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(args.replicas)])
    if args.way == "fit":
        with strategy.scope():
            model = make_model(args.case)
        return fit_rounds(args.case, model, args.steps)
    return loop(args, strategy)


def loop(args: argparse.Namespace, strategy: replicant.Strategy) -> Callable[[], Round]:
    """Make a round that is a loop over a distributed dataset."""
    x, y = data(args.case, args.steps)
    rows = Dataset.from_tensor_slices((x, y))
    in_order, shuffled = (
        strategy.experimental_distribute_dataset(dataset.batch(args.case.batch)) for dataset in (rows, rows.shuffle(len(x)))
    )
    with strategy.scope():
        model, optimizer = make_model(args.case), keras.optimizers.Adam()
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    loss_object = make_loss(reduction=None)

    def train_step(batch: Any) -> Any:
        inputs, labels = batch
        with replicant.GradientTape() as tape:
            logits = model(inputs, training=True)
            losses = per_example(loss_object(labels, logits))
            loss = replicant.compute_average_loss(losses, global_batch_size=args.case.batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)
        return loss

    @replicant.function
    def distributed_train_step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(train_step, args=(batch,)), axis=None)

    distributed = in_order

    def train() -> Round:
        nonlocal distributed
        total: Any = 0.0
        for batch in distributed:
            total += distributed_train_step(batch)
        distributed = shuffled
        accuracy.reset_state()
        return Round(float(total) / args.steps)

    return train


if __name__ == "__main__":
    serve(parse(), make)
