"""TensorFlow's MirroredStrategy on virtual CPU devices or one GPU: Keras ``fit``, and the custom loop of the guide."""

import argparse
import importlib
import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from _cases import data
from _models import fit_rounds, make_loss, make_model, per_example
from _serve import Round, parse, serve

tf: Any = importlib.import_module("tensorflow")


def make(args: argparse.Namespace) -> Callable[[], Round]:
    """Make a round of training."""
    if args.case.gpu:
        strategy = tf.distribute.MirroredStrategy(["GPU:0"])
    else:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * args.replicas)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(args.replicas)])
    if args.way == "loop":
        return loop(args, strategy)
    options: dict[str, Any] = {"jit_compile": args.compiled}
    if args.replicas > 1:
        options["steps_per_execution"] = 1  # more fail with "You must feed a value for placeholder tensor"
    with strategy.scope():
        return fit_rounds(args.case, make_model(args.case), args.steps, **options)


def loop(args: argparse.Namespace, strategy: Any) -> Callable[[], Round]:
    """Make a round that is a loop over a distributed dataset."""
    x, y = data(args.case, args.steps)
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    in_order, shuffled = (
        strategy.experimental_distribute_dataset(dataset.batch(args.case.batch, drop_remainder=True))
        for dataset in (rows, rows.shuffle(len(x)))
    )
    with strategy.scope():
        model, optimizer = make_model(args.case), keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        loss_object = make_loss(reduction=None)

    def train_step(batch: Any) -> Any:
        inputs, labels = batch
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            losses = per_example(loss_object(labels, logits))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=args.case.batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)
        return loss

    @tf.function(jit_compile=args.compiled)
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
