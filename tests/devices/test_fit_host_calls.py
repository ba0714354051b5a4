"""Steps of ``fit`` that call back to the host or partition an operation in their own way, on every remainder of rows."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.custom_partitioning import custom_partitioning

import replicant

TOLERANCE = 1e-5
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(64, 4)).astype(np.float32), RNG.normal(size=(64, 1)).astype(np.float32)


@jax.custom_jvp
def pure_tanh(x: jax.Array) -> jax.Array:
    return jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


pure_tanh.defjvp(lambda primals, tangents: ((y := pure_tanh(*primals)), (1 - y**2) * tangents[0]))


@jax.custom_jvp
def io_tanh(x: jax.Array) -> jax.Array:
    return io_callback(np.tanh, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


io_tanh.defjvp(lambda primals, tangents: ((y := io_tanh(*primals)), (1 - y**2) * tangents[0]))

own_tanh_alone = custom_partitioning(jnp.tanh)
own_tanh_alone.def_partition(
    partition=lambda mesh, shapes, result: (mesh, jnp.tanh, result.sharding, (shapes[0].sharding,)),
    infer_sharding_from_operands=lambda mesh, shapes, result: shapes[0].sharding,
    sharding_rule="... -> ...",
)


@jax.custom_jvp
def own_tanh(x: jax.Array) -> jax.Array:
    return own_tanh_alone(x)


own_tanh.defjvp(lambda primals, tangents: ((y := own_tanh(*primals)), (1 - y**2) * tangents[0]))

KINDS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "pure_callback": pure_tanh,
    "io_callback": io_tanh,
    "custom_partitioning": own_tanh,
}


class Apply(keras.layers.Layer):
    def __init__(self, fn: Callable[[jax.Array], jax.Array]):
        super().__init__()
        self.fn = fn

    def call(self, x: Any) -> Any:
        return self.fn(x)

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, x.dtype)


class Batches(keras.utils.PyDataset):
    """Batches of the sizes that are asked for."""

    def __init__(self, sizes: tuple[int, ...]):
        super().__init__()
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        start = sum(self.sizes[:index])
        return X[start : start + self.sizes[index]], Y[start : start + self.sizes[index]]


def train(n: int, fn: Callable[[jax.Array], jax.Array], sizes: tuple[int, ...], *, shard: bool = False, **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    devices = [f"cpu:{i}" for i in range(n)]
    strategy = replicant.MirroredStrategy(devices, shard_optimizer_state=shard) if n else replicant.get_strategy()
    with strategy.scope():
        model: Any = keras.Sequential([keras.Input((4,)), keras.layers.Dense(12), Apply(fn), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse", **options)
    history = model.fit(Batches(sizes), shuffle=False, verbose=0).history
    evaluated = model.evaluate(Batches(sizes[:2]), verbose=0)
    return history, evaluated, model.predict(X[: sizes[0]], batch_size=sizes[1], verbose=0), model.get_weights()


def assert_equal(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE), actual, expected)


SLOW = [
    ("custom_partitioning", 4, (5, 4, 3, 2, 1), {}),
    ("pure_callback", 6, (3, 2, 6), {}),
    ("pure_callback", 3, (4, 3, 1), {}),
    ("pure_callback", 4, (4, 4, 6, 6, 5), {"steps_per_execution": 2}),
    ("pure_callback", 4, (4, 6, 5), {"shard": True}),
]
CASES = [
    ("pure_callback", 4, (5, 4, 2), {}),
    ("io_callback", 4, (6, 4), {}),
    ("custom_partitioning", 6, (4, 9), {}),
    ("custom_partitioning", 4, (6, 6, 4), {"shard": True, "steps_per_execution": 2}),
    *[pytest.param(*case, marks=pytest.mark.slow) for case in SLOW],
]


@pytest.mark.cases("io_callback-4-(6, 4)-{}", "custom_partitioning-4-(6, 6, 4)-{'shard': True, 'steps_per_execution': 2}")
@pytest.mark.parametrize(("kind", "n", "sizes", "options"), CASES, ids=str)
@pytest.mark.long
def test_fit_equals_plain_keras(kind: str, n: int, sizes: tuple[int, ...], options: dict[str, Any]) -> None:
    plain = {key: value for key, value in options.items() if key != "shard"}
    assert_equal(train(n, KINDS[kind], sizes, **options), train(0, KINDS[kind], sizes, **plain))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8])
def test_fit_equals_plain_keras_on_every_remainder(kind: str, n: int) -> None:
    sizes = tuple(range(n + 1, 0, -1))
    assert_equal(train(n, KINDS[kind], sizes), train(0, KINDS[kind], sizes))


@pytest.mark.long
def test_a_custom_loop_beside_fit() -> None:
    """State that ``fit`` has placed is taken by ``run``, and the other way round."""

    def run(n: int) -> Any:
        keras.utils.set_random_seed(1)
        strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)]) if n else replicant.get_strategy()
        with strategy.scope():
            model: Any = keras.Sequential([keras.Input((4,)), keras.layers.Dense(12), Apply(pure_tanh), keras.layers.Dense(1)])
            model.compile(keras.optimizers.Adam(0.1), "mse")

        def step(inputs: Any) -> Any:
            x, y = inputs
            with replicant.GradientTape() as tape:
                loss = replicant.compute_average_loss(keras.ops.sum((model(x) - y) ** 2, axis=-1), global_batch_size=8)
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        data = replicant.data.Dataset.from_tensor_slices((X[:8], Y[:8])).batch(8)
        losses: list[float] = []
        for _ in range(2):
            model.fit(X[:6], Y[:6], batch_size=6, verbose=0)
            batches = strategy.experimental_distribute_dataset(data)
            losses += [float(strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None)) for batch in batches]
        return losses, model.get_weights()

    assert_equal(run(4), run(0))


class FailingDisk:
    """A callback of the host that fails now and then."""

    def __init__(self, seed: int):
        self._random, self.fails = np.random.default_rng(seed), False

    def __call__(self, x: Any) -> np.ndarray:
        if self.fails and self._random.random() < 0.3:
            raise OSError("the disk is full")
        return np.asarray(x)

    def attempt(self, step: Callable[[], object]) -> bool:
        """Return whether a step has ended well. Its error is that of the callback."""
        self.fails = True
        try:
            step()
        except (OSError, RuntimeError, ValueError) as error:
            assert "the disk is full" in str(error)  # noqa: PT017 - it may also succeed
            return False
        finally:
            self.fails = False
        return True


@pytest.fixture
def forgetting_failed_programs() -> Iterator[None]:
    yield
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # JAX raises the error of the last failed program here once more
        jax.effects_barrier()


@pytest.mark.both_ways
@pytest.mark.parametrize(("n", "exchanges"), [(1, False), (2, False), (2, True)])
@pytest.mark.usefixtures("forgetting_failed_programs")
def test_a_callback_that_fails_at_random_loses_no_state(n: int, exchanges: bool, fuse_replicas: str) -> None:
    strategy, host = replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)]), FailingDisk(n)
    with strategy.scope():
        variable, done, value = replicant.Variable(np.zeros(3, np.float32)), 0, 0.0

    def fn(x: Any) -> None:
        change = jax.pure_callback(host, jax.ShapeDtypeStruct((3,), jnp.float32), x)
        if exchanges:
            context = replicant.get_replica_context()
            assert context is not None
            change = context.all_reduce("SUM", change)
        variable.assign_add(change)

    step = replicant.function(lambda x: strategy.run(fn, args=(x,)))
    for _ in range(200):
        if host.attempt(lambda: step(jnp.ones(3))):
            done, value = done + 1, value + (n if exchanges else 1)
        assert variable.numpy().tolist() == [value] * 3
    assert 20 < done < 180


@pytest.mark.both_ways
@pytest.mark.parametrize("loop", ["fit", "train_on_batch", "run"])
@pytest.mark.usefixtures("forgetting_failed_programs")
def test_a_failing_callback_leaves_the_model_as_it_was(loop: str, fuse_replicas: str) -> None:
    strategy, host = replicant.MirroredStrategy(["cpu:0", "cpu:1"]), FailingDisk(0)

    class Called(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            given = jax.lax.stop_gradient(x)
            return x + 0 * jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), given, vmap_method="sequential")

    def steps() -> tuple[Any, Callable[[], object]]:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model: Any = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Called(), keras.layers.Dense(1)])
            model.compile("adam", "mse", metrics=["mae"])
        (batch,) = strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices((X[:8], Y[:8])).batch(8))

        def train(x: Any, y: Any) -> None:
            with replicant.GradientTape() as tape:
                loss = jnp.sum((model(x) - y) ** 2) / 8
            variables = model.trainable_variables
            model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        compiled = replicant.function(lambda x, y: strategy.run(train, args=(x, y)))
        return model, {
            "fit": lambda: model.fit(X[:8], Y[:8], batch_size=8, shuffle=False, verbose=0),
            "train_on_batch": lambda: model.train_on_batch(X[:8], Y[:8]),
            "run": lambda: compiled(*batch),
        }[loop]

    (model, step), (other, step_of_other) = steps(), steps()
    step()
    step_of_other()
    done = 0
    for _ in range(30):
        if host.attempt(step):
            done += 1
            step_of_other()
        for ours, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert 5 < done < 29
    assert int(model.optimizer.iterations.value) == done + 1
