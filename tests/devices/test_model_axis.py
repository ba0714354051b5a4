"""FullyShardedStrategy(model_parallel_size=k): k devices compute one replica, with the numbers of one device."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset
from replicant.errors import ArgumentError, ArgumentTypeError, ContextError, MixedStrategyError, ReductionError
from replicant.plan import make_plan
from replicant.plan._chips import parse_target
from replicant.plan._compile import find_step
from replicant.plan._exchanges import exchanges_in
from replicant.programs.steps._step_inputs import StepInputs
from replicant.replicas._collectives import MeshAxis
from replicant.replicas._placement import Placement

from ._loops import in_loops
from ._sliced_training import LOSS, MEAN_LOSS, OPTIMIZERS, assert_equal, bytes_per_device

ROWS, BATCH, CLASSES, WORDS, LENGTH = 20, 8, 8, 32, 6
ONE = replicant.OneDeviceStrategy


def cut(n: int, k: int = 2, **options: Any) -> replicant.FullyShardedStrategy:
    options = {"min_size": 8} | options
    return replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(n)], model_parallel_size=k, **options)


def mlp() -> keras.Model:
    layers = keras.layers
    given = keras.Input((LENGTH,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(WORDS, 8)(given))
    return keras.Model(given, layers.Dense(CLASSES)(layers.Dense(32, activation="tanh")(x)))


def cnn() -> keras.Model:
    layers = keras.layers
    given = keras.Input((LENGTH,), dtype="int32")
    x = layers.Reshape((LENGTH, 4, 2))(layers.Embedding(WORDS, 8)(given))
    for filters in (8, 16):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(given, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


def transformer() -> keras.Model:
    layers = keras.layers
    given = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 16)(given)
    for _ in range(4):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 4)(normal, normal, use_causal_mask=True)
        x = x + layers.Dense(16)(layers.Dense(64, activation="gelu")(layers.LayerNormalization()(x)))
    return keras.Model(given, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}
# The deep model takes small steps, which do not enlarge the rounding of sums in another order.
MAKERS = OPTIMIZERS | {"small steps": lambda: keras.optimizers.SGD(0.02)}
NAMES = ("sgd", "adam", "adamw with decay", "adafactor", "lion", "loss scaling")


def data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.integers(0, WORDS, (ROWS, LENGTH)).astype("int32"), draw.integers(0, CLASSES, ROWS)


def made(strategy: Any, make_model: Callable[[], Any], name: str) -> tuple[Any, Any]:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model, optimizer = make_model(), MAKERS[name]()
        model.compile(optimizer, MEAN_LOSS)
    return model, optimizer


def fit(strategy: Any, make_model: Callable[[], Any] = mlp, name: str = "adam", epochs: int = 7) -> Any:
    model, optimizer = made(strategy, make_model, name)
    history = model.fit(*data(), batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    return history.history["loss"], model, optimizer


def trained(strategy: Any, step_of: Any, make_model: Callable[[], Any], name: str, epochs: int) -> Any:
    model, optimizer = made(strategy, make_model, name)
    step = step_of(model, optimizer)
    total, losses = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(step, args=(batch,)))), []
    for _ in range(epochs):
        for batch in strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(data()).batch(BATCH)):
            losses += [float(total(batch))]
    return losses, model, optimizer


def loss_of(model: Any, batch: Any) -> Any:
    return replicant.compute_average_loss(LOSS(batch[1], model(batch[0], training=True)), global_batch_size=BATCH)


def with_tape(model: Any, optimizer: Any) -> Callable[[Any], Any]:
    def step(batch: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = loss_of(model, batch)
            scaled = optimizer.scale_loss(loss) if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else loss
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(scaled, variables), variables, strict=True))
        return loss

    return step


def functional(model: Any, optimizer: Any) -> Callable[[Any], Any]:
    def step(batch: Any) -> Any:
        loss, gradients = replicant.value_and_grad(lambda: loss_of(model, batch), model.trainable_variables)()
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step


def loop(strategy: Any, make_model: Callable[[], Any] = mlp, name: str = "adam", epochs: int = 7) -> Any:
    return trained(strategy, with_tape, make_model, name, epochs)


def grad(strategy: Any, make_model: Callable[[], Any] = mlp, name: str = "adam", epochs: int = 7) -> Any:
    return trained(strategy, functional, make_model, name, epochs)


# Exact

WAYS = {"loop": loop, "grad": grad, "fit": fit}
SIZES = ((2, 1), (2, 2), (4, 2), (8, 2), (8, 4))
# test_double_precision.py has more optimizers on more devices, in less time.
MANY = ("adam", "adafactor")
CASES = [("mlp", name, way, n, k) for name in NAMES for way in ("loop", "fit") for n, k in (SIZES if name in MANY else [(4, 2)])]
CASES += [("mlp", "adam", "grad", n, k) for n, k in SIZES]
# The replicas of a custom loop normalize their own rows, under every strategy: with one replica, these are all rows.
CASES += [("cnn", "sgd", way, n, k) for way in WAYS for n, k in SIZES if way == "fit" or n == k]
CASES += [("transformer", "small steps", way, n, k) for way in WAYS for n, k in ((2, 1), (4, 2), (8, 4))]
IDS = ["-".join(map(str, case)) for case in CASES]


@pytest.mark.cases("mlp-adam-loop-4-2", "mlp-adafactor-fit-4-2")
@pytest.mark.parametrize(("model", "name", "way", "n", "k"), CASES, ids=IDS)
@pytest.mark.long_cases("mlp-adafactor-fit-4-2")
@pytest.mark.long_cases("mlp-adam-loop-4-2")
def test_the_numbers_are_those_of_one_device(model: str, name: str, way: str, n: int, k: int) -> None:
    strategy = cut(n, k)
    assert strategy.num_replicas_in_sync == n // k
    mine = WAYS[way](strategy, MODELS[model], name)
    assert_equal(mine, WAYS[way](ONE("cpu:0"), MODELS[model], name))


def recomputed(model: Any, optimizer: Any) -> Callable[[Any], Any]:
    """A step in micro-batches, which computes the model again for the backward pass."""
    again = replicant.remat(lambda x: model(x, training=True))

    def loss_of(x: Any, y: Any) -> Any:
        return replicant.compute_average_loss(LOSS(y, again(x)), global_batch_size=BATCH)

    gradients_of = replicant.value_and_grad(loss_of, model.trainable_variables, accumulate_steps=2)

    def step(batch: Any) -> Any:
        loss, gradients = gradients_of(*batch)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step


@pytest.mark.parametrize(
    ("n", "options"),
    [
        pytest.param(2, {}, id="one replica"),
        pytest.param(4, {"min_size": 1 << 20, "layout_map": {".*kernel": (None, "model")}}, id="mirrored, and cut in use"),
        pytest.param(4, {}, marks=pytest.mark.slow, id="two replicas"),
    ],
)
@pytest.mark.long
def test_weights_are_trained_where_they_are_read_again(n: int, options: dict[str, Any]) -> None:
    actual = trained(cut(n, **options), recomputed, mlp, "adam", 2)
    assert_equal(actual, trained(ONE("cpu:0"), recomputed, mlp, "adam", 2))


@pytest.mark.slow
def test_dropout_draws_as_the_same_number_of_replicas() -> None:
    def dropped() -> keras.Model:
        given = keras.Input((LENGTH,), dtype="int32")
        x = keras.layers.Dropout(0.5)(keras.layers.Flatten()(keras.layers.Embedding(WORDS, 8)(given)))
        return keras.Model(given, keras.layers.Dense(CLASSES)(x))

    mirrored = replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False)
    assert_equal(loop(cut(4), dropped, epochs=1), loop(mirrored, dropped, epochs=1))
    assert_equal(loop(cut(2), dropped, epochs=1), loop(ONE("cpu:0"), dropped, epochs=1))


@pytest.mark.slow
def test_batch_statistics_in_a_loop_are_those_of_mirrored_replicas() -> None:
    mirrored = replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False)
    assert_equal(loop(cut(4), cnn, "sgd"), loop(mirrored, cnn, "sgd"))


@pytest.mark.slow
def test_other_backends_sum_by_a_reduce_scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    def mesh_axis(step: StepInputs) -> MeshAxis:
        return MeshAxis(step.num_replicas, bucket=0, scatter=True, rest=step.strategy.placement.model_axis_at_rest)

    expected = loop(ONE("cpu:0"), epochs=1)
    monkeypatch.setattr(StepInputs, "mesh_axis", mesh_axis)
    assert_equal(loop(cut(4), epochs=1), expected)


def test_a_sum_over_replicas_is_checked_like_other_sums() -> None:
    strategy = cut(4, strict=True)
    with strategy.scope():
        weight, optimizer = replicant.Variable(np.ones((8, 16), "f")), keras.optimizers.SGD(0.1)
        optimizer.build([weight])

    def step(x: Any) -> None:
        with replicant.GradientTape() as tape:
            loss = jnp.mean(x @ weight.value())  # of the replica's rows, not of the global batch
        optimizer.apply(tape.gradient(loss, [weight]), [weight])

    with pytest.raises(ReductionError, match="mean"):
        strategy.run(step, args=(replicant.PerReplica.from_stacked(jnp.ones((2, 3, 8))),))


# A share of the memory, and of the work


@pytest.mark.cases("loop-4-2")
@pytest.mark.parametrize(("n", "k"), [(4, 2), (2, 2)])
@pytest.mark.parametrize("train", [pytest.param(loop, id="loop"), pytest.param(fit, id="fit")])
@pytest.mark.long_cases("loop-4-2")
def test_each_device_keeps_its_share(train: Any, n: int, k: int) -> None:
    _, model, optimizer = train(cut(n, k), epochs=1)
    variables = [*model.variables, *[v for v in optimizer.variables if v.shape]]
    whole = sum(int(np.prod(v.shape)) * 4 for v in variables)
    assert bytes_per_device(variables) == [whole // n] * n


def compiled(program: Callable[[], None], n: int) -> str:
    """The text of the program that XLA makes of a training step for n devices."""
    step = find_step(program, parse_target(f"cpu:{n}"))
    return step.lower(Placement(tuple(jax.devices("cpu")[:n]))).compile().as_text()


def training(way: str, layout_map: Any = None, k: int = 2) -> Callable[[], None]:
    """A program that trains two layers, 48 -> 192 -> 16, on 8 rows for each of two replicas."""

    def program() -> None:
        strategy = replicant.FullyShardedStrategy(min_size=8, model_parallel_size=k, layout_map=layout_map)
        with strategy.scope():
            layers = [keras.layers.Dense(192, activation="tanh", name="wide"), keras.layers.Dense(16, name="narrow")]
            model, optimizer = keras.Sequential([keras.Input((48,)), *layers]), keras.optimizers.SGD(0.1)
            model.compile(optimizer, "mse")
        x, y = np.zeros((16, 48), "f"), np.zeros((16, 16), "f")
        if way == "fit in micro-batches":
            replicant.keras.use_micro_batches(model, 2)
        if way != "loop":
            model.fit(x, y, batch_size=16)

        def step(x: Any, y: Any) -> None:
            with replicant.GradientTape() as tape:
                loss = jnp.sum((model(x) - y) ** 2) / 16
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        strategy.run(step, next(iter(strategy.experimental_distribute_dataset(Dataset.from_tensor_slices((x, y)).batch(16)))))

    return program


def products(text: str) -> Counter[tuple[int, ...]]:
    """The shapes of the results of all matrix products."""
    found = re.findall(r"= f32\[([\d,]*)\]\S* dot\(", text)
    return Counter(tuple(sorted(map(int, shape.split(",")))) for shape in found)


@pytest.mark.parametrize("way", ["loop", "fit"])
@pytest.mark.long
def test_the_devices_of_a_replica_share_its_products(way: str) -> None:
    text = compiled(training(way), 4)
    # 8 rows per replica. Forward: 48 -> 96 of 192, and these to 16. Backward: both kernels, and what is between them.
    assert products(text) == {(8, 96): 2, (8, 16): 1, (16, 96): 1, (48, 96): 1}
    assert largest_gather(text) == 48 * 96 * 4, "no device has the whole of a kernel"


def largest_gather(text: str) -> int:
    return max(x.num_bytes for x in exchanges_in(text) if x.kind == "all-gather")


def test_the_devices_of_a_replica_share_the_products_of_micro_batches() -> None:
    text = compiled(training("fit in micro-batches"), 4)
    # As above, for 4 rows of each of two micro-batches.
    assert products(in_loops(text)) == products(text) == {(4, 96): 2, (4, 16): 1, (16, 96): 1, (48, 96): 1}
    assert largest_gather(text) == 48 * 96 * 4, "no device has the whole of a kernel"


@pytest.mark.cases("loop")
@pytest.mark.parametrize("way", ["loop", "fit"])
def test_without_a_rule_a_weight_is_whole_in_use(way: str) -> None:
    text = compiled(training(way, {"sequential.*/narrow/kernel": (None, "model")}), 4)
    found = products(text)
    assert {(8, 192), (8, 8)} <= found.keys()


# Where a variable lies


def test_a_strategy_names_its_replicas() -> None:
    strategy = cut(8, layout_map={".*": ("model",)})
    assert repr(strategy).endswith("'cpu:7'], model_parallel_size=2, layout_map of 1 rules)")
    assert [device.id for device in strategy.extended.worker_devices] == [0, 2, 4, 6]
    assert strategy.topology.num_replicas == 4


def test_explain_says_both_cuts() -> None:
    strategy = cut(4, layout_map={".*kernel": ("model", None), "other": (None, None), "bias": ["model"]})
    with strategy.scope():
        kernel, other = (
            keras.Variable(np.ones((8, 32), "f"), name="kernel"),
            keras.Variable(np.ones((8, 4), "f"), name="other"),
        )
        bias = keras.Variable(np.ones(4, "f"), name="bias")
    assert [rule.bytes_in_use for rule in strategy.explain([kernel, other, bias]).rules] == [8 * 32 * 4 // 2, 8 * 4 * 4, 8]
    assert str(strategy.explain([kernel, other, bias])).splitlines() == [
        "kernel  [8, 32]  cut along axis 0 over the replicas and axis 1 over the model: [4, 16] on each device; in use [4, 32]",
        "other   [8, 4]   cut along axis 1 over the replicas and axis 0 over the model: [4, 2] on each device; in use [8, 4]",
        "bias    [4]      mirrored: fewer than 8 elements; in use [2]",
        "1,168 bytes in all, 304 on each of 4 devices, 2 for each of 2 replicas",
    ]


@pytest.mark.long
def test_attention_is_cut_by_heads_and_embeddings_by_words() -> None:
    strategy = cut(4)
    with strategy.scope():
        model = transformer()
    used = {"/".join(rule.name.split("/")[-2:]): rule.model_axis_in_use for rule in strategy.explain(model).rules}
    wanted = {"query/kernel": 1, "key/kernel": 1, "value/kernel": 1, "attention_output/kernel": 0}
    assert {name: used[name] for name in wanted} == wanted
    assert [axis for name, axis in used.items() if name.endswith("/embeddings")] == [0]


@pytest.mark.slow
def test_memory_and_plan_know_the_replicas() -> None:
    strategy = cut(4)
    model, _ = made(strategy, mlp, "adam")
    memory = strategy.memory(model, (np.zeros((16, LENGTH), "int32"), np.zeros(16, "int32")))
    kernels = sum(int(np.prod(v.shape)) * 4 for v in model.trainable_variables)
    assert memory.weights == kernels // 4
    assert memory.optimizer_state == pytest.approx(2 * kernels // 4, abs=16)
    assert str(memory).splitlines()[0].split() == ["batch", "per", "replica", "8", "rows", "(global", "batch", "16)"]
    plan = make_plan(training("loop"), "cpu:4")
    assert plan.examples_per_step == 16
    with pytest.raises(ArgumentError, match=r"model_parallel_size must divide the number of devices.*2 for 3 devices"):
        make_plan(training("loop"), "cpu:3")


# Elsewhere


@pytest.mark.cases("mirrored")
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(lambda: ONE("cpu:0"), id="one device"),
        pytest.param(lambda: replicant.MirroredStrategy(["cpu:0", "cpu:1"]), id="mirrored"),
        pytest.param(lambda: cut(8, 4), id="another k"),
        pytest.param(lambda: cut(4, 1), id="no model axis"),
    ],
)
def test_checkpoints_go_both_ways(target: Any, tmp_path: Path) -> None:
    for here, there in ((lambda: cut(4), target), (target, lambda: cut(4))):
        model, optimizer = made(here(), mlp, "adam")
        optimizer.build(model.trainable_variables)
        for i, variable in enumerate(model.variables):
            variable.assign(np.full(variable.shape, i, "f") + np.arange(variable.shape[-1]))
        path = replicant.Checkpoint(model=model, optimizer=optimizer).save(str(tmp_path / "c"))
        with there().scope():
            other, restored = mlp(), OPTIMIZERS["adam"]()
            restored.build(other.trainable_variables)
        replicant.Checkpoint(model=other, optimizer=restored).restore(path).assert_consumed()
        for mine, wanted in zip([*other.variables, *restored.variables], [*model.variables, *optimizer.variables], strict=True):
            np.testing.assert_array_equal(np.asarray(mine.value), np.asarray(wanted.value))


@pytest.mark.slow
def test_a_model_is_read_assigned_saved_and_loaded(tmp_path: Path) -> None:
    losses, model, _ = fit(cut(4), epochs=1)
    assert losses
    with cut(4).scope():
        own = replicant.Variable(np.zeros((8, 16)))
    own.assign(np.arange(128.0).reshape(8, 16))
    np.testing.assert_array_equal(own.numpy(), np.arange(128.0).reshape(8, 16))
    assert {shard.data.shape for shard in own._ref.get_raw()[0].addressable_shards} == {(4, 8)}
    model.set_weights([w + 1.0 for w in model.get_weights()])
    model.save(tmp_path / "m.keras")
    with cut(8, 4).scope():
        again: Any = keras.models.load_model(tmp_path / "m.keras")
    alone: Any = keras.models.load_model(tmp_path / "m.keras")
    for other in (again, alone):
        for mine, wanted in zip(other.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, wanted)
    assert bytes_per_device(again.trainable_variables) == [sum(w.nbytes for w in again.get_weights()) // 8] * 8


# Bad input


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model_parallel_size": 3}, ArgumentError, r"must divide the number of devices.*model_parallel_size=3 for 4 devices"),
        ({"model_parallel_size": 0}, ArgumentError, r"must be at least 1; got 0"),
        ({"model_parallel_size": -2}, ArgumentError, r"must be at least 1; got -2"),
        ({"model_parallel_size": 2.0}, ArgumentTypeError, r"must be an int.*got 2.0 of type float"),
        ({"model_parallel_size": True}, ArgumentTypeError, r"must be an int.*got True of type bool"),
        ({"layout_map": {".*": (None, "model")}}, ArgumentError, r"with model_parallel_size=1 it has one"),
        ({"model_parallel_size": 2, "layout_map": [1]}, ArgumentTypeError, r"must be a keras.distribution.LayoutMap.*got \[1\]"),
        ({"model_parallel_size": 2, "layout_map": {"a": ("batch",)}}, ArgumentError, r"rule 'a' names the axis 'batch'"),
        ({"model_parallel_size": 2, "layout_map": {"a": "model"}}, ArgumentTypeError, r"a pattern with a tuple.*'a': 'model'"),
        ({"model_parallel_size": 2, "layout_map": {3: ("model",)}}, ArgumentTypeError, r"a pattern with a tuple.*3: "),
        ({"model_parallel_size": 2, "layout_map": {"(": ("model",)}}, ArgumentError, r"'\(' is not a regular expression"),
        ({"model_parallel_size": 2, "layout_map": {"a": ("model", "model")}}, ArgumentError, r"cuts 2 axes"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(4)], **options)


def fit_in_micro_batches(strategy: Any, epochs: int) -> None:
    model, _ = made(strategy, mlp, "adam")
    replicant.keras.use_micro_batches(model, 2)
    model.fit(*data(), batch_size=BATCH, epochs=epochs, verbose=0)


@pytest.mark.parametrize(
    "train",
    [
        pytest.param(loop, id="loop"),
        pytest.param(fit, id="fit"),
        pytest.param(fit_in_micro_batches, id="micro-batches", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("layout_map", "message"),
    [
        ({".*kernel": (None, "model"), "dens.*weight": (None, "model")}, r"no variable.*matches 'dens\.\*weight'"),
        ({".*kernel": ("model", None, None)}, r"rule '\.\*kernel' names 3 axes, but variable .*kernel' has 2, with shape"),
        (
            {".*kernel": (None, "model"), ".*dense.*": (None, "model")},
            r"kernel' matches several rules: '\.\*kernel', '\.\*dense\.\*'",
        ),
        ({".*embeddings": ("model",), ".*odd.*": ("model",)}, r"no variable .*matches '\.\*odd\.\*'"),
    ],
)
def test_rules_that_do_not_fit_the_model(train: Any, layout_map: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        train(cut(4, layout_map=layout_map), epochs=1)


def test_a_rule_must_divide_the_axis() -> None:
    strategy = cut(4, layout_map={".*kernel": (None, "model"), "w": ("model",)})
    with strategy.scope():
        weight = replicant.Variable(np.ones((3, 8), "f"), name="w")
    message = r"rule 'w' cuts axis 0 of variable 'w' over 2 devices, but its shape is \[3, 8\], and 2 does not divide 3"
    with pytest.raises(ArgumentError, match=message):
        strategy.explain([weight])
    with pytest.raises(ArgumentError, match=message):
        strategy.run(lambda x: x * weight.value(), (replicant.PerReplica.from_stacked(jnp.ones((2, 3, 8))),))


def test_explain_names_a_rule_without_a_variable() -> None:
    strategy = cut(4, layout_map={"nothing": ("model",)})
    with strategy.scope():
        model = mlp()
    with pytest.raises(ArgumentError, match=r"no variable that was made under the strategy matches 'nothing'"):
        strategy.explain(model)


def test_models_of_two_strategies() -> None:
    model, _ = made(cut(4), mlp, "sgd")
    for other in (cut(4, 4), cut(4, 1), cut(4, layout_map={".*kernel": (None, "model")})):
        message = r"belongs to FullyShardedStrategy\(.*, model_parallel_size=2\) but"
        with pytest.raises(MixedStrategyError, match=message), other.scope():
            model.fit(*data(), verbose=0)
        with pytest.raises(MixedStrategyError, match="belongs to"):
            other.run(lambda x, model=model: model(x), (data()[0],))


def test_calls_of_the_host_in_a_replica() -> None:
    strategy = cut(4)

    def step(x: Any) -> Any:
        return jax.lax.cond(True, lambda: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x), lambda: x)

    with pytest.raises(ContextError, match=r"calls the host \(pure_callback\), but each replica has 2 devices"):
        strategy.run(step, (replicant.PerReplica.from_stacked(jnp.ones((2, 3))),))


@pytest.mark.slow
def test_layouts_of_keras() -> None:
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"), [f"cpu:{i}" for i in range(4)])
    rules = keras.distribution.LayoutMap(mesh)
    rules[".*kernel"] = (None, "model")
    rules[".*embeddings"] = keras.distribution.TensorLayout((None, "model"), mesh)
    assert_equal(fit(cut(4, layout_map=rules), epochs=2), fit(ONE("cpu:0"), epochs=2))
    assert_equal(loop(cut(4, layout_map=rules), epochs=2), loop(ONE("cpu:0"), epochs=2))
