"""A ``replicant.Variable`` set as an attribute of a Keras object is one of its weights: it trains, is saved and restored."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import Checkpoint, GradientTape, Variable
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.errors import ContextError, VariableError

X = np.linspace(-2, 2, 21).astype(np.float32)
Y = 3 * X + 2


class Linear(keras.Model):
    """guide/basic_training_loops of TensorFlow: a Keras model with variables of its own."""

    def __init__(self):
        super().__init__()
        self.w = Variable(5.0, name="w")
        self.b = Variable(0.0, name="b")

    def call(self, x):
        return self.w * x + self.b

    @property
    def values(self):
        return [float(self.w.value()), float(self.b.value())]


class KerasLinear(keras.Model):
    """The same with variables of Keras."""

    def __init__(self):
        super().__init__()
        self.w = self.add_weight(shape=(), initializer=keras.initializers.Constant(5.0), name="w")
        self.b = self.add_weight(shape=(), initializer="zeros", name="b")

    def call(self, x):
        return self.w * x + self.b

    @property
    def values(self):
        return [float(self.w.value), float(self.b.value)]


def mirrored(**options):
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"], **options)


def fitted(make, strategy=None, **options):
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = make()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", **options)
    history = model.fit(X, Y, epochs=2, batch_size=8, shuffle=False, verbose=0).history["loss"]
    return model, history


@functools.cache
def of_keras():
    """What the model with variables of Keras learns without a strategy: its values and losses."""
    model, losses = fitted(KerasLinear)
    return model.values, losses


EAGERLY, TWO_AT_ONCE = {"run_eagerly": True}, {"steps_per_execution": 2}
WAYS = {
    "alone": [{}, EAGERLY, {"jit_compile": False}, TWO_AT_ONCE],
    "fused": [{}, EAGERLY, TWO_AT_ONCE],
    "apart": [{}, TWO_AT_ONCE],
}


@pytest.mark.parametrize(("way", "options"), [(way, options) for way, each in WAYS.items() for options in each])
def test_fit_trains_it_as_a_weight(way, options) -> None:
    model, losses = fitted(Linear, None if way == "alone" else mirrored(fuse_replicas=way == "fused"), **options)
    expected, expected_losses = of_keras()
    assert [v.path for v in model.trainable_variables] == ["w", "b"]
    np.testing.assert_allclose(model.values, expected, rtol=1e-5)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert losses[1] < losses[0]


@pytest.mark.both_ways
def test_a_loop_trains_it() -> None:
    """One step of SGD(0.1) on the mean squared error of (5x - 3x - 2) over the rows 0, 1, 2: by w 0, by b -2 * mean(2 - 2x)."""
    strategy = mirrored()
    with strategy.scope():
        model = Linear()
        optimizer = keras.optimizers.SGD(0.1)

    def step(x):
        with GradientTape() as tape:
            loss = replicant.compute_average_loss((model(x) - 3 * x - 2) ** 2, global_batch_size=3)
        weights = tape.watched_variables()
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return weights

    (x,) = strategy.experimental_distribute_dataset([np.asarray([0.0, 1.0, 2.0], np.float32)])
    assert set(strategy.run(step, args=(x,))) == {"w", "b"}
    residual = np.asarray([-2.0, 0.0, 2.0])  # 2x - 2
    expected = [5 - 0.1 * np.mean(2 * residual * [0, 1, 2]), 0 - 0.1 * np.mean(2 * residual)]
    np.testing.assert_allclose(model.values, expected, rtol=1e-6)


def test_the_variable_and_its_weight_are_one() -> None:
    model = Linear()
    model.set_weights([np.float32(7.0), np.float32(1.0)])
    assert model.values == [7.0, 1.0]
    model.w.assign_add(1.0)
    assert [float(x) for x in model.get_weights()] == [8.0, 1.0]
    replicant.function(model.w.assign_sub)(2.0)
    weight = model.trainable_variables[0]
    assert float(weight.value) == 6.0
    weight.assign(4.0)
    assert float(replicant.function(model.w.value)()) == float(model.w.value()) == 4.0
    model(X)
    values = [jnp.asarray(10.0), jnp.asarray(20.0)]
    outputs, _ = model.stateless_call(values, [], jnp.asarray([1.0, 2.0]))
    assert outputs.tolist() == [30.0, 40.0]
    assert model.values == [4.0, 1.0]  # as before


class Nested(keras.Model):
    """Variables in every place that Keras looks at."""

    def __init__(self):
        super().__init__()
        self.layers_of_mine = [Inner("in a list of layers")]
        self.listed = [Variable(1.0, name="listed")]
        self.named = {"a": Variable(2.0, name="in a dict")}
        self.pair = (Variable(3.0, name="in a tuple"), 0)
        self.frozen = Variable(4.0, name="frozen", trainable=False)
        self.listed.append(Variable(5.0, name="appended"))
        self.again = self.listed[0]

    def call(self, x):
        total = self.listed[0] + self.listed[1] + self.named["a"] + self.pair[0] + self.frozen
        self.frozen.assign_add(1.0)
        return self.layers_of_mine[0](x) * total


class Inner(keras.layers.Layer):
    def __init__(self, name):
        super().__init__()
        self.kernel = Variable(1.0, name=name)
        self.count = Variable([0, 0], trainable=False, name="count")

    def call(self, x):
        self.count.scatter_add([1], [1])
        return self.kernel * x


@pytest.mark.parametrize("strategy", [None, {}], ids=["alone", "mirrored"])
def test_wherever_keras_looks(strategy) -> None:
    model, _ = fitted(Nested, None if strategy is None else mirrored(**strategy))
    names = ["listed", "in a dict", "in a tuple", "appended", "in a list of layers"]
    assert [v.path.rpartition("/")[2] for v in model.trainable_variables] == names
    assert [v.path.rpartition("/")[2] for v in model.non_trainable_variables] == ["frozen", "count"]
    assert float(model.frozen.value()) == 4.0 + 6  # steps
    assert model.layers_of_mine[0].count.numpy().tolist() == [0, 6]
    assert float(model.listed[1].value()) != 5.0
    assert type(model.again) is Variable


def test_frozen_with_its_layer() -> None:
    model = Linear()
    model.trainable = False
    assert (model.trainable_variables, model.w.trainable) == ([], False)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(X, Y, verbose=0)
    assert model.values == [5.0, 0.0]
    model.trainable = True
    assert model.w.trainable


class OwnStep(Linear):
    """A train_step of its own, as Keras's guide for JAX writes it."""

    def train_step(self, state, data):
        trainable, non_trainable, optimizer_variables, metrics_variables = state
        x, y = data

        def loss_of(trainable, non_trainable):
            outputs, non_trainable = self.stateless_call(trainable, non_trainable, x)
            return jnp.mean((outputs - y) ** 2), non_trainable

        (loss, non_trainable), grads = jax.value_and_grad(loss_of, has_aux=True)(trainable, non_trainable)
        trainable, optimizer_variables = self.optimizer.stateless_apply(optimizer_variables, grads, trainable)
        return {"loss": loss}, (trainable, non_trainable, optimizer_variables, metrics_variables)


@pytest.mark.parametrize("strategy", [None, {}], ids=["alone", "mirrored"])
def test_a_train_step_of_its_own(strategy) -> None:
    model, _ = fitted(OwnStep, None if strategy is None else mirrored(**strategy))
    np.testing.assert_allclose(model.values, of_keras()[0], rtol=1e-5)


def test_weights_files_and_checkpoints(tmp_path) -> None:
    model, _ = fitted(Linear, mirrored())
    path = tmp_path / "w.weights.h5"
    model.save_weights(path)
    saved = Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "checkpoint")
    loaded, restored = Linear(), Linear()
    loaded(X)
    loaded.load_weights(path)
    assert loaded.values == model.values
    restored.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    restored(X)
    Checkpoint(model=restored, optimizer=restored.optimizer).restore(saved)
    assert restored.values == model.values
    for one, other in ((model, restored), (model, loaded)):
        np.testing.assert_array_equal(one.predict(X, verbose=0), other.predict(X, verbose=0))


class Largest(keras.metrics.Metric):
    """A metric with state of its own kind."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = Variable(0.0, name="largest", trainable=False, synchronization="ON_READ", aggregation="SUM")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(jnp.maximum(self.largest.value(), jnp.max(y_true)))

    def result(self):
        return self.largest.value()


@pytest.mark.parametrize("strategy", [None, {}], ids=["alone", "mirrored"])
def test_in_a_metric(strategy) -> None:
    model, _ = fitted(Linear, None if strategy is None else mirrored(**strategy), metrics=[Largest()])
    assert model.evaluate(X, Y, verbose=0)[1] == 8.0
    (metric,) = model.metrics[1].metrics
    assert len(metric.variables) == 1
    metric.reset_state()
    assert float(metric.largest.value()) == 0.0


class CountingSGD(keras.optimizers.SGD):
    def __init__(self):
        super().__init__(0.1)
        self.count = Variable(0, name="count")

    def update_step(self, gradient, variable, learning_rate):
        self.count.assign_add(1)
        super().update_step(gradient, variable, learning_rate)


def test_in_an_optimizer() -> None:
    with mirrored().scope():
        model, optimizer = Linear(), CountingSGD()
        model.compile(optimizer, "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    assert int(optimizer.count.value()) == 2 * 3  # weights times steps
    assert any(v.path == "count" for v in optimizer.variables)


def test_made_in_build() -> None:
    class Dense(keras.layers.Layer):
        def build(self, shape):
            self.kernel = Variable(lambda: jnp.full((shape[-1], 1), 0.5), name="kernel")
            self.seen = Variable(0.0, synchronization="ON_READ", aggregation="SUM")

        def call(self, x):
            return x @ self.kernel.value()

    class Wrong(Dense):
        def build(self, shape):
            self.kernel = Variable(jnp.sin(jnp.ones((shape[-1], 1))), name="kernel")

    with mirrored().scope():
        model = keras.Sequential([Dense()])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(np.ones((8, 2), np.float32), np.ones((8, 1), np.float32) * 2, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], [[0.5 + 0.1 * 2]] * 2, rtol=1e-6)
    wrong = keras.Sequential([Wrong()])
    wrong.compile("sgd", "mse")
    message = r"The initial value of Variable 'kernel' \(shape \(2, 1\)\) was computed inside a function that JAX traces"
    with pytest.raises(RuntimeError, match=message):  # Keras's own, with ours in it
        wrong.fit(np.ones((8, 2), np.float32), np.ones((8, 1), np.float32), verbose=0)


def test_made_of_what_is_being_traced() -> None:
    with pytest.raises(ContextError, match=r"value of Variable 'Variable' \(shape \(\)\) was computed inside"):
        jax.jit(lambda x: Variable(x * 2).value())(1.0)


def test_a_layer_that_is_built_takes_no_more() -> None:
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    with pytest.raises(ValueError, match="You cannot add new elements of state"):
        layer.scale = Variable(1.0)


def test_taken_away() -> None:
    model = Linear()
    del model.b
    assert [v.path for v in model.weights] == ["w"]
    nested = Nested()
    nested.listed.remove(nested.listed[1])
    assert "appended" not in [v.path for v in nested.weights]


def test_on_parameter_servers_it_is_refused() -> None:
    cluster = ClusterSpec({"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"]})
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(cluster), transport="threads")
    try:
        message = r"Variable 'w' was set as an attribute of a Keras object, but it lies on parameter servers.*self\.add_weight"
        with strategy.scope(), pytest.raises(VariableError, match=message):
            Linear()
    finally:
        strategy.close()
