"""Keras optimizers and ``keras.ops`` take a ``replicant.Variable`` wherever they take a variable of Keras."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant import GradientTape, Variable
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.errors import VariableError

START = np.array([2.0, -1.0, 0.5], np.float32)
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.1),
    "clipped, decayed and averaged": lambda: keras.optimizers.AdamW(0.1, global_clipnorm=0.5, weight_decay=0.1, use_ema=True),
    "accumulating": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "loss scaling": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
}


def updates(optimizer: Any, variables: list[Any], how: str) -> Callable[[], Any]:
    def step() -> Any:
        with GradientTape() as tape:
            a, b = (keras.ops.convert_to_tensor(v) for v in variables)
            loss = keras.ops.sum(a**2 + 3 * b)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, variables)
        if how == "apply":
            optimizer.apply(gradients, variables)
        else:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return step


def trained(make: Callable[[Any], Any], optimizer: Any, how: str, strategy: replicant.Strategy | None) -> list[np.ndarray]:
    variables = [make(START), make(START)]
    if how == "built":
        optimizer.build(variables)
    step = updates(optimizer, variables, how)
    run = replicant.function(step if strategy is None else lambda: strategy.run(step))
    for _ in range(4):
        run()
    return [np.asarray(v) for v in variables]


@pytest.mark.cases("momentum-apply", "adam-apply_gradients", "adam-built", "loss scaling-built")
@pytest.mark.parametrize("how", ["apply", "apply_gradients", "built"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_in_a_function(name: str, how: str) -> None:
    got = trained(Variable, OPTIMIZERS[name](), how, None)
    np.testing.assert_allclose(got, trained(keras.Variable, OPTIMIZERS[name](), how, None), rtol=1e-6)
    assert not np.allclose(got[0], START)


@pytest.mark.both_ways
@pytest.mark.cases("apart-momentum", "fused-loss scaling")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_in_run(name: str) -> None:
    """The replicas' gradients are equal, so two replicas do what one does with twice the gradient."""
    two = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with two.scope():
        got = trained(Variable, OPTIMIZERS[name](), "apply_gradients", two)
        expected = trained(keras.Variable, OPTIMIZERS[name](), "apply_gradients", two)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert not np.allclose(got[0], START)


@pytest.mark.parametrize("aggregation", ["none", "mean", "sum", "only_first_replica"])
@pytest.mark.parametrize("make", [Variable, keras.Variable], ids=["own", "keras"])
def test_what_an_optimizer_assigns_is_not_summed_again(make: Any, aggregation: str) -> None:
    two = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with two.scope():
        w = make(1.0, aggregation=aggregation)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    step = replicant.function(lambda: two.run(lambda: optimizer.apply([np.float32(1)], [w])))
    step()
    step()
    np.testing.assert_allclose(float(np.asarray(w)), 1 - 0.2 - 0.2 * 1.9, rtol=1e-6)


@pytest.mark.parametrize("make", [Variable, keras.Variable], ids=["own", "keras"])
@pytest.mark.parametrize("name", ["momentum", "loss scaling"])
def test_an_optimizer_outside_of_any_function(name: str, make: Any) -> None:
    w, optimizer = make(START), OPTIMIZERS[name]()
    for _ in range(2):
        optimizer.apply([keras.ops.ones(3)], [w])
    scale = 2.0**15 if name == "loss scaling" else 1
    np.testing.assert_allclose(np.asarray(w), START - (0.1 + 0.1 * (1 if name == "loss scaling" else 1.9)) / scale, rtol=1e-6)
    assert int(optimizer.iterations) == 2


def test_the_scale_of_a_loss_in_a_function() -> None:
    """Half of it after an infinite gradient, which changes nothing else; twice as much after many finite ones."""
    w = keras.Variable(START)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0, dynamic_growth_steps=2)
    step = replicant.function(lambda gradient: optimizer.apply_gradients([(gradient, w)]))
    for gradient, scale, first in [(np.inf, 4.0, 2.0), (4.0, 4.0, 1.0), (4.0, 8.0, 0.0), (np.nan, 4.0, 0.0)]:
        step(np.full(3, gradient, np.float32))
        assert (float(optimizer.dynamic_scale), float(w[0])) == (scale, first)


def test_variables_on_parameter_servers_are_refused() -> None:
    cluster = ClusterSpec({"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"]})
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(cluster), transport="threads")
    try:
        with strategy.scope():
            w, optimizer = Variable(1.0, name="w"), keras.optimizers.SGD(0.1)
        message = r"Variable 'w' was given to a Keras optimizer, but it lies on parameter servers.*keras\.Variable"
        with pytest.raises(VariableError, match=message):
            optimizer.apply([np.float32(1)], [w])
    finally:
        strategy.close()


OPS: dict[str, Callable[[Any], Any]] = {
    "stop_gradient": lambda v: keras.ops.stop_gradient(v) * 2,
    "conv": lambda v: keras.ops.conv(keras.ops.ones((1, 3, 1)), keras.ops.reshape(v, (3, 1, 1))),
    "conv input": lambda v: keras.ops.conv(v[None, :, None], keras.ops.ones((2, 1, 1))),
    "where": lambda v: keras.ops.where(v > 0, v + 1, -v),
    "comparisons": lambda v: keras.ops.cast([v < 0, v >= 0.5, v > 1, v <= 2], "int32"),
    "cond": lambda v: keras.ops.cond(keras.ops.sum(v) > 1, lambda: v + 1, lambda: v - 1),
    "abs": abs,
    "loss": lambda v: keras.losses.MeanSquaredError()(v, v * 2),
    "ndim": lambda v: keras.ops.ones(v.ndim),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("eager", [True, False], ids=["eagerly", "in a function"])
def test_keras_ops(name: str, eager: bool) -> None:
    def value(v: Any) -> np.ndarray:
        return np.asarray(OPS[name](v) if eager else replicant.function(lambda: OPS[name](v))())

    np.testing.assert_array_equal(value(Variable(START)), value(keras.Variable(START)))


def test_no_gradient_flows_through_stop_gradient() -> None:
    v = Variable(START)

    @replicant.function
    def gradient() -> Any:
        with GradientTape() as tape:
            loss = keras.ops.sum(keras.ops.stop_gradient(v) * v)
        return tape.gradient(loss, v)

    np.testing.assert_array_equal(gradient(), START)


@pytest.mark.parametrize("one", [1, 1.0, True, np.float32(1), np.ones(()), np.int32(1)])
def test_a_variable_equals_numbers_by_its_value(one: Any) -> None:
    variable, other = replicant.Variable(1.0), replicant.Variable(1.0)
    assert bool(variable == one)
    assert not bool(variable != one)
    assert not bool(variable == 2)
    assert bool(one == variable)
    assert float(replicant.function(lambda: keras.ops.where(variable == one, 5.0, 6.0))()) == 5.0
    assert variable == variable  # noqa: PLR0124 - of variables, each equals only itself, as a key of a dictionary
    assert variable != other
    assert variable != "1"
    assert variable != None  # noqa: E711
    assert {variable: 3, other: 4}[variable] == 3
    np.testing.assert_array_equal(replicant.Variable([1.0, 2.0]) == np.array([1.0, 3.0]), [True, False])
