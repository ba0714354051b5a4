"""A step written by hand in JAX, with Keras for a stateless forward pass and update, and ``shard_map`` for several replicas."""

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
from _cases import data
from _models import make_loss, make_model
from _serve import Round, parse, serve
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "replica"


def make(args: argparse.Namespace) -> Callable[[], Round]:
    """Make a round of training, with donated state, one batch on its way, and one step in flight.

    On a GPU, whose queue is asynchronous, nothing waits for a step before the round ends. Batches are on their way meanwhile.
    """
    if args.case.gpu:
        jax.devices("gpu")  # fails if there is none
    else:
        jax.config.update("jax_num_cpu_devices", args.replicas)
    x, y = data(args.case, args.steps)
    model, optimizer = make_model(args.case), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    groups = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    own = (lambda value: value) if args.case.gpu else jnp.copy  # a copy would take memory of the GPU
    state: Any = tuple([own(v.value) for v in group] for group in groups)
    program, place = make_step(args, model, optimizer)
    state, rng = place(state, PartitionSpec()), np.random.default_rng(1)
    order = np.arange(len(x))

    def train() -> Round:
        nonlocal state, order
        total, correct = 0.0, 0
        for rows in order.reshape(args.steps, args.case.batch):
            batch = place((x[rows], y[rows]), PartitionSpec(AXIS))
            if not args.case.gpu:
                jax.block_until_ready(total)
            state, loss, hits = program(state, *batch)
            total, correct = total + loss, correct + hits
        order = rng.permutation(len(x))
        return Round(float(total) / args.steps)

    return train


def make_step(args: argparse.Namespace, model: Any, optimizer: Any) -> tuple[Any, Callable[[Any, Any], Any]]:
    """Return the compiled step, and a function that puts values on its devices."""
    one, loss_object = args.replicas == 1, make_loss(reduction=None)

    def loss_fn(trainable: Any, others: Any, x: Any, y: Any) -> Any:
        logits, others = model.stateless_call(trainable, others, x, training=True)
        losses: Any = loss_object(y, logits)
        return losses.mean() / args.replicas, (logits, others)

    def step(state: Any, x: Any, y: Any) -> Any:
        trainable, others, slots = state
        (loss, (logits, others)), gradients = jax.value_and_grad(loss_fn, has_aux=True)(trainable, others, x, y)
        hits = (logits.argmax(-1) == y).sum()
        if not one:
            flat, unravel = ravel_pytree(gradients)  # one large all-reduce
            gradients = unravel(jax.lax.psum(flat, AXIS))
            loss, hits = jax.lax.psum((loss, hits), AXIS)
            others = jax.lax.pmean(others, AXIS)
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        return (trainable, others, slots), loss, hits

    if args.case.gpu:
        return jax.jit(step, donate_argnums=0), lambda values, _: jax.device_put(values)
    if one:
        return jax.jit(step, donate_argnums=0), lambda values, _: values
    mesh, rows, same = Mesh(np.array(jax.devices()[: args.replicas]), (AXIS,)), PartitionSpec(AXIS), PartitionSpec()
    spread = jax.shard_map(step, mesh=mesh, in_specs=(same, rows, rows), out_specs=same, check_vma=False)
    return jax.jit(spread, donate_argnums=0), lambda values, spec: jax.device_put(values, NamedSharding(mesh, spec))


if __name__ == "__main__":
    serve(parse(), make)
