"""State in control flow in `train_step` of a Keras `fit`, and in modules of Flax NNX."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from flax import nnx

import replicant

pytestmark = pytest.mark.both_ways

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


class Alternating(keras.Model):
    """Updates the weights with every other batch only, by a cond or by Python."""

    def __init__(self, in_python: bool) -> None:
        super().__init__()
        self.dense, self.norm = keras.layers.Dense(1), keras.layers.BatchNormalization()
        self.count = replicant.Variable(0, trainable=False)
        self.in_python = in_python

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(self.norm(x, training=training))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with replicant.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)

        def update() -> None:
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))

        self.count.assign_add(1)
        if self.in_python:
            update()
        else:
            keras.ops.cond(self.count.value() % 2 == 1, update, lambda: None)
        return {"loss": loss}


def fitted(num_devices: int, x: Any, y: Any, *, in_python: bool) -> list[np.ndarray]:
    keras.utils.set_random_seed(1)
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_devices)])
    with strategy.scope():
        model = Alternating(in_python)
        model.compile(keras.optimizers.Adam(0.1), "mse")
    model.fit(x, y, batch_size=4, epochs=1, shuffle=False, verbose=0)
    return [*model.dense.get_weights(), *[v.numpy() for v in model.optimizer.variables]]


@pytest.mark.parametrize("num_devices", [1, 2])
def test_the_step_of_a_fit(num_devices: int) -> None:
    used = np.r_[0:4, 8:12]
    mine, theirs = fitted(num_devices, X, Y, in_python=False), fitted(num_devices, X[used], Y[used], in_python=True)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


class Module(nnx.Module):
    """A layer with statistics and random numbers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear, self.norm = nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.dropout(self.norm(self.linear(x)))


@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_module_of_nnx(num_devices: int) -> None:
    def state(conditions: list[bool], *, in_python: bool) -> list[np.ndarray]:
        strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_devices)])
        with strategy.scope():
            module = Module(nnx.Rngs(0))
            optimizer = nnx.Optimizer(module, optax.adam(0.1), wrt=nnx.Param)

        def update(rows: Any) -> None:
            with replicant.GradientTape() as tape:
                loss = (module(rows) ** 2).sum() / 16
            gradients = replicant.get_replica_context().all_reduce("SUM", tape.gradient(loss, module))
            optimizer.update(module, gradients)

        def step(rows: Any, condition: Any) -> None:
            if in_python:
                update(rows)
            else:
                jax.lax.cond(condition, lambda: update(rows), lambda: None)

        for condition in conditions:
            (batch,) = strategy.experimental_distribute_dataset([X])
            strategy.run(step, args=(batch, jnp.asarray(condition)))
        leaves = jax.tree.leaves(nnx.state(module))
        keys = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
        return [np.asarray(jax.random.key_data(x) if key else x) for x, key in zip(leaves, keys, strict=True)]

    for a, b in zip(state([True, False, True], in_python=False), state([True, True], in_python=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
