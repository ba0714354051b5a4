"""Under a mixed policy, `model(x)` in a program computes in the dtypes in which `fit`, `evaluate` and `predict` do."""

import jax
import keras
import numpy as np
import pytest

import replicant

SHAPE = (4, 5)


class Scaled(keras.Model):
    """A model with a weight of its own, and a layer that does not cast for itself."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.ReversibleEmbedding(11, 8)
        self.dense = keras.layers.Dense(8)
        self.scale = self.add_weight(shape=(), initializer=keras.initializers.Constant(1 / 3), name="scale")

    def call(self, x):
        return self.embedding(self.dense(self.embedding(x)), reverse=True) * self.scale


def graph(inner=False):
    x = keras.Input(SHAPE[1:], dtype="int32")
    embedding = keras.layers.ReversibleEmbedding(11, 8)
    if inner:  # its own fit computes the product of a model in a model in float32
        hidden = keras.Input((5, 8))
        return keras.Sequential([x, embedding, keras.Model(hidden, embedding(hidden, reverse=True))])
    return keras.Model(x, embedding(keras.layers.Dense(8)(embedding(x)), reverse=True))


MODELS = {
    "a graph": (graph, True),
    "a class": (Scaled, False),  # its weight is float32
    "in another": (lambda: graph(inner=True), False),
}
WAYS = {
    "one device": lambda: replicant.OneDeviceStrategy("cpu:0"),
    "fused": lambda: replicant.MirroredStrategy(["cpu:0", "cpu:1"]),
    "of their own": lambda: replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False),
}


@pytest.fixture
def policy(request):
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy("float32")


CASES = [("mixed_bfloat16", kind, way) for kind in MODELS for way in WAYS] + [("mixed_float16", "a graph", "one device")]


@pytest.mark.parametrize(("policy", "kind", "way"), CASES, indirect=["policy"], ids=["-".join(case) for case in CASES])
def test_a_loop_computes_in_the_dtypes_of_predict(kind, way, policy):
    make, is_half = MODELS[kind]
    keras.utils.set_random_seed(1)
    strategy = WAYS[way]()
    with strategy.scope():
        model = make()
    x = np.arange(20, dtype=np.int32).reshape(SHAPE) % 11
    expected = model.predict(x, batch_size=4, verbose=0)
    assert expected.dtype == (policy.removeprefix("mixed_") if is_half else "float32")
    (batch,) = strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices(x).batch(4))
    found = strategy.gather(strategy.run(model, args=(batch,)), axis=0)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("policy", ["mixed_bfloat16"], indirect=True)
def test_a_compiled_function_of_one_device_does_so_too(policy):
    keras.utils.set_random_seed(1)
    model, x = graph(), np.ones(SHAPE, np.int32)
    found = replicant.function(model)(x)
    np.testing.assert_array_equal(np.asarray(found), model.predict(x, verbose=0))
    assert found.dtype == policy.removeprefix("mixed_")


@pytest.mark.parametrize("policy", ["mixed_bfloat16"], indirect=True)
def test_outside_of_programs_a_model_computes_as_keras_does(policy):
    model, x = graph(), np.ones(SHAPE, np.int32)
    assert model(x).dtype == "float32"
    assert jax.jit(model)(x).dtype == "float32"


def test_a_model_in_float32_stays_so():
    keras.utils.set_random_seed(1)
    model, x = graph(), np.ones(SHAPE, np.int32)
    found = replicant.function(model)(x)
    assert found.dtype == "float32"
    np.testing.assert_array_equal(np.asarray(found), model.predict(x, verbose=0))
