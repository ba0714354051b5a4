"""Programs that workers trace: equal ones of every kind, and others that differ in one number.

A worker runs this script, which writes the result of each program to a file. A test imports it, to run the programs on one device.
"""

import json
import os
from pathlib import Path

import replicant

if __name__ == "__main__":
    replicant.set_virtual_devices(2)
    workers = replicant.MultiWorkerMirroredStrategy()

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.experimental import io_callback
from jax.experimental.custom_partitioning import custom_partitioning

RANK = int(os.environ.get("JAX_PROCESS_ID", "0"))
own_tanh = custom_partitioning(jnp.tanh)
own_tanh.def_partition(
    partition=lambda mesh, shapes, result: (mesh, jnp.tanh, result.sharding, (shapes[0].sharding,)),
    infer_sharding_from_operands=lambda mesh, shapes, result: shapes[0].sharding,
    sharding_rule="... -> ...",
)


@jax.custom_vjp
def doubled(x):
    return x * 2


doubled.defvjp(lambda x: (doubled(x), None), lambda _, gradient: (gradient * 2,))


@jax.custom_jvp
def host_tanh(x):
    return jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


host_tanh.defjvp(lambda primals, tangents: ((y := host_tanh(*primals)), (1 - y**2) * tangents[0]))


class Apply(keras.layers.Layer):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def call(self, x):
        return self.fn(x)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


def own_name(fn):
    """Give a function another name on each worker."""
    fn.__name__ = f"worker_{RANK}_{os.getpid()}"
    return fn


def everything(x):
    table = np.arange(4, dtype=np.float32)
    x = jax.jit(own_name(lambda a: jax.nn.relu(a * 0.1) + table))(x)
    x = doubled(x) + jax.nn.gelu(x) + jax.random.normal(jax.random.key(3), x.shape) + jnp.take(x, jnp.arange(4)[::-1])
    x = jax.lax.cond(x.sum() > 0, lambda a: a + 1, lambda a: a * 2, x)
    x, _ = jax.lax.scan(lambda carry, t: (carry * 0.5 + t, None), x, jnp.arange(3.0))
    x = jax.lax.while_loop(lambda a: a.sum() < 0, lambda a: a + 1, x) + jax.checkpoint(jnp.sin)(x)
    x = x.at[jnp.array([1, 2])].add(1.0) + jax.vmap(lambda a: a * jnp.ones(4))(x).sum(0) + jnp.linalg.norm(x) + jnp.sort(x)
    x = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + io_callback(
        np.cos, jax.ShapeDtypeStruct(x.shape, x.dtype), x
    )
    jax.debug.callback(lambda _: None, x[0])
    return replicant.get_replica_context().all_reduce("SUM", x) * jax.grad(lambda a: doubled(jax.nn.relu(a)).sum())(x)


def total(strategy, fn):
    data = strategy.experimental_distribute_dataset(replicant.data.Dataset.range(16).map(np.float32).batch(16))
    return [np.asarray(strategy.reduce("SUM", strategy.run(fn, args=(batch,)), axis=None)).tolist() for batch in data]


def fit(strategy, *layers, loss="mse", rows=6, scale=1, **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), loss, **options)
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(rows, 4)).astype("f"), draw.normal(size=(rows, 1)).astype("f")
    x = x * scale
    history = model.fit(x, y, batch_size=4, verbose=0, shuffle=False).history["loss"]
    return [*history, model.evaluate(x, y, batch_size=6, verbose=0), *(w.tolist() for w in model.get_weights())]


L = keras.layers
ALIKE = {
    "run": lambda s: total(s, everything),
    "fit": lambda s: fit(
        s, L.Dense(4, use_bias=False), L.BatchNormalization(), L.Dropout(0.5), L.Reshape((2, 2)), L.LSTM(3), rows=7
    ),
    "callback": lambda s: fit(s, Apply(host_tanh), rows=10, steps_per_execution=2),
    "partitioning": lambda s: fit(s, L.Dense(4), Apply(lambda x: x + own_tanh(jax.lax.stop_gradient(x)))),
    "eager": lambda s: fit(s, L.Dense(3), L.Dropout(0.5), run_eagerly=True),
    "rotation": lambda s: fit(s, L.Reshape((2, 2, 1)), L.RandomRotation(0.2), L.Flatten()),
}


def unlike(a, b):
    return a if RANK == 0 else b


UNLIKE = {
    "literal": lambda s: total(s, lambda x: x * unlike(0.1, 0.01)),
    "captured": lambda s: total(s, lambda x: x * jnp.asarray(unlike([0.0, 1, 2, 3], [0.0, 1, 2, 4]), jnp.float32)),
    "in a loop": lambda s: total(s, lambda x: jax.lax.scan(lambda c, t: (c * unlike(2.0, 3.0) + t, None), x, jnp.arange(3.0))[0]),
    "fit": lambda s: fit(s, L.Dropout(unlike(0.5, 0.25))),
    "loss": lambda s: fit(s, loss=lambda y, p: (y - p) ** 2 * np.linspace(0, unlike(1, 2), 2, dtype=np.float32)),
    "eager data": lambda s: fit(s, run_eagerly=True, scale=unlike(1, 2)),
}


def alike(name, strategy):
    keras.utils.set_random_seed(1)  # before layers are made
    return ALIKE[name](strategy)


if __name__ == "__main__":
    found = {name: alike(name, workers) for name in json.loads(os.environ["PROGRAMS"])}
    for name, case in UNLIKE.items():
        try:
            found[f"unlike {name}"] = str(case(workers))
        except replicant.errors.WorkerMismatchError as error:
            found[f"unlike {name}"] = str(error)
    Path(os.environ["ANSWER"]).write_text(json.dumps(found))
