"""A model or a variable belongs to the strategy under which it was made: another one's `run` refuses it, as `fit` does."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.errors import MixedStrategyError

pytestmark = pytest.mark.both_ways

X = np.ones((4, 3), np.float32)


def mirrored(num_replicas: int) -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
@pytest.mark.parametrize("built", [False, True])
def test_a_model_of_another_strategy_is_refused_in_run(num_replicas: int, built: bool) -> None:
    own, other = mirrored(3), mirrored(num_replicas)
    with own.scope():
        model = keras.Sequential([keras.layers.Dense(1)], name="m")
    if built:
        model.build((None, 3))
    with pytest.raises(
        MixedStrategyError, match=r"'m' belongs to MirroredStrategy.*cpu:2.*is called in `run` under Mirrored.*create the model"
    ):
        other.run(model, args=(X,))
    with pytest.raises(MixedStrategyError, match="'m' belongs to"):
        replicant.function(lambda: other.run(model, args=(X,)))()
    own.run(model, args=(X,))


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_variables_layers_and_optimizers_of_another_strategy_are_refused_in_run(num_replicas: int) -> None:
    own, other = mirrored(3), mirrored(num_replicas)
    with own.scope():
        variable, layer = replicant.Variable(1.0, name="v"), keras.layers.Dense(1, name="d")
        layer.build((None, 3))
    for use in (lambda: variable + 1, lambda: variable.assign(2.0), lambda: layer(X)):
        with pytest.raises(
            MixedStrategyError, match=r"Variable '(v|d/kernel)' belongs to Mirrored.* is used in `run` of .*again in its scope"
        ):
            other.run(use)
    assert float(variable) == 1.0


def test_the_same_devices_no_strategy_and_cross_replica_context_are_fine() -> None:
    own, same, other = mirrored(2), mirrored(2), mirrored(3)
    with own.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        variable = replicant.Variable(1.0, name="v")
    outside = replicant.Variable(1.0)
    model.build((None, 3))
    same.run(model, args=(X,))
    replicant.get_strategy().run(lambda x: model(x) + variable.value(), args=(X,))
    with other.scope():
        copy = replicant.Variable(variable.value())
        copy.assign(variable.value() + 1)
    assert float(other.run(lambda: copy + outside).value) == 3.0
    assert jnp.isfinite(model(X)).all()
