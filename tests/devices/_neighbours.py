"""Models of Flax NNX, Flax Linen and Equinox, the same training step for each, and data whose last batch is smaller."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import replicant
from replicant.data import Dataset

ROWS, BATCH, CLASSES, WIDTH, LENGTH = 22, 8, 3, 4, 6  # batches of 8, 8 and 6 rows; on 4 replicas, the last is cut into 2, 2, 2, 0
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, CLASSES, ROWS).astype(np.int32)
INPUTS = {
    "mlp": RNG.normal(size=(ROWS, WIDTH)).astype(np.float32),
    "cnn": RNG.normal(size=(ROWS, 6, 6, 1)).astype(np.float32),
    "lstm": RNG.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32),
    "transformer": RNG.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32),
}


def cross_entropy(logits, labels):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return replicant.compute_average_loss(losses, global_batch_size=BATCH)


def batches(strategy, kind, rows=ROWS):
    return strategy.experimental_distribute_dataset(Dataset.from_tensor_slices((INPUTS[kind][:rows], LABELS[:rows])).batch(BATCH))


def mirrored(n):
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)])


def all_reduce(values):
    return replicant.get_replica_context().all_reduce("SUM", values)


class NnxMLP(nnx.Module):
    def __init__(self, rngs, rate=0.0):
        self.layers = nnx.List([nnx.Linear(WIDTH, 8, rngs=rngs), nnx.Linear(8, CLASSES, rngs=rngs)])
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x):
        return self.layers[1](self.dropout(nnx.relu(self.layers[0](x))))


class NnxCNN(nnx.Module):
    def __init__(self, rngs, axis_name=None):
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.8, use_fast_variance=False, axis_name=axis_name, rngs=rngs)
        self.dense = nnx.Linear(4, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.dense(nnx.relu(self.norm(self.conv(x))).mean((1, 2)))


class NnxLSTM(nnx.Module):
    def __init__(self, rngs):
        self.rnn = nnx.RNN(nnx.LSTMCell(WIDTH, 8, rngs=rngs))
        self.dense = nnx.Linear(8, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.rnn(x)[:, -1])


class NnxTransformer(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
        self.dense = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.dense((x + self.attention(self.norm(x))).mean(1))


NNX = {"mlp": NnxMLP, "cnn": NnxCNN, "lstm": NnxLSTM, "transformer": NnxTransformer}


def make_optimizer(kind):
    """Adam would make numbers of rounding errors: a transformer's key bias, and a bias before BatchNorm, have no gradient."""
    return optax.sgd(0.1, momentum=0.9) if kind in ("transformer", "cnn") else optax.adam(1e-2)


def nnx_step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(lambda m: cross_entropy(m(x), y))(model)
    optimizer.update(model, all_reduce(grads))
    return loss


def values_of(module):
    """Return the Variables' values by path, on the host. Random keys are left out."""
    found = {}
    for path, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Variable) and not isinstance(node, nnx.RngState):
            found["/".join(map(str, path))] = np.asarray(node[...])
    return found


class LinenMLP(nn.Module):
    @nn.compact
    def __call__(self, x, *, train=True):
        return nn.Dense(CLASSES)(nn.relu(nn.Dense(8)(x)))


class LinenCNN(nn.Module):
    @nn.compact
    def __call__(self, x, *, train=True):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.8, use_fast_variance=False, axis_name="replica")(
            nn.Conv(4, (3, 3))(x)
        )
        return nn.Dense(CLASSES)(nn.relu(x).mean((1, 2)))


class LinenLSTM(nn.Module):
    @nn.compact
    def __call__(self, x, *, train=True):
        return nn.Dense(CLASSES)(nn.RNN(nn.LSTMCell(8))(x)[:, -1])


class LinenTransformer(nn.Module):
    @nn.compact
    def __call__(self, x, *, train=True):
        x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x))
        return nn.Dense(CLASSES)(x.mean(1))


LINEN = {"mlp": LinenMLP, "cnn": LinenCNN, "lstm": LinenLSTM, "transformer": LinenTransformer}


class EqxMLP(eqx.Module):
    layers: list

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.layers = [eqx.nn.Linear(WIDTH, 8, key=a), eqx.nn.Linear(8, CLASSES, key=b)]

    def __call__(self, x):
        return self.layers[1](jax.nn.relu(self.layers[0](x)))


class EqxLSTM(eqx.Module):
    cell: eqx.nn.LSTMCell
    dense: eqx.nn.Linear

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.cell, self.dense = eqx.nn.LSTMCell(WIDTH, 8, key=a), eqx.nn.Linear(8, CLASSES, key=b)

    def __call__(self, x):
        start = (jnp.zeros(8), jnp.zeros(8))
        (h, _), _ = jax.lax.scan(lambda carry, row: (self.cell(row, carry), None), start, x)
        return self.dense(h)


class EqxTransformer(eqx.Module):
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    dense: eqx.nn.Linear

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.norm, self.attention = eqx.nn.LayerNorm(WIDTH), eqx.nn.MultiheadAttention(2, WIDTH, key=a)
        self.dense = eqx.nn.Linear(WIDTH, CLASSES, key=b)

    def __call__(self, x):
        normed = jax.vmap(self.norm)(x)
        return self.dense((x + self.attention(normed, normed, normed)).mean(0))


EQUINOX = {"mlp": EqxMLP, "lstm": EqxLSTM, "transformer": EqxTransformer}
