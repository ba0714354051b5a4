"""Long programs run in segments. Here, all programs do, and the results are those of whole programs."""

import signal
import sys
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset
from replicant.programs.running import _executable, _segmented

ROWS = np.random.default_rng(0).normal(size=(44, 6)).astype(np.float32)
LABELS = ROWS[:, :1] * 2 - ROWS[:, 1:2]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[_segmented.Segmented]:
    """Cut all programs. The list receives those that were cut."""
    found: list[_segmented.Segmented] = []

    class Noted(_segmented.Segmented):
        def __init__(self, *args: Any):
            super().__init__(*args)
            found.append(self)

    monkeypatch.setattr(_segmented, "LONG", 5)
    monkeypatch.setattr(_segmented, "LEAST", 5)
    monkeypatch.setattr(_segmented, "MOST", 20)
    monkeypatch.setattr(_executable._segmented, "Segmented", Noted)
    return found


def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_segmented, "LONG", 10**9)


def same(given: Any, expected: Any) -> None:
    for one, other in zip(given, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-6, atol=1e-6)


def fitted(strategy: Any) -> list[Any]:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [
            keras.layers.Dense(6, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
        model: Any = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    history = model.fit(ROWS, LABELS, batch_size=12, epochs=2, shuffle=False, verbose=0).history  # the last batch has 8 rows
    loss = model.evaluate(ROWS, LABELS, batch_size=12, verbose=0)
    return [*model.get_weights(), *model.optimizer.variables, *history.values(), loss, model.predict(ROWS, verbose=0)]


def strategies() -> list[Any]:
    return [
        pytest.param(lambda: replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=True), id="two replicas"),
        pytest.param(lambda: replicant.OneDeviceStrategy("cpu:1"), id="one other device", marks=pytest.mark.slow),
    ]


@pytest.mark.parametrize("strategy", strategies())
@pytest.mark.long
def test_fit_evaluate_and_predict(strategy: Any, made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cut = fitted(strategy())
    assert len(made) >= 4  # two kinds of batches each, in fit and evaluate
    assert all(program.num_segments > 1 for program in made[:2])
    count = len(made)
    whole(monkeypatch)
    same(cut, fitted(strategy()))
    assert len(made) == count


class Loop:
    """A custom loop over batches, the last of which is ragged."""

    def __init__(self, strategy: Any):
        self.strategy = strategy
        keras.utils.set_random_seed(2)
        with strategy.scope():
            self.model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
            self.optimizer = keras.optimizers.Adam(0.01)
            self.optimizer.build(self.model.trainable_variables)
            self.steps = replicant.Variable(0)
        self.data = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices((ROWS[:41], LABELS[:41])).batch(12))
        self.step = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(self.replica_step, args=batch)))

    def replica_step(self, x: Any, y: Any) -> Any:
        self.steps.assign_add(1)
        with replicant.GradientTape() as tape:
            losses = keras.ops.mean(keras.ops.square(self.model(x, training=True) - y), -1)
            loss = replicant.compute_average_loss(losses, global_batch_size=12)
        self.optimizer.apply(tape.gradient(loss, self.model.trainable_variables), self.model.trainable_variables)
        return loss

    def epoch(self) -> list[float]:
        return [float(self.step(batch)) for batch in self.data]

    def state(self) -> list[Any]:
        return [*self.model.get_weights(), *[np.asarray(v) for v in self.optimizer.variables], self.steps.numpy()]


@pytest.mark.long
def test_a_custom_loop_with_a_ragged_last_batch_and_a_checkpoint(
    made: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def strategy() -> Any:
        return replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=True)

    loop = Loop(strategy())
    losses = loop.epoch()
    assert made
    saved = replicant.checkpoint.Checkpoint(model=loop.model, optimizer=loop.optimizer, steps=loop.steps).save(str(tmp_path / "at"))
    losses += loop.epoch()

    whole(monkeypatch)
    count = len(made)
    reference, restored = Loop(strategy()), Loop(strategy())
    expected = reference.epoch() + reference.epoch()
    same(losses, expected)
    same(loop.state(), reference.state())
    replicant.checkpoint.Checkpoint(model=restored.model, optimizer=restored.optimizer, steps=restored.steps).restore(saved)
    same(restored.epoch(), expected[4:])
    same(restored.state(), reference.state())
    assert len(made) == count


@pytest.mark.usefixtures("made")
def test_the_state_is_overwritten_and_nothing_else() -> None:
    def step(state: list[Any], x: Any) -> tuple[list[Any], Any]:
        total = x + 1
        return [value * 2 + x for value in state[:10]] + state[10:], (total, total, x, 5.0)

    device = jax.devices()[1]
    state = [jax.device_put(np.full(4, i, np.float32), device) for i in range(11)]
    x = jax.device_put(np.ones(4, np.float32), device)
    traced = jax.jit(step, donate_argnums=0).trace(state, x)
    new, (*totals, given, five) = _segmented.Segmented(traced, (state, x), 11, x.sharding)(state, x)
    assert [value.is_deleted() for value in (*state, x)] == [True] * 10 + [False] * 2
    assert [float(value[0]) for value in (*new, *totals, given)] == [2.0 * i + 1 for i in range(10)] + [10.0, 2.0, 2.0, 1.0]
    assert float(five) == 5.0
    results = [*new, *totals, given]
    assert len({value.unsafe_buffer_pointer() for value in (state[10], x, *results)}) == 2 + len(results)
    assert {value.sharding for value in (*results, five)} == {x.sharding}


def test_results_that_are_inputs_or_equal_share_no_memory(made: list[Any]) -> None:
    first, second, third, idle = (replicant.Variable(jnp.full(3, float(i))) for i in range(4))

    @replicant.function
    def step(x: Any) -> Any:
        total = x
        for _ in range(6):
            total = first.value() + second.value() + third.value() + x
        first.assign(total)
        second.assign(total)
        third.assign(x)
        idle.assign(idle.value())
        return total, x, jnp.float32(7)

    x = jnp.ones(3)
    step(x)
    step(x)  # this would overwrite what the first one has shared
    total, given, seven = step(x)
    assert made
    # The sums are 0+1+2+1 = 4, 4+4+1+1 = 10 and 10+10+1+1 = 22.
    for value, expected in [(total, 22), (first, 22), (second, 22), (third, 1), (idle, 3), (given, 1), (x, 1)]:
        np.testing.assert_array_equal(np.asarray(value), np.full(3, expected, np.float32))
    assert float(seven) == 7.0


def test_numbers_keys_and_other_shapes(made: list[Any]) -> None:
    generator = replicant.random.Generator.from_seed(1)
    weight = replicant.Variable(jnp.zeros(2))

    @replicant.function
    def step(x: Any, rate: float) -> Any:
        noise = generator.normal((2,))
        for _ in range(4):
            weight.assign_add(rate * jnp.sum(x) * jnp.ones(2))
        return noise

    noises = [step(jnp.ones(rows), rate) for rows, rate in [(1, 0.5), (1, 0.25), (2, 0.5), (1, 0.125)]]
    assert made
    assert float(weight[0]) == 4 * (0.5 + 0.25 + 1.0 + 0.125)
    again = replicant.random.Generator.from_seed(1)
    same(noises, [again.normal((2,)) for _ in noises])


def test_a_program_that_calls_the_host_stays_whole(made: list[Any]) -> None:
    variable, seen = replicant.Variable(0.0), []

    @replicant.function
    def step() -> None:
        for _ in range(10):
            variable.assign_add(1.0)
            jax.debug.callback(lambda x: seen.append(float(x)), variable.value(), ordered=True)

    step()
    jax.effects_barrier()
    assert not made
    assert seen == [float(i + 1) for i in range(10)]


def test_other_options_of_jax_are_another_program(made: list[Any]) -> None:
    variable = replicant.Variable(jnp.eye(3))

    @replicant.function
    def step() -> None:
        for _ in range(10):
            variable.assign(jax.random.uniform(jax.random.key(1), (3,)) * jnp.ones((3, 3)))

    step()
    count, first = len(made), variable.numpy()
    assert count
    with jax.threefry_partitionable(False):  # other numbers
        step()
    assert len(made) > count
    assert not np.array_equal(variable.numpy(), first)
    count = len(made)
    step()
    assert len(made) == count
    np.testing.assert_array_equal(variable.numpy(), first)


@pytest.mark.parametrize("option", ["jax_debug_nans", "jax_disable_jit"])
def test_a_program_stays_whole_where_jax_looks_into_it(option: str, made: list[Any]) -> None:
    variable = replicant.Variable(1.0)

    @replicant.function
    def step() -> None:
        for _ in range(10):
            variable.assign(variable.value() * 2)

    before = getattr(jax.config, option)
    jax.config.update(option, True)
    try:
        step()
    finally:
        jax.config.update(option, before)
    assert not made
    assert float(variable) == 1024.0
    step()
    assert made
    assert float(variable) == 1024.0**2


def test_ctrl_c_between_segments_waits_until_the_state_is_stored(made: list[Any]) -> None:
    variables = [replicant.Variable(jnp.zeros(3)) for _ in range(20)]

    @replicant.function
    def step() -> None:
        for variable in variables:
            variable.assign(variable.value() * 0.5 + 1)

    step()
    assert made[0].num_segments > 2
    code, lines = _segmented.Segmented.__call__.__code__, 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code is not code:
            return None
        lines += event == "line"
        if lines == 9:  # in the second round of its loop
            signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            step()
    finally:
        sys.settrace(before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for variable in variables:
        np.testing.assert_array_equal(variable.numpy(), np.full(3, 1.5, np.float32))
    step()
    assert float(variables[0][0]) == 1.75
