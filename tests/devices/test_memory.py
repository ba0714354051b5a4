"""``strategy.memory``: what a step needs on each device, counted against the variables and the compiled program themselves."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import pytest

import replicant
from replicant.coordinator._server_strategy import ServerStrategy
from replicant.errors import ArgumentError, ArgumentTypeError, ContextError, ParameterServerError
from replicant.plan._memory import largest

ROWS, FEATURES, CLASSES = 16, 8, 4
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
TWO = ["cpu:0", "cpu:1"]
STRATEGIES: dict[str, Callable[[], Any]] = {
    "one device": lambda: replicant.OneDeviceStrategy("cpu:0"),
    "mirrored": lambda: replicant.MirroredStrategy(TWO),
    "sharded optimizer state": lambda: replicant.MirroredStrategy(TWO, shard_optimizer_state=True),
    "fully sharded": lambda: replicant.FullyShardedStrategy(TWO, min_size=8),
}


def make_model() -> Any:
    layers = [keras.layers.Dense(64, activation="tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def data(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).normal(size=(rows, FEATURES)).astype("f"), np.arange(rows, dtype="int32") % CLASSES


def bytes_on_first_device(variables: Any) -> int:
    held: Counter[int] = Counter()
    for variable in variables:
        for shard in variable._value.addressable_shards:
            held[shard.device.id] += shard.data.nbytes
    return held[0]


@pytest.mark.cases("mirrored", "fully sharded")
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.long
def test_it_counts_what_lies_on_a_device_after_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, arguments = STRATEGIES[name](), list[int]()
    compile_it = jax.stages.Lowered.compile

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = compile_it(self, *args, **kwargs)
        analysis: Any = compiled.memory_analysis()
        arguments.append(analysis.argument_size_in_bytes)
        return compiled

    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = make_model()
    with monkeypatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", noting)
        memory = strategy.memory(model, data())
    model.fit(*data(), batch_size=ROWS, verbose=0)
    assert memory.weights == bytes_on_first_device(model.trainable_variables)
    assert memory.untrained_weights == bytes_on_first_device(model.non_trainable_variables)
    assert memory.optimizer_state == bytes_on_first_device(model.optimizer.variables)
    assert memory.batch == 4 * ROWS * (FEATURES + 1) // strategy.num_replicas_in_sync
    assert arguments == [memory.bytes_per_device - memory.temporary]
    assert memory.gradients == memory.weights
    assert memory.activations == memory.temporary - memory.weights > 0


@pytest.mark.slow
def test_slices_take_less() -> None:
    found = {}
    for name, make in STRATEGIES.items():
        with (strategy := make()).scope():
            found[name] = strategy.memory(make_model(), data())
    assert found["mirrored"].weights == found["one device"].weights == 4 * (FEATURES * 64 + 64 + 2 * 64 + 64 * CLASSES + CLASSES)
    assert found["sharded optimizer state"].optimizer_state < 0.6 * found["mirrored"].optimizer_state
    assert found["fully sharded"].weights < 0.6 * found["mirrored"].weights
    assert found["one device"].activations > found["mirrored"].activations  # twice the rows


@pytest.mark.cases("fully sharded")
@pytest.mark.parametrize("name", ["mirrored", "fully sharded"])
@pytest.mark.long
def test_it_counts_a_step_of_a_loop(name: str) -> None:
    with (strategy := STRATEGIES[name]()).scope():
        model, optimizer = make_model(), keras.optimizers.Adam()

    def step(batch: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(LOSS(batch[1], model(batch[0], training=True)), global_batch_size=ROWS)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    by_shapes = (jax.ShapeDtypeStruct((ROWS, FEATURES), "float32"), jax.ShapeDtypeStruct((ROWS,), "int32"))
    memory, in_fit = strategy.memory(step, by_shapes), strategy.memory(model, data())
    assert memory.weights == in_fit.weights
    assert memory.untrained_weights == in_fit.untrained_weights
    assert memory.optimizer_state == in_fit.optimizer_state
    assert memory.batch == in_fit.batch
    assert memory.temporary > memory.gradients


@pytest.mark.long
def test_the_largest_batch_fits_and_no_larger_one() -> None:
    with (strategy := STRATEGIES["fully sharded"]()).scope():
        model = make_model()
    limit = 200_000
    memory = strategy.memory(model, data(), limit=limit)
    assert (memory.limit, memory.fits) == (limit, True)
    most = memory.largest_batch
    assert most > ROWS
    assert strategy.memory(model, data(most)).bytes_per_device <= limit < strategy.memory(model, data(most + 2)).bytes_per_device
    none = strategy.memory(model, data(), limit=100)
    assert (none.largest_batch, none.fits) == (0, False)
    assert "largest global batch that fits     none" in str(none)


@pytest.mark.parametrize(
    ("needed", "limit", "expected"),
    [
        (lambda rows: 100 + 7 * rows, 1000, 128),
        (lambda rows: 100 + 7 * rows, 106, 0),
        (lambda rows: 100 + 7 * rows, 107, 1),
        (lambda rows: 100 + 64 * (rows // 10), 1000, 149),  # in steps
        (lambda rows: 100 + rows * rows, 1000, 30),
    ],
)
@pytest.mark.parametrize("start", [1, 8, 500])
def test_the_search(needed: Callable[[int], int], limit: int, expected: int, start: int) -> None:
    calls = list[int]()

    def counted(rows: int) -> int:
        calls.append(rows)
        return needed(rows)

    assert largest(counted, start, limit, needed(start)) == expected
    assert len(calls) < 19


def test_a_function_makes_its_model_without_memory_for_it() -> None:
    strategy = STRATEGIES["fully sharded"]()

    def make() -> keras.Model:
        # A terabyte of weights, and two of their moments.
        model = keras.Sequential([keras.Input((1 << 18,)), keras.layers.Dense(1 << 20)])
        model.compile("adam", "mse")
        return model

    batch = [jax.ShapeDtypeStruct((2, size), "float32") for size in (1 << 18, 1 << 20)]
    memory = strategy.memory(make, tuple(batch))
    assert memory.weights == (1 << 40) // 2 + (1 << 22) // 2
    assert memory.optimizer_state == 2 * memory.weights + 8


@pytest.mark.cases("memory of the model-fully sharded", "plan-mirrored")
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("asks", ["memory of the model", "memory of a step", "plan"])
@pytest.mark.long
def test_training_goes_on_as_if_nobody_had_asked(name: str, asks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicant.keras.state._variables.BIG", 8)  # from here on, variables are zeros while a plan is made

    def train(*, asking: bool) -> Any:
        keras.utils.set_random_seed(3)
        with (strategy := STRATEGIES[name]()).scope():
            model = make_model()
            optimizer = keras.optimizers.Adagrad(0.1)  # whose slots do not begin at zero
            model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))

        def step(batch: Any) -> Any:
            with replicant.GradientTape() as tape:
                loss = replicant.compute_average_loss(LOSS(batch[1], model(batch[0], training=True)), global_batch_size=ROWS)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))

        if asking and asks == "plan":
            strategy.plan(step, args=(batch_of(strategy),), topology=f"gpu:{strategy.num_replicas_in_sync}xh100")
        elif asking:
            strategy.memory(model if asks == "memory of the model" else step, data())
        history = model.fit(*data(40), batch_size=ROWS, epochs=2, shuffle=False, verbose=0)
        if asking and asks == "memory of the model":  # of one that has been trained
            strategy.memory(model, data())
        strategy.run(step, args=(batch_of(strategy),))
        return history.history["loss"], model.get_weights()

    losses, weights = train(asking=True)
    expected_losses, expected_weights = train(asking=False)
    np.testing.assert_array_equal(losses, expected_losses)
    for mine, wanted in zip(weights, expected_weights, strict=True):
        np.testing.assert_array_equal(mine, wanted)


def batch_of(strategy: Any) -> Any:
    return next(iter(strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensors(data()))))


@pytest.mark.long
def test_what_it_prints() -> None:
    with (strategy := STRATEGIES["fully sharded"]()).scope():
        memory = strategy.memory(make_model(), data(), limit=1 << 20)
    lines = str(memory).splitlines()
    assert [line[:33].rstrip() for line in lines] == [
        "batch per replica",
        "weights",
        "weights that are not trained",
        "optimizer state",
        "metrics and other state",
        "batch",
        "activations and other temporaries",
        "of which gradients",
        "largest variable, gathered",
        "each device holds",
        "does it fit",
        "largest global batch that fits",
    ]
    assert lines[0].endswith("  8 rows (global batch 16)")
    assert re.search(r"  2\.0 KiB \(sequential\w*/dense\w*/kernel\)$", lines[8])  # 8 x 64 floats
    assert re.search(r"  [\d.]+ KiB of 1\.0 MiB$", lines[9])
    assert re.fullmatch(r"<Memory of a batch of 16 rows: [\d.]+ KiB on each of 2 devices>", repr(memory))
    assert memory._repr_html_().startswith("<table><tr><td>batch per replica</td><td>8 rows (global batch 16)</td></tr>")


@pytest.mark.long
def test_it_names_the_largest_variable_that_a_step_gathers() -> None:
    """A loop that reads a variable of 8 KiB, of which each of two devices keeps a half, and one device cannot hold the whole."""
    with (strategy := STRATEGIES["fully sharded"]()).scope():
        large, small = replicant.Variable(np.ones((8, 256), "f"), name="large"), replicant.Variable(np.ones(8, "f"), name="small")
        optimizer = keras.optimizers.SGD(0.1)

    def step(x: Any) -> None:
        with replicant.GradientTape() as tape:
            loss = keras.ops.sum((x * small) @ large.value())
        optimizer.apply(tape.gradient(loss, [large, small]), [large, small])

    memory = strategy.memory(step, data()[0])
    assert (memory.largest_gathered, memory.largest_gathered_name) == (8 * 256 * 4, "large")
    assert "largest variable, gathered         8.0 KiB (large)\n" in str(memory)
    known = strategy.memory(step, data()[0], limit=8000)
    assert "8.0 KiB (large), MORE than a device holds\n" in str(known)
    assert (known.fits, known.largest_batch) == (False, 0)
    losses = strategy.run(step, args=(batch_of(strategy)[0],))  # CPU devices have room for it
    assert losses is None
    assert large.numpy()[0, 0] < 1.0


@pytest.mark.long
def test_a_replicas_devices_share_what_is_gathered() -> None:
    strategy = replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(4)], min_size=8, model_parallel_size=2)
    with strategy.scope():
        model = make_model()
    memory = strategy.memory(model, data())
    assert memory.largest_gathered == FEATURES * 64 * 4 // 2
    assert memory.largest_gathered_name == model.layers[0].kernel.path


def test_mirrored_variables_are_not_gathered() -> None:
    with (strategy := STRATEGIES["mirrored"]()).scope():
        model = make_model()
    assert "gathered" not in str(strategy.memory(model, data()))


def test_what_is_refused() -> None:
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        model = make_model()
    x, y = data()
    with pytest.raises(ArgumentError, match=r"got 15 rows for 2 replicas\. Pass a multiple of 2 rows, for example 16"):
        strategy.memory(model, data(15))
    with pytest.raises(ArgumentError, match=r"the same number of rows, at least one; got shapes \(16, 8\), \(15,\)"):
        strategy.memory(model, (x, y[:15]))
    with pytest.raises(ArgumentTypeError, match=r"memory takes a global batch of arrays.*; got 'x' of type str"):
        strategy.memory(model, "x")
    with pytest.raises(ArgumentTypeError, match=r"takes a compiled Keras model, a function .*; got 3 of type"):
        strategy.memory(3, (x, y))
    with pytest.raises(ArgumentTypeError, match="must return a compiled Keras model; it returned None"):
        strategy.memory(lambda: None, (x, y))
    with pytest.raises(ArgumentTypeError, match="limit must be a number of bytes; got '16 GB' of type str"):
        strategy.memory(model, (x, y), limit="16 GB")
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(ArgumentError, match="limit must be a positive number of bytes, such as 16e9; got"):
            strategy.memory(model, (x, y), limit=wrong)
    with pytest.raises(ContextError, match="without a training step"):
        strategy.memory(lambda batch: batch[0].sum(), (x, y))
    with pytest.raises(ContextError, match="memory"):
        strategy.run(lambda: strategy.memory(model, (x, y)))
    with pytest.raises(ParameterServerError, match=r"memory does not work under .*, whose variables lie on servers"):
        ServerStrategy.memory(strategy, model, (x, y))


def test_adafactor_of_keras_keeps_a_whole_matrix() -> None:
    """One expects a row and a column for each matrix. The figure is what Keras really keeps: these, and the matrix."""
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(100, use_bias=False)])
        model.compile(keras.optimizers.Adafactor(), "mse")
    memory = strategy.memory(model, (np.zeros((8, 64), np.float32), np.zeros((8, 100), np.float32)))
    assert memory.weights == 64 * 100 * 4
    assert memory.optimizer_state == (64 * 100 + 64 + 100 + 2) * 4  # and the number of steps, and the learning rate
