"""What programs read of strategy.extended, and CentralStorageStrategy."""

import jax
import keras
import numpy as np
import pytest

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.errors import ArgumentError, ArgumentTypeError, ContextError, DeviceError, MissingNameError
from replicant.strategies._extended import _INSTEAD


def test_values() -> None:
    strategy = replicant.MirroredStrategy(["cpu:1", "cpu:0"])
    extended = strategy.extended
    assert extended.worker_devices == extended.parameter_devices == (jax.devices("cpu")[1], jax.devices("cpu")[0])
    assert replicant.get_strategy().extended.worker_devices == (jax.devices()[0],)
    assert replicant.OneDeviceStrategy("cpu:1").extended.worker_devices == (jax.devices("cpu")[1],)
    assert (extended.should_checkpoint, extended.should_save_summary, extended.experimental_between_graph) == (True, True, False)
    assert extended._in_multi_worker_mode() is False
    assert repr(extended) == f"{strategy!r}.extended"


def test_which_strategy_made_a_variable() -> None:
    default = replicant.get_strategy()
    strategies = [
        default,
        *(replicant.MirroredStrategy(["cpu:0", "cpu:1"]) for _ in range(2)),
        replicant.OneDeviceStrategy("cpu:0"),
    ]
    for i, strategy in enumerate(strategies):
        with strategy.scope():
            variables = replicant.Variable(1.0), keras.Variable(1.0)
        for v in variables:
            assert [each.extended.variable_created_in_scope(v) for each in strategies] == [j == i for j in range(4)]
    with pytest.raises(ArgumentTypeError, match=r"variable_created_in_scope takes a variable; got 1\.0 of type float"):
        default.extended.variable_created_in_scope(1.0)


@pytest.mark.parametrize("name", [*_INSTEAD, "num_towers"])
def test_other_names_say_what_to_use(name: str) -> None:
    extended = replicant.get_strategy().extended
    assert not hasattr(extended, name)
    advice = f"Use {_INSTEAD[name]}." if name in _INSTEAD else "It has worker_devices, parameter_devices, should_checkpoint, "
    with pytest.raises(MissingNameError) as caught:
        getattr(extended, name)
    assert str(caught.value).startswith(f"strategy.extended has no {name}. {advice}")


def test_parameter_servers() -> None:
    resolver = SimpleClusterResolver(ClusterSpec({"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"]}))
    strategy = replicant.ParameterServerStrategy(resolver, transport="threads")
    try:
        with strategy.scope():
            v = replicant.Variable(1.0)
        assert strategy.extended.variable_created_in_scope(v)
        assert not replicant.get_strategy().extended.variable_created_in_scope(v)
        assert not strategy.extended.variable_created_in_scope(replicant.Variable(1.0))
        assert strategy.extended.experimental_between_graph
        assert strategy.extended._in_multi_worker_mode() is False
        with pytest.raises(ContextError, match=r"ParameterServerStrategy.extended has no devices: its workers and servers are"):
            _ = strategy.extended.worker_devices
    finally:
        strategy.close()


def test_models_tell_their_strategy() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        made = keras.Sequential([keras.layers.Dense(1)])
    compiled, plain = keras.Sequential([keras.layers.Dense(1)]), keras.Sequential([keras.layers.Dense(1)])
    with strategy.scope():
        compiled.compile("sgd", "mse")
        assert plain.distribute_strategy is strategy  # that of the scope
    assert made.distribute_strategy is compiled.distribute_strategy is strategy
    assert plain.distribute_strategy is replicant.get_strategy()


def test_the_method_of_reduction_is_that_of_the_global_batch() -> None:
    model = keras.Sequential([keras.layers.Dense(1)], name="m")
    assert model.distribute_reduction_method == "auto"
    model.distribute_reduction_method = "auto"
    with pytest.raises(ArgumentError, match=r"of 'm' was set to 'sum', but the only method is \"auto\": fit returns"):
        model.distribute_reduction_method = "sum"


def test_central_storage_is_mirrored() -> None:
    central = replicant.CentralStorageStrategy(["cpu:0", "cpu:1"], parameter_device="cpu:0")
    mirrored = replicant.MirroredStrategy(["cpu:0", "cpu:1"])

    def weights(strategy):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        x = np.arange(10.0, dtype=np.float32).reshape(5, 2)
        model.fit(x, x[:, :1], batch_size=3, epochs=2, verbose=0, shuffle=False)
        return model.get_weights()

    for a, b in zip(weights(central), weights(mirrored), strict=True):
        np.testing.assert_array_equal(a, b)
    assert replicant.CentralStorageStrategy().num_replicas_in_sync == replicant.MirroredStrategy().num_replicas_in_sync
    with pytest.raises(DeviceError):
        replicant.CentralStorageStrategy(parameter_device="tpu:7")
