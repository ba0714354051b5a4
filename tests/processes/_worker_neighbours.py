"""One worker, which trains a model of LIBRARY for two epochs and saves every step to FOLDER. It kills itself at step KILL_AT."""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "devices"))

import replicant

if (count := int(os.environ.get("DEVICES", "1"))) > 1:
    replicant.set_virtual_devices(count)

import equinox as eqx
import jax
import numpy as np
import optax
from flax import nnx

kind = os.environ["STRATEGY"]
strategy = getattr(replicant, kind)()

from _neighbours import EqxMLP, LinenMLP, NnxMLP, all_reduce, batches, cross_entropy, nnx_step  # noqa: E402
from flax.training.train_state import TrainState  # noqa: E402

library, tx = os.environ["LIBRARY"], optax.adam(1e-2)
checkpoint = replicant.Checkpoint(done=0)

if library == "nnx":
    with strategy.scope():
        model = NnxMLP(nnx.Rngs(0), rate=0.3)
        checkpoint.model, checkpoint.optimizer = model, nnx.Optimizer(model, tx, wrt=nnx.Param)

    def step(x, y):
        strategy.run(nnx_step, args=(checkpoint.model, checkpoint.optimizer, x, y))

    def weights():
        return nnx.state(checkpoint.model, nnx.Param)

elif library == "linen":
    linen = LinenMLP()
    checkpoint.state = TrainState.create(
        apply_fn=linen.apply, params=linen.init(jax.random.key(0), np.zeros((1, 4), np.float32))["params"], tx=tx
    )

    def linen_step(state, x, y):
        grads = jax.grad(lambda params: cross_entropy(state.apply_fn({"params": params}, x), y))(state.params)
        return state.apply_gradients(grads=all_reduce(grads))

    def step(x, y):
        checkpoint.state = strategy.run(linen_step, args=(checkpoint.state, x, y))

    def weights():
        return checkpoint.state.params

else:
    checkpoint.model = EqxMLP(jax.random.key(0))
    checkpoint.slots = tx.init(eqx.filter(checkpoint.model, eqx.is_array))

    def equinox_step(model, slots, x, y):
        grads = eqx.filter_grad(lambda m: cross_entropy(jax.vmap(m)(x), y))(model)
        updates, slots = tx.update(all_reduce(grads), slots, model)
        return eqx.apply_updates(model, updates), slots

    def step(x, y):
        checkpoint.model, checkpoint.slots = strategy.run(equinox_step, args=(checkpoint.model, checkpoint.slots, x, y))

    def weights():
        return checkpoint.model


manager = replicant.CheckpointManager(checkpoint, os.environ["FOLDER"], max_to_keep=2)
manager.restore_or_initialize()
began, kill_at = checkpoint.done, int(os.environ.get("KILL_AT", "-1"))
steps = [batch for _ in range(2) for batch in batches(strategy, "mlp")]
for i in range(began, len(steps)):
    step(*steps[i])
    checkpoint.done = i + 1
    manager.save()
    if i + 1 == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
manager.close()
leaves = [np.asarray(x).tolist() for x in jax.tree.leaves(weights())]
Path(os.environ["ANSWER"]).write_text(json.dumps({"began": began, "steps": len(steps), "weights": leaves}))
