"""One worker with two devices, which starts STEPS steps one after the other, with evaluations between them."""

import json
import os
from pathlib import Path

import replicant

replicant.set_virtual_devices(2)
strategy = replicant.MultiWorkerMirroredStrategy()

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

num_steps = int(os.environ["STEPS"])
with strategy.scope():
    weight = replicant.Variable(jnp.eye(32))


def train_step(x):
    with replicant.GradientTape() as tape:
        loss = jnp.mean((x @ weight.value() - 1) ** 2)
    gradient = replicant.get_replica_context().all_reduce("MEAN", tape.gradient(loss, weight))
    weight.assign_sub(0.01 * gradient)
    return loss


def test_step(x):
    return jnp.mean((x @ weight.value() - 1) ** 2)


rng = np.random.default_rng(0)
rows = strategy.experimental_distribute_values_from_function(lambda context: rng.normal(size=(8, 32)).astype(np.float32))
losses = []
for number in range(num_steps):
    loss = strategy.run(train_step, args=(rows,))
    if number % 100 == 99:
        strategy.run(test_step, args=(rows,))
        losses.append(float(strategy.reduce("MEAN", loss)))
Path(os.environ["ANSWER"]).write_text(json.dumps(losses))
