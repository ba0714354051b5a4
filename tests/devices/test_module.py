"""``replicant.Module``: what is found in its attributes, how it trains, and how it is saved."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import Module, Variable
from replicant.data import Dataset
from replicant.errors import ArgumentError
from replicant.random import Generator


class Dense(Module):
    def __init__(self, size: int, out: int, name: str | None = None):
        super().__init__(name)
        self.w = Variable(jnp.ones((size, out)) / size, name="w")
        self.b = Variable(jnp.zeros(out), name="b")

    @Module.with_name_scope
    def __call__(self, x: Any) -> Any:
        return x @ self.w + self.b


class Net(Module):
    """Everything that attributes may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = Variable(0, trainable=False, name="steps")
        self.layers = [Dense(2, 3, "first"), {"second": Dense(3, 1)}]
        self.again = self.layers[0]
        self.keras_layer = keras.layers.Dense(1, kernel_initializer="ones")
        self.alone = (keras.Variable(1.0, name="alone"), 3, "text", None)
        self.rng = Generator.from_seed(5)
        self.itself = self

    def __call__(self, x: Any) -> Any:
        self.steps.assign_add(1)
        return self.keras_layer(self.layers[1]["second"](self.layers[0](x))) * self.alone[0]


def names(variables: Any) -> list[str]:
    return [variable.name for variable in variables]


def test_what_is_found() -> None:
    net = Net()
    net.keras_layer.build((None, 1))
    assert names(net.variables) == ["alone", "kernel", "bias", "steps", "b", "w", "b", "w"]
    assert names(net.trainable_variables) == ["alone", "kernel", "bias", "b", "w", "b", "w"]
    assert names(net.non_trainable_variables) == ["steps"]
    assert [(module.name, type(module)) for module in net.submodules] == [("first", Dense), ("dense", Dense)]
    net.layers.append(Dense(1, 1, "third"))
    assert names(net.submodules) == ["first", "dense", "third"]
    del net.again, net.layers, net.alone
    net.keras_layer.trainable = False
    assert names(net.trainable_variables) == []
    loop: list[Any] = [net.steps]
    loop.append(loop)
    net.loop = loop  # type: ignore[attr-defined]
    assert names(net.variables) == ["kernel", "bias", "steps"]


class HTTPServer2Module(Module):
    """A name to be turned into small letters, without `super().__init__()`."""

    def __init__(self) -> None:
        self.value = Variable(1.0)


def test_names() -> None:
    assert (Net().name, HTTPServer2Module().name, Module("a_1").name) == ("net", "http_server2_module", "a_1")
    with HTTPServer2Module().name_scope as scope:
        assert scope == "http_server2_module/"
    assert (Module().variables, Module().submodules) == ((), ())
    for name in ("1a", "a b", ""):
        with pytest.raises(ArgumentError, match=rf"The name of a module is a Python name, such as 'dense_1'; got '{name}'"):
            Module(name)


def trained(num_replicas: int, *, checkpoint: str | None = None) -> tuple[Any, replicant.Checkpoint]:
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    with strategy.scope():
        net = Net()
        optimizer = keras.optimizers.SGD(0.01, momentum=0.5)
    saved = replicant.Checkpoint(net=net, optimizer=optimizer)
    if checkpoint is not None:
        saved.restore(checkpoint).assert_consumed()  # it builds the layer and the optimizer
    else:
        net.keras_layer.build((None, 1))

    def step(x: Any) -> None:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(((net(x) - 1) ** 2)[:, 0], global_batch_size=4)
        variables = net.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    data = Dataset.from_tensor_slices(np.arange(8, dtype=np.float32).reshape(4, 2)).batch(4).repeat(2)
    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(step, (batch,))
    return net, saved


def values(net: Any) -> list[np.ndarray]:
    return [np.asarray(variable.numpy()) for variable in net.variables]


@pytest.mark.long
def test_it_trains_and_continues_from_a_checkpoint(tmp_path: Path) -> None:
    net, saved = trained(1)
    assert net.steps.numpy() == 2
    other, _ = trained(2)
    for got, wanted in zip(values(other), values(net), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    net.rng.skip(3)
    path = saved.save(str(tmp_path / "ckpt"))
    keys = {name for name, _ in replicant.list_variables(path)}
    assert {"net/again/w", "net/alone/0", "net/layers/1/second/b", "net/rng/state", "net/steps"} <= keys
    goes_on, _ = trained(2, checkpoint=path)
    assert goes_on.steps.numpy() == 4
    assert goes_on.rng.state.numpy().tolist() == [0, 5, 3, 0]


def test_a_restore_finds_what_is_made_later(tmp_path: Path) -> None:
    module = HTTPServer2Module()
    module.more = [Dense(1, 1)]  # type: ignore[attr-defined]
    module.more[0].w.assign([[7.0]])  # type: ignore[attr-defined]
    path = replicant.Checkpoint(module=module).save(str(tmp_path / "ckpt"))
    later = HTTPServer2Module()
    status = replicant.Checkpoint(module=later).restore(path)
    later.more = [Dense(1, 1)]  # type: ignore[attr-defined]
    assert later.more[0].w.numpy() == 7.0  # type: ignore[attr-defined]
    status.assert_consumed()
