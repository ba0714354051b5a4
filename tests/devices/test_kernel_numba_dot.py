"""Products of matrices by a function that numba compiles: what XLA computes, from several threads and devices."""

import os
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import replicant
from replicant import kernels
from replicant.data import Dataset
from replicant.errors import ConfigurationError
from replicant.kernels.compiled import _dot, _registers

from ._threads import assert_same_in_threads

TARGET = _dot.TARGET
absent = _dot.FUNCTION.objection()
pytestmark = pytest.mark.skipif(absent is not None, reason=f"the kernel cannot be used here: {absent}")

TURNED = (
    0 if absent is not None or _registers.width() == 8 else 1
)  # whether gradients of weights, which are turned, are given to it
NN, TN, NT = (((1,), (0,)), ((), ())), (((0,), (0,)), ((), ())), (((1,), (1,)), ((), ()))


@pytest.fixture(autouse=True)
def switched_on() -> Any:
    kernels.enable("numba_dot")
    yield
    kernels.disable("numba_dot")


@pytest.fixture
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MIN_SIDE", "MIN_ROWS", "MIN_PRODUCTS"):
        monkeypatch.setattr(_dot, name, 1)


def arrays(*shapes: Any, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.integers(-4, 5, shape), jnp.float32) for shape in shapes]  # sums of these are exact in any order


def both(function: Any, *args: Any) -> Any:
    """The results of a function with the kernel and without any, and how often it calls the compiled function."""
    jitted = jax.jit(lambda *arrays: function(*arrays))  # noqa: PLW0108 - or what was lowered for another test is used again
    with kernels.disabled():
        plain = jitted(*args)
    return jitted(*args), plain, jitted.lower(*args).as_text().count(f"@{TARGET}(")


def assert_equal(actual: Any, expected: Any) -> None:
    for mine, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


@st.composite
def products(draw: st.DrawFn) -> Any:
    """The shapes of two operands, which axes are summed and which are of the batch, and a seed."""
    batch = [draw(st.sampled_from([1, 2, 3, 5])) for _ in range(draw(st.integers(0, 3)))]
    sums = [draw(st.sampled_from([1, 7, 16, 32, 33, 304])) for _ in range(draw(st.integers(1, 2)))]
    sums = [sums[0], *(min(size, 7) for size in sums[1:])]
    free = [[draw(st.sampled_from(sizes)) for _ in range(draw(st.integers(1, 2)))] for sizes in ([1, 3, 16, 31], [16, 48, 1, 16])]

    def operand(others: list[int]) -> Any:
        sizes = [*((("batch", i), n) for i, n in enumerate(batch)), *((("sum", i), n) for i, n in enumerate(sums))]
        sizes += [(("free", i), n) for i, n in enumerate(others)]
        order = draw(st.permutations(sizes)) if draw(st.integers(0, 3)) == 0 else sizes
        names = [name for name, _ in order]
        axes = [tuple(names.index((kind, i)) for i in range(count)) for kind, count in (("sum", len(sums)), ("batch", len(batch)))]
        return tuple(size for _, size in order), axes

    (lhs, (lhs_sums, lhs_batch)), (rhs, (rhs_sums, rhs_batch)) = operand(free[0]), operand(free[1])
    return lhs, rhs, ((lhs_sums, rhs_sums), (lhs_batch, rhs_batch)), draw(st.integers(0, 2**16))


@pytest.mark.usefixtures("small_ones_too")
@pytest.mark.long
def test_values_and_gradients_are_those_of_xla() -> None:
    num_called = 0

    @settings(max_examples=200 if os.environ.get("REPLICANT_TEST_FULL") else 16, deadline=None)
    @given(products())
    def check(case: Any) -> None:
        nonlocal num_called
        lhs, rhs, numbers, seed = case

        def everything(x: Any, y: Any) -> Any:
            value, pull = jax.vjp(lambda x, y: lax.dot_general(x, y, numbers), x, y)
            return value, *pull(jnp.ones_like(value))

        actual, expected, calls = both(everything, *arrays(lhs, rhs, seed=seed))
        num_called += calls
        assert_equal(actual, expected)

    check()
    assert num_called > 5


LARGE = {
    "NN": (NN, (1030, 600), (600, 80)),
    "NN, a column of panels": (NN, (5000, 300), (300, 16)),
    "NN, panels for several blocks of rows": (NN, (8200, 60), (60, 144)),
    "NT, panels for several blocks of rows": (NT, (8200, 200), (80, 200)),
    "NN, many columns": (NN, (520, 40), (40, 1040)),
    "NT": (NT, (770, 530), (112, 530)),
    "TN": (TN, (2000, 80), (2000, 50)),
    "a batch": ((((2,), (1,)), ((0,), (0,))), (9, 130, 270), (9, 270, 48)),
    "heads": ((((3,), (3,)), ((0, 2), (0, 2))), (4, 130, 3, 40), (4, 160, 3, 40)),
}


@pytest.mark.parametrize(("numbers", "lhs", "rhs"), LARGE.values(), ids=LARGE)
def test_large_products(numbers: Any, lhs: Any, rhs: Any) -> None:
    """Several parts of the depth, of the rows and of the columns, and what is left over of each."""
    actual, expected, calls = both(lambda x, y: lax.dot_general(x, y, numbers), *arrays(lhs, rhs))
    assert calls == (TURNED if numbers == TN else 1)
    assert_equal(actual, expected)


def test_parts_are_each_product_once_and_their_panels_have_room() -> None:
    import numba

    from replicant.kernels.compiled import _dot_loops as dot

    @numba.njit
    def divide(job: Any, threads: Any) -> Any:
        return dot._divide(job, threads)

    @given(st.integers(1, 9000), st.integers(1, 300), st.integers(1, 200), st.integers(1, 16))
    @example(1, 1, 1, 16)
    @example(4096, 8, 1, 2)
    def check(rows: int, sixteens: int, batch: int, threads: int) -> None:
        job = np.zeros(64, np.int64)
        facts = {dot._ROWS: rows, dot._COLUMNS: 16 * sixteens, dot._BATCH: batch}
        for place, number in facts.items():
            job[place // 8] = number
        parts = divide(job.ctypes.data, threads)
        row_groups, column_groups = job[dot._ROW_GROUPS // 8], job[dot._COLUMN_GROUPS // 8]
        assert parts == batch * row_groups * column_groups
        for size, groups, together in (
            (rows, row_groups, job[dot._ROWS_TOGETHER // 8]),
            (16 * sixteens, column_groups, job[dot._COLUMNS_TOGETHER // 8]),
        ):
            assert (groups - 1) * together < size <= groups * together
        assert job[dot._COLUMNS_TOGETHER // 8] <= dot.MAX_TOGETHER * dot.PANEL

    check()


@pytest.mark.parametrize(
    ("numbers", "lhs", "rhs", "how", "calls"),
    [
        (NN, (512, 64), (64, 64), {}, 1),
        (NN, (511, 64), (64, 64), {}, 0),  # few rows
        (NN, (512, 64), (64, 40), {}, 0),  # not a multiple of 16 columns
        (NN, (512, 4), (4, 512), {}, 0),  # a small side
        (NN, (512, 16), (16, 16), {}, 0),  # a small product
        (TN, (64, 64), (64, 64), {}, TURNED),
        (TN, (64, 16), (64, 1600), {}, TURNED),
        (TN, (64, 40), (64, 160), {}, 0),  # it is turned, and the columns of the first operand are no multiple of 16
        (NN, (0, 64), (64, 64), {}, 0),
        (NN, (512, 0), (0, 64), {}, 0),
        (NN, (512, 64), (64, 64), {"preferred_element_type": jnp.bfloat16}, 0),
        (NN, (512, 64), (64, 64), {"precision": lax.Precision.HIGHEST}, 1),
        ((((2,), (0,)), ((), ())), (8, 64, 64), (64, 64), {}, 1),
        ((((0,), (0,)), ((), ())), (64, 8, 64), (64, 64), {}, TURNED),
        ((((1,), (0,)), ((), ())), (8, 64, 64), (64, 64), {}, 0),  # the rows do not lie behind each other
        ((((4,), (4,)), ((0, 1, 2), (0, 1, 2))), (2, 2, 2, 64, 64), (2, 2, 2, 64, 64), {}, 0),  # a batch with three axes
    ],
)
def test_only_what_it_can_do_is_given_to_it(numbers: Any, lhs: Any, rhs: Any, how: Any, calls: int) -> None:
    actual, expected, num_calls = both(lambda x, y: lax.dot_general(x, y, numbers, **how), *arrays(lhs, rhs))
    assert num_calls == calls
    assert_equal(actual.astype(jnp.float32), expected.astype(jnp.float32))


def test_other_types_are_left_to_xla() -> None:
    for dtype in (jnp.bfloat16, jnp.float16, jnp.int32):
        x, y = (array.astype(dtype) for array in arrays((512, 64), (64, 64)))
        assert both(jnp.matmul, x, y)[2] == 0
    with jax.enable_x64(True):
        assert both(jnp.matmul, jnp.ones((512, 64), "float64"), jnp.ones((64, 64), "float64"))[2] == 0


def test_products_of_sums_are_no_less_exact_than_those_of_xla() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=shape).astype(np.float32) for shape in ((600, 5000), (5000, 64)))
    actual, expected, calls = both(jnp.matmul, x, y)
    exact = x.astype(np.float64) @ y.astype(np.float64)
    assert calls == 1
    errors = [np.sqrt(np.mean((np.asarray(result) - exact) ** 2)) for result in (actual, expected)]
    assert errors[0] < 2 * errors[1] + 1e-9


def test_what_is_not_finite_stays_so() -> None:
    x, y = arrays((512, 64), (64, 64))
    actual, expected, _ = both(jnp.matmul, x.at[5, 6].set(jnp.nan).at[7, 8].set(jnp.inf), y.at[8, 3].set(0))
    assert_equal(actual, expected)


def test_threads_may_call_it_at_once() -> None:
    x, y = arrays((600, 300), (300, 144))
    assert_same_in_threads(jax.jit(lambda x, y: jax.vjp(jnp.matmul, x, y)[1](jnp.ones((600, 144)))), x, y, repeats=50)


def test_exported_programs_and_those_that_xla_divides_do_not_contain_it() -> None:
    x, y = arrays((1024, 64), (64, 64))
    assert TARGET not in jax.export.export(jax.jit(jnp.matmul))(x, y).mlir_module()
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("d",))
    divided = jax.device_put(x, NamedSharding(mesh, P("d"))), jax.device_put(y, NamedSharding(mesh, P()))
    assert TARGET not in jax.jit(lambda x, y: x @ y).lower(*divided).as_text()
    mapped = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))
    actual, expected, calls = both(mapped, x, y)
    assert calls == 1
    assert_equal(actual, expected)


def test_vmap_makes_a_batch() -> None:
    x, y = arrays((3, 512, 64), (64, 64))
    actual, expected, calls = both(jax.vmap(jnp.matmul, in_axes=(0, None)), x, y)
    assert calls == 1
    assert_equal(actual, expected)


def trained(num_replicas: int, loop: bool) -> Any:
    """The losses and the weights of a model with attention, whose products are all large enough."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 32, 32)).astype(np.float32)
    y = rng.integers(0, 16, (24, 32)).astype(np.int32)
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    with strategy.scope():
        inputs = keras.Input((32, 32))
        hidden = keras.layers.MultiHeadAttention(2, 16)(inputs, inputs) + inputs
        model = keras.Model(inputs, keras.layers.Dense(16)(keras.layers.Dense(64, activation="relu")(hidden)))
        optimizer = keras.optimizers.SGD(0.1)
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none" if loop else "sum_over_batch_size")
    if not loop:
        model.compile(optimizer, losses)
        history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"]
        return history, [np.asarray(v) for v in model.trainable_variables]

    def replica_step(x: Any, y: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(jnp.mean(losses(y, model(x, training=True)), -1), global_batch_size=16)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    step = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(replica_step, args=batch)))
    batches = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices((x, y)).batch(16).repeat(2))
    return [float(step(batch)) for batch in batches], [np.asarray(v) for v in model.trainable_variables]


@pytest.mark.both_ways
@pytest.mark.cases("fused-True")
@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.long
def test_training_is_the_same_with_and_without(loop: bool, fuse_replicas: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(_dot, "MIN_ROWS", 32)
    original = _dot.product
    monkeypatch.setattr(_dot, "product", lambda *given, **how: calls.append(given) or original(*given, **how))
    for num_replicas in (1, 2):
        calls.clear()
        actual = trained(num_replicas, loop)
        divided = not loop and num_replicas > 1 and fuse_replicas == "apart"  # XLA divides it among devices
        assert bool(calls) != divided
        with kernels.disabled():
            expected = trained(num_replicas, loop)
        for mine, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


def test_enabling_it_without_numba_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"'numba_dot' cannot be switched on: numba is not installed; pip install"):
        kernels.enable("numba_dot")
