"""The same small network, written in each library, and the training step that users of the library write."""

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
from _neighbours import BATCH, CLASSES, INPUTS, LABELS, ROWS, WIDTH, EqxMLP, LinenMLP, NnxMLP, all_reduce, cross_entropy
from flax import nnx
from flax.training.train_state import TrainState

import replicant

RATE, MOMENTUM = 0.1, 0.9


def sgd():
    return optax.sgd(RATE, momentum=MOMENTUM)


def gradients_of(loss_fn, values, tape):
    """Return the gradients of a function of a tree of arrays."""
    if not tape:
        return jax.grad(loss_fn)(values)
    with replicant.GradientTape() as recorded:
        recorded.watch(values)
        loss = loss_fn(values)
    return recorded.gradient(loss, values)


class Keras:
    """A model and an optimizer, which a step changes in place."""

    def __init__(self, strategy, *, tape=True):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            layers = [keras.Input((WIDTH,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(CLASSES)]
            self.model = keras.Sequential(layers)
            self.optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
            self.optimizer.build(self.model.trainable_variables)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        self.checkpoint = replicant.Checkpoint(model=self.model, optimizer=self.optimizer)

    def step(self, x, y):
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(self.loss(y, self.model(x)), global_batch_size=BATCH)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))

    def weights(self):
        return self.model.get_weights()


class Nnx:
    """A module and an optimizer, which a step changes in place."""

    def __init__(self, strategy, *, tape=False, rate=0.0):
        self.tape = tape
        with strategy.scope():
            self.model = NnxMLP(nnx.Rngs(0), rate=rate)
            self.optimizer = nnx.Optimizer(self.model, sgd(), wrt=nnx.Param)
        self.checkpoint = replicant.Checkpoint(model=self.model, optimizer=self.optimizer)

    def step(self, x, y):
        if self.tape:
            with replicant.GradientTape() as tape:
                loss = cross_entropy(self.model(x), y)
            gradients = tape.gradient(loss, nnx.state(self.model, nnx.Param))
        else:
            gradients = nnx.grad(lambda model: cross_entropy(model(x), y))(self.model)
        self.optimizer.update(self.model, all_reduce(gradients))

    def weights(self):
        layers = self.model.layers
        return [np.asarray(value[...]) for layer in layers for value in (layer.kernel, layer.bias)]


class Linen:
    """A TrainState, which goes in and out of a step."""

    def __init__(self, strategy, *, tape=False):
        self.tape, model = tape, LinenMLP()
        params = model.init(jax.random.key(0), INPUTS["mlp"][:1])["params"]
        self.checkpoint = replicant.Checkpoint(state=TrainState.create(apply_fn=model.apply, params=params, tx=sgd()))

    def step(self, state, x, y):
        gradients = gradients_of(lambda params: cross_entropy(state.apply_fn({"params": params}, x), y), state.params, self.tape)
        return state.apply_gradients(grads=all_reduce(gradients))

    def weights(self):
        params = self.checkpoint.state.params
        return [np.asarray(params[layer][name]) for layer in ("Dense_1", "Dense_0") for name in ("kernel", "bias")]


class Equinox:
    """A module and the optimizer's state, which go in and out of a step."""

    def __init__(self, strategy, *, tape=False):
        self.tape, self.tx, model = tape, sgd(), EqxMLP(jax.random.key(0))
        self.checkpoint = replicant.Checkpoint(state=(model, self.tx.init(eqx.filter(model, eqx.is_inexact_array))))

    def step(self, state, x, y):
        model, slots = state
        gradients = gradients_of(lambda model: cross_entropy(jax.vmap(model)(x), y), model, self.tape)
        updates, slots = self.tx.update(all_reduce(gradients), slots, model)
        return eqx.apply_updates(model, updates), slots

    def weights(self):
        layers = self.checkpoint.state[0].layers
        return [np.asarray(value) for layer in layers for value in (layer.weight.T, layer.bias)]


def forward(params, x):
    return jax.nn.relu(x @ params[0] + params[1]) @ params[2] + params[3]


class Jax:
    """A list of arrays and the optimizer's state, which go in and out of a step."""

    def __init__(self, strategy, *, tape=False):
        self.tape, self.tx, rng = tape, sgd(), np.random.default_rng(0)
        params = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((WIDTH, 8), (8,), (8, CLASSES), (CLASSES,))]
        self.checkpoint = replicant.Checkpoint(state=(params, self.tx.init(params)))

    def step(self, state, x, y):
        params, slots = state
        gradients = gradients_of(lambda params: cross_entropy(forward(params, x), y), params, self.tape)
        updates, slots = self.tx.update(all_reduce(gradients), slots, params)
        return optax.apply_updates(params, updates), slots

    def weights(self):
        return [np.asarray(value) for value in self.checkpoint.state[0]]


LIBRARIES = {"keras": Keras, "nnx": Nnx, "linen": Linen, "equinox": Equinox, "jax": Jax}


def trainer(strategy, library, wrap=lambda fn: fn):
    """Return a function of a batch that takes a step of all replicas. `wrap` may compile it."""
    if isinstance(library, Keras | Nnx):
        return wrap(lambda batch: strategy.run(library.step, args=batch))
    call = wrap(lambda state, batch: strategy.run(library.step, args=(state, *batch)))

    def advance(batch):
        library.checkpoint.state = call(library.checkpoint.state, batch)

    return advance


@jax.jit
def _plain_step(state, x, y, size):
    def loss_fn(params):
        return optax.softmax_cross_entropy_with_integer_labels(forward(params, x), y).sum() / size

    updates, slots = sgd().update(jax.grad(loss_fn)(state[0]), state[1])
    return optax.apply_updates(state[0], updates), slots


def one_device(weights, *, rows=ROWS, epochs=1, mean=False):
    """Train the network from these weights on one device, without Replicant. Its loss is that of `BATCH` rows, or a mean."""
    state = (list(map(jnp.asarray, weights)), sgd().init(list(map(jnp.asarray, weights))))
    for _ in range(epochs):
        for i in range(0, rows, BATCH):
            x, y = INPUTS["mlp"][i : min(i + BATCH, rows)], LABELS[i : min(i + BATCH, rows)]
            state = _plain_step(state, x, y, len(y) if mean else BATCH)
    return [np.asarray(value) for value in state[0]]
