"""FullyShardedStrategy: variables in slices, with the numbers of one device and a share of the memory."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset
from replicant.errors import ArgumentError, ArgumentTypeError, DivergenceError, MixedStrategyError, ReductionError
from replicant.plan._chips import parse_target
from replicant.plan._compile import find_step
from replicant.plan._exchanges import exchanges_in
from replicant.programs.steps._step_inputs import StepInputs
from replicant.replicas._collectives import MeshAxis
from replicant.replicas._placement import Placement

from ._sliced_training import (
    BATCH,
    CLASSES,
    FEATURES,
    MEAN_LOSS,
    OPTIMIZERS,
    assert_equal,
    batches,
    bytes_per_device,
    data,
    step_of,
)

ON_MANY = ("adafactor", "clipped norm", "all together")  # test_double_precision.py has more of these
SIZES = [(name, n) for name in OPTIMIZERS for n in ((2, 4, 8) if name in ON_MANY else (2,))]
OFTEN = ("loop-all together-2", "loop-clipped norm-4", "loop-global norm-2", "fit-all together-4", "loop-adafactor-2")


def sharded(n: int, min_size: int = 8) -> replicant.FullyShardedStrategy:
    return replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(n)], min_size=min_size)


def mlp() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(CLASSES),  # its bias is too small to be cut
        ]
    )


def cnn() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Reshape((3, 2, 1)),
            layers.Conv2D(8, 2, padding="same", use_bias=False),  # a bias before the normalization has no gradient
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )


def transformer() -> keras.Model:
    layers = keras.layers
    given = keras.Input((FEATURES,))
    x = layers.Dense(16)(layers.Reshape((FEATURES, 1))(given))
    for _ in range(2):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(2, 8)(normal, normal, use_causal_mask=True)
        x = x + layers.Dense(16)(layers.Dense(32, activation="gelu")(layers.LayerNormalization()(x)))
    return keras.Model(given, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))


def rematerialized() -> keras.Model:
    with keras.RematScope(mode="full"):
        return mlp()


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer, "rematerialized": rematerialized}


def loop(strategy: Any, make_optimizer: Callable[[], Any], make_model: Callable[[], Any] = mlp, epochs: int = 2) -> Any:
    """Train with a custom loop. Return the losses, the model and the optimizer."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model, optimizer = make_model(), make_optimizer()

    step = step_of(model, optimizer)
    total, losses = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(step, args=(batch,)))), []
    for _ in range(epochs):
        for batch in batches(strategy):
            losses += [float(total(batch))]
    return losses, model, optimizer


def fit(strategy: Any, make_optimizer: Callable[[], Any], make_model: Callable[[], Any] = mlp, epochs: int = 2) -> Any:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = make_model()
        model.compile(make_optimizer(), MEAN_LOSS)
    history = model.fit(*data(), batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    return history.history["loss"], model, model.optimizer


def is_cut(variable: Any) -> bool:
    value = variable._ref.get_raw()[0] if isinstance(variable, replicant.Variable) else variable._value
    return not value.sharding.is_fully_replicated


# Exact


@pytest.mark.cases(*OFTEN)
@pytest.mark.parametrize(("name", "n"), SIZES, ids=[f"{name}-{n}" for name, n in SIZES])
@pytest.mark.parametrize("train", [pytest.param(loop, id="loop"), pytest.param(fit, id="fit")])
@pytest.mark.long_cases("fit-all together-4", "loop-adafactor-2", "loop-all together-2", "loop-clipped norm-4")
@pytest.mark.long_cases("loop-global norm-2")
def test_optimizers_give_the_numbers_of_one_device(train: Any, name: str, n: int) -> None:
    mine, alone = train(sharded(n), OPTIMIZERS[name]), train(replicant.OneDeviceStrategy("cpu:0"), OPTIMIZERS[name])
    assert_equal(mine, alone)
    for slot, wanted in zip(mine[2].variables, alone[2].variables, strict=True):
        np.testing.assert_allclose(slot.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-5, err_msg=slot.path)


@pytest.mark.cases("shard_optimizer_state", "fully sharded")
@pytest.mark.parametrize("kind", ["mirrored", "shard_optimizer_state", "fully sharded"])
@pytest.mark.long
def test_one_replica_that_overflows_stops_all(kind: str) -> None:
    devices = ["cpu:0", "cpu:1"]
    strategy = {
        "mirrored": lambda: replicant.MirroredStrategy(devices),
        "shard_optimizer_state": lambda: replicant.MirroredStrategy(devices, shard_optimizer_state=True),
        "fully sharded": lambda: sharded(2),
    }[kind]()
    with strategy.scope():
        weight, bias = keras.Variable(np.ones((FEATURES, 16), "f")), keras.Variable(np.ones(4, "f"))
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.1, global_clipnorm=1.0), initial_scale=16.0, dynamic_growth_steps=2
        )

    def step(x: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = jnp.sum((x @ weight.value) ** 2) * jnp.sum(bias.value)
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, [weight, bias]), [weight, bias])
        return loss

    scales, values = [], []
    for overflow in (False, True, False, False, False):
        x = np.ones((2, 3, FEATURES), "f")
        x[1, 2, 3] = np.inf if overflow else 1  # of the second replica alone
        strategy.run(step, args=(replicant.PerReplica.from_stacked(jnp.asarray(x)),))
        scales += [float(optimizer.dynamic_scale.numpy())]
        values += [np.concatenate([weight.numpy().ravel(), bias.numpy()])]
    assert scales == [16.0, 8.0, 8.0, 16.0, 16.0]
    np.testing.assert_array_equal(values[1], values[0])
    assert np.all(values[2] < values[1])
    assert int(optimizer.iterations.numpy()) == 4


# The replicas of a custom loop normalize their own rows, under every strategy: see the test below.
ALIKE = [(model, train) for model in MODELS for train in (loop, fit) if (model, train) != ("cnn", loop)]


@pytest.mark.cases("transformer-loop-4", "cnn-fit-4", "rematerialized-loop-2")
@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize(("model", "train"), ALIKE, ids=[f"{model}-{train.__name__}" for model, train in ALIKE])
@pytest.mark.long_cases("cnn-fit-4", "transformer-loop-4")
@pytest.mark.long_cases("rematerialized-loop-2")
def test_models_give_the_numbers_of_one_device(model: str, train: Any, n: int) -> None:
    epochs = 7  # 21 steps
    expected = train(replicant.OneDeviceStrategy("cpu:0"), OPTIMIZERS["sgd"], MODELS[model], epochs)
    assert_equal(train(sharded(n), OPTIMIZERS["sgd"], MODELS[model], epochs), expected)


@pytest.mark.long
def test_batch_statistics_in_a_loop_are_those_of_mirrored_replicas() -> None:
    mirrored = replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False)
    assert_equal(loop(sharded(2, 1), OPTIMIZERS["sgd"], cnn), loop(mirrored, OPTIMIZERS["sgd"], cnn))


# A share of the memory


@pytest.mark.parametrize("train", [pytest.param(loop, id="loop"), pytest.param(fit, id="fit")])
@pytest.mark.long
def test_each_device_keeps_its_share(train: Any) -> None:
    _, model, optimizer = train(sharded(4), OPTIMIZERS["adam"])
    # Kernels of 6 x 16 and 16 x 4, a bias of 16 and one of 4 that is mirrored; Adam has two moments of each.
    assert bytes_per_device([*model.variables, *[v for v in optimizer.variables if v.shape]]) == [3 * 4 * (24 + 16 + 4 + 4)] * 4


@pytest.mark.parametrize(
    ("make_optimizer", "small_sums"),
    [
        (lambda: keras.optimizers.SGD(0.1), 0),
        (lambda: keras.optimizers.Adam(0.1, clipnorm=1.0), 1),
        (lambda: keras.optimizers.Adam(0.1, global_clipnorm=1.0, gradient_accumulation_steps=2, use_ema=True), 1),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1, global_clipnorm=1.0)), 2),
    ],
    ids=["sgd", "norms", "accumulation", "loss scaling"],
)
def test_a_program_gathers_twice_and_sums_once(make_optimizer: Callable[[], Any], small_sums: int) -> None:
    strategy = sharded(2)
    with strategy.scope():
        first, second = keras.Variable(np.ones((FEATURES, 16), "f")), keras.Variable(np.ones((16, 8), "f"))
        optimizer = make_optimizer()
        optimizer.build([first, second])

    def step(x: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = jnp.sum(jnp.tanh(x @ first.value) @ second.value)
        optimizer.apply(tape.gradient(loss, [first, second]), [first, second])
        return loss

    @replicant.function
    def train(x: Any) -> Any:
        return strategy.run(step, args=(x,))

    batch = replicant.PerReplica.from_stacked(jnp.ones((2, 3, FEATURES)))
    text = train.get_concrete_function(batch).as_text()
    found = Counter(re.findall(r"stablehlo\.(all_gather|all_reduce|reduce_scatter|all_to_all|collective_permute)", text))
    # Both weights for the forward pass, the second one for the backward pass, and one sum of both gradients; then norms and checks.
    assert found == {"all_gather": 3, "all_reduce": 1 + small_sums}


def test_fit_gathers_twice_and_keeps_no_weights() -> None:
    def program() -> None:
        with replicant.FullyShardedStrategy(min_size=8).scope():
            layers = [keras.Input((64,)), *[keras.layers.Dense(64, activation="tanh") for _ in range(4)]]
            model = keras.Sequential(layers)
            model.compile("sgd", "mse")
        model.fit(np.zeros((8, 64), "f"), np.zeros((8, 64), "f"), batch_size=8)

    step = find_step(program, parse_target("cpu:2"))
    compiled = step.lower(Placement(tuple(jax.devices("cpu")[:2]))).compile()
    found = exchanges_in(compiled.as_text())
    gathers = Counter(x.num_bytes for x in found if x.kind == "all-gather")
    # Each kernel for the forward pass, all but the first for the backward pass; biases of 64 once.
    assert gathers == {64 * 64 * 4: 7, 64 * 4: 4}
    assert {x.kind for x in found} == {"all-gather", "all-reduce"}
    # CPUs sum gradients whole, and cut them then. Some more bytes are the loss and the number of examples.
    assert 0 <= sum(x.num_bytes for x in found if x.kind == "all-reduce") - 4 * (64 * 64 + 64) * 4 < 64


def frozen(strategy: Any) -> Any:
    """Train small weights beside large ones that are frozen, in a custom loop."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), *[keras.layers.Dense(64, activation="tanh") for _ in range(3)]])
        optimizer = keras.optimizers.SGD(0.1)
        for layer in model.layers:
            layer.kernel.trainable = False

    def step(x: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(keras.ops.mean(model(x) ** 2, axis=-1), global_batch_size=BATCH)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    total = replicant.function(lambda x: strategy.reduce("SUM", strategy.run(step, args=(x,))))
    (batch,) = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(data(BATCH)[0]).batch(BATCH))
    return [float(total(batch)) for _ in range(3)], model, total.get_concrete_function(batch).as_text()


def test_frozen_weights_are_gathered_again_too() -> None:
    losses, model, text = frozen(sharded(2))
    assert_equal((losses, model), frozen(replicant.OneDeviceStrategy("cpu:0")))
    gathered = re.findall(r"stablehlo\.all_gather.*-> tensor<(\d+)x64xf32>", text)
    # All kernels for the forward pass, and those after the first bias again for the backward pass.
    assert Counter(gathered) == {"6": 1, "64": 4}


@pytest.fixture
def other_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum as on GPUs and TPUs, by a reduce-scatter."""
    monkeypatch.setattr(StepInputs, "mesh_axis", lambda self: MeshAxis(self.num_replicas, bucket=0, scatter=True))


@pytest.mark.usefixtures("other_backend")
@pytest.mark.long
def test_other_backends_sum_slices() -> None:
    assert_equal(loop(sharded(2), OPTIMIZERS["adam"]), loop(replicant.OneDeviceStrategy("cpu:0"), OPTIMIZERS["adam"]))


@pytest.mark.usefixtures("other_backend")
def test_a_sum_of_slices_is_checked_like_other_sums() -> None:
    strategy = replicant.FullyShardedStrategy(["cpu:0", "cpu:1"], min_size=8, strict=True)
    with strategy.scope():
        weight, optimizer = replicant.Variable(np.ones((FEATURES, 16), "f")), keras.optimizers.SGD(0.1)
        optimizer.build([weight])

    def step(x: Any) -> None:
        with replicant.GradientTape() as tape:
            loss = jnp.mean(x @ weight.value())  # of the replica's rows, not of the global batch
        optimizer.apply(tape.gradient(loss, [weight]), [weight])

    with pytest.raises(ReductionError, match="mean"):
        strategy.run(step, args=(replicant.PerReplica.from_stacked(jnp.ones((2, 3, FEATURES))),))


def test_new_variables_are_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    keras.utils.set_random_seed(3)
    expected = mlp()
    for large in (1 << 24, 1):
        monkeypatch.setattr("replicant.keras.state._variables.LARGE", large)
        keras.utils.set_random_seed(3)
        with sharded(2).scope():
            model, own = mlp(), replicant.Variable(np.arange(16.0))
            optimizer = keras.optimizers.Adam()
            optimizer.build(model.trainable_variables)
        assert [is_cut(v) for v in model.variables] == [True, True, True, False]
        assert [is_cut(v) for v in optimizer.variables] == [False, False, *[True] * 6, False, False]
        assert is_cut(own)
        np.testing.assert_array_equal(own.numpy(), np.arange(16.0))
        for mine, wanted in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, wanted)


def test_assigned_values_are_cut_again() -> None:
    with sharded(2).scope():
        model, own = mlp(), replicant.Variable(np.zeros(16))
    model.set_weights([w + 1.0 for w in model.get_weights()])
    model.weights[1].assign(np.arange(16.0))
    own.assign(np.arange(16.0))
    own.assign_add(np.ones(16))
    assert [is_cut(v) for v in [*model.variables, own]] == [True, True, True, False, True]
    np.testing.assert_array_equal(model.weights[1].numpy(), np.arange(16.0))
    np.testing.assert_array_equal(own.numpy(), np.arange(16.0) + 1)


# Reads, writes and gradients in replica functions


def value_of(strategy: Any, make: Callable[[], Any], fn: Callable[..., Any]) -> Any:
    """Return what ``fn(variables, x)`` gives on all replicas, and the variables afterwards."""
    with strategy.scope():
        variables = make()
    x = np.arange(1.0, 17.0, dtype="f").reshape(8, 2) / 10
    (batch,) = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(x).batch(8))
    total = replicant.function(lambda b: strategy.reduce("SUM", strategy.run(lambda x: fn(variables, x), args=(b,))))
    results = jax.tree.map(np.asarray, total(batch))
    return results, [np.asarray(v.numpy() if isinstance(v, replicant.Variable) else v) for v in variables]


def two() -> list[Any]:
    return [
        replicant.Variable(np.linspace(-1, 1, 16, dtype="f").reshape(2, 8)),
        replicant.Variable(np.linspace(0, 1, 16, dtype="f")),
    ]


def summing() -> list[Any]:
    return [replicant.Variable(np.zeros((2, 8), "f"), aggregation="sum"), replicant.Variable(np.zeros(16, "f"), aggregation="mean")]


def read_twice(v: Any, x: Any) -> Any:
    with replicant.GradientTape() as tape:
        y = jnp.sum((x @ v[0].value()) ** 2 * v[0].value()[0])
    return y, tape.gradient(y, v[0])


def persistent(v: Any, x: Any) -> Any:
    with replicant.GradientTape(persistent=True) as tape:
        y = jnp.sum(jnp.sin(x @ v[0].value()))
        z = y * jnp.sum(v[1].value())
    return tape.gradient(y, v[0]), tape.gradient(z, v)


def penalty(v: Any, x: Any) -> Any:
    with replicant.GradientTape() as outer:
        with replicant.GradientTape() as inner:
            inner.watch(x)
            y = jnp.sum(jnp.tanh(x @ v[0].value()) ** 2)
        norm = jnp.sum(inner.gradient(y, x) ** 2)
    return norm, outer.gradient(norm, v[0])


def second_order(v: Any, x: Any) -> Any:
    with replicant.GradientTape() as outer:
        with replicant.GradientTape() as inner:
            y = jnp.sum(jnp.tanh(x @ v[0].value()) ** 3)
        slope = jnp.sum(inner.gradient(y, v[0]) ** 2)
    return slope, outer.gradient(slope, v[0])


def in_jax(v: Any, x: Any) -> Any:
    weight = v[0].value()
    return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) * v[1].value()[:8]))(weight)


def in_a_scan(v: Any, x: Any) -> Any:
    with replicant.GradientTape() as tape:
        weight = v[0].value()
        y, _ = jax.lax.scan(lambda c, row: (c + jnp.sum(jnp.tanh(row @ weight)), None), jnp.float32(0), x)
    return y, tape.gradient(y, v[0])


def read_in_a_scan(v: Any, x: Any) -> Any:
    return jax.lax.scan(lambda c, row: (c + jnp.sum(jnp.tanh(row @ v[0].value())), None), jnp.float32(0), x)[0]


def differentiates_a_scan_that_reads(v: Any, x: Any) -> Any:
    with replicant.GradientTape() as tape:
        y, _ = jax.lax.scan(lambda c, row: (c + jnp.sum(jnp.tanh(row @ v[0].value())), None), jnp.float32(0), x)
    return y, tape.gradient(y, v[0])


def differentiates_a_checkpoint_that_reads(v: Any, x: Any) -> Any:
    with replicant.GradientTape() as tape:
        y = jnp.sum(jax.checkpoint(lambda x: jnp.tanh(x @ v[0].value()) ** 2)(x))
    return y, tape.gradient(y, v[0])


def differentiates_what_jax_compiles(v: Any, x: Any) -> Any:
    with replicant.GradientTape() as tape:
        y = jnp.sum(jax.jit(lambda x: jnp.tanh(x @ v[0].value()) ** 2)(x) + jax.vmap(lambda row: row @ v[0].value())(x))
    return y, tape.gradient(y, v[0])


def rows_of_a_jacobian(v: Any, x: Any) -> Any:
    with replicant.GradientTape() as tape:
        y = jnp.sum(x @ v[0].value(), 0)
    return tape.jacobian(y, v[0])


def stopped(v: Any, x: Any) -> Any:
    with replicant.GradientTape() as tape:
        y = jnp.sum(x @ jax.lax.stop_gradient(v[0].value())) + jnp.sum(v[1].value() ** 2)
    return tape.gradient(y, v, unconnected_gradients="zero")


def with_checkpoint(v: Any, x: Any) -> Any:
    with replicant.GradientTape() as tape:
        y = jnp.sum(jax.checkpoint(lambda w: jnp.tanh(x @ w) ** 2)(v[0].value()))
    return tape.gradient(y, v[0])


def own_function(v: Any, x: Any) -> Any:
    return replicant.value_and_grad(lambda x: jnp.sum(jnp.tanh(x @ v[0].value())), v[0])(x)


def writes(v: Any, x: Any) -> Any:
    v[0].assign_add(jnp.sum(x) * jnp.ones((2, 8)))
    v[1].assign(jnp.full(16, jnp.sum(x)))
    return jnp.sum(v[0].value()) / 2  # of both replicas


def writes_then_reads(v: Any, x: Any) -> Any:
    v[0].assign(v[0].value() * 2.0)
    with replicant.GradientTape() as tape:
        y = jnp.sum(jnp.tanh(x @ v[0].value()))
    return y, tape.gradient(y, v[0])


PROGRAMS: dict[str, tuple[Any, Any]] = {
    fn.__name__: (two, fn)
    for fn in (
        read_twice,
        persistent,
        penalty,
        second_order,
        in_jax,
        in_a_scan,
        differentiates_a_scan_that_reads,
        differentiates_a_checkpoint_that_reads,
        differentiates_what_jax_compiles,
        read_in_a_scan,
        rows_of_a_jacobian,
        stopped,
        with_checkpoint,
        own_function,
        writes_then_reads,
    )
} | {"writes": (summing, writes)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replica_sees_whole_variables(name: str) -> None:
    mirrored = replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False)
    expected, actual = (value_of(strategy, *PROGRAMS[name]) for strategy in (mirrored, sharded(2)))
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for mine, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)


def test_a_tape_outside_of_run() -> None:
    def gradient(strategy: Any) -> Any:
        with strategy.scope():
            weight = replicant.Variable(np.linspace(-1, 1, 16, dtype="f").reshape(2, 8))
        x = replicant.PerReplica.from_stacked(jnp.arange(12.0).reshape(2, 3, 2))

        @replicant.function
        def step(x: Any) -> Any:
            with replicant.GradientTape() as tape:
                y = strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(jnp.tanh(x @ weight.value())), args=(x,)))
            return y, tape.gradient(y, weight)

        return jax.tree.map(np.asarray, step(x))

    expected = gradient(replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False))
    for mine, wanted in zip(gradient(sharded(2)), expected, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)


def test_a_value_that_differs_between_the_replicas() -> None:
    strategy = sharded(2)
    with strategy.scope():
        weight = replicant.Variable(np.zeros(16, "f"))
    x = replicant.PerReplica.from_stacked(jnp.arange(2.0))
    with pytest.raises(DivergenceError, match="was assigned a value that differs between the 2 replicas"):
        strategy.run(lambda x: weight.assign(jnp.full(16, x)), args=(x,))


# Saved and restored


@pytest.mark.parametrize("target", [lambda: sharded(2), lambda: sharded(8), lambda: replicant.MirroredStrategy(["cpu:0", "cpu:1"])])
def test_a_checkpoint_goes_on_elsewhere(target: Any, tmp_path: Any) -> None:
    _, model, optimizer = loop(sharded(4), OPTIMIZERS["adam"])
    path = replicant.Checkpoint(model=model, optimizer=optimizer).save(str(tmp_path / "c"))
    with target().scope():
        other, restored = mlp(), keras.optimizers.Adam()
        restored.build(other.trainable_variables)
    replicant.Checkpoint(model=other, optimizer=restored).restore(path).assert_consumed()
    for mine, wanted in zip([*other.variables, *restored.variables], [*model.variables, *optimizer.variables], strict=True):
        np.testing.assert_array_equal(np.asarray(mine.value), np.asarray(wanted.value))


@pytest.mark.long
def test_a_model_is_saved_and_loaded(tmp_path: Any) -> None:
    _, model, _ = fit(sharded(4), OPTIMIZERS["adam"])
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    alone = keras.models.load_model(tmp_path / "m.keras")
    with sharded(2).scope():
        again, weights = keras.models.load_model(tmp_path / "m.keras"), mlp()
        weights.load_weights(tmp_path / "m.weights.h5")
    for other in (alone, again, weights):
        for mine, wanted in zip(other.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, wanted)
    assert [is_cut(v) for v in again.variables] == [is_cut(v) for v in weights.variables] == [True, True, True, False]
    np.testing.assert_allclose(again.evaluate(*data(), verbose=0), alone.evaluate(*data(), verbose=0), rtol=1e-6)


@pytest.mark.long
def test_a_backup_goes_on_with_other_devices(tmp_path: Any) -> None:
    def train(strategy: Any, epochs: int) -> Any:
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = mlp()
            model.compile("adam", MEAN_LOSS)
        backup = replicant.keras.callbacks.BackupAndRestore(str(tmp_path / strategy.__class__.__name__), delete_checkpoint=False)
        model.fit(*data(), batch_size=BATCH, epochs=epochs, verbose=0, callbacks=[backup])
        return model.get_weights()

    whole = train(replicant.OneDeviceStrategy("cpu:0"), 4)
    train(sharded(4), 2)
    for mine, wanted in zip(train(sharded(2), 4), whole, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5)


# What it says


def test_explain() -> None:
    strategy = sharded(4, min_size=16)
    with strategy.scope():
        variables = [
            replicant.Variable(np.zeros((6, 16), "f"), name="kernel"),
            replicant.Variable(np.zeros((8, 16, 2), "f"), name="cube"),
            replicant.Variable(np.zeros(4, "f"), name="bias"),
            replicant.Variable(np.zeros((5, 7), "f"), name="odd"),
            replicant.Variable(np.zeros(32, "int32"), name="seeds"),
            replicant.Variable(np.zeros(32, "f"), name="counts", synchronization="on_read", aggregation="sum"),
        ]
    plan = strategy.explain(variables)
    assert str(plan).splitlines() == [
        "kernel  [6, 16]     cut along axis 1: [6, 4] on each device",
        "cube    [8, 16, 2]  cut along axis 1: [8, 4, 2] on each device",
        "bias    [4]         mirrored: fewer than 16 elements",
        "odd     [5, 7]      mirrored: 4 divides no axis",
        "seeds   [32]        mirrored: int32 is not a float dtype",
        "counts  [32]        mirrored: each replica has its own copy",
        "1,820 bytes in all, 764 on each of 4 devices",
    ]
    assert (plan.num_bytes, plan.bytes_per_device) == (1820, 96 + 256 + 16 + 140 + 128 + 128)
    assert "there is one device" in str(sharded(1).explain(variables))
    limited = strategy.explain(variables, limit=1000)
    line = "cube    [8, 16, 2]  cut along axis 1: [8, 4, 2] on each device"
    assert str(limited).splitlines()[1] == f"{line}; TOO LARGE to be read: 1,024 bytes on each device, which holds 1,000"
    assert [rule.name for rule in limited.too_large] == ["cube"]
    assert strategy.explain(variables, limit=1024).too_large == ()
    with strategy.scope():
        model = mlp()
    assert [rule.axis for rule in strategy.explain(model).rules] == [1, 0, 0, None]


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"min_size must be an int, a number of elements; got 1\.5 of type float"):
        replicant.FullyShardedStrategy(["cpu:0"], min_size=1.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"min_size must not be negative; got -1\. 0 cuts every one that can be cut"):
        replicant.FullyShardedStrategy(["cpu:0"], min_size=-1)
    with pytest.raises(ArgumentTypeError, match=r"cluster_resolver must be a replicant\.cluster\.ClusterResolver; got 'tpu'"):
        replicant.FullyShardedStrategy(cluster_resolver="tpu")  # type: ignore[arg-type]
    alone = replicant.cluster.SimpleClusterResolver(replicant.cluster.ClusterSpec({}))
    with pytest.raises(ArgumentError, match=r"devices=\['cpu:0'\] are those of one process, and cluster_resolver tells of several"):
        replicant.FullyShardedStrategy(["cpu:0"], cluster_resolver=alone)
    assert replicant.FullyShardedStrategy(cluster_resolver=alone).cluster_resolver is alone
    with pytest.raises(ArgumentTypeError, match="explain takes a model or a list of variables; got 3 of type int"):
        sharded(2).explain(3)
    with pytest.raises(ArgumentTypeError, match="explain: limit must be a number of bytes; got '16 GB' of type str"):
        sharded(2).explain([], limit="16 GB")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"explain: limit must be a positive number of bytes, such as 16e9; got 0\."):
        sharded(2).explain([], limit=0)
    with sharded(2).scope():
        weight = replicant.Variable(np.zeros(16, "f"))
    with pytest.raises(MixedStrategyError, match="belongs to FullyShardedStrategy"):
        replicant.MirroredStrategy(["cpu:0", "cpu:1"]).run(weight.value)


def test_a_notebook_shows_it() -> None:
    assert "in slices, from 8 elements" in sharded(2)._repr_html_()
