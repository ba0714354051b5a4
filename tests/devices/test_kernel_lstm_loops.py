"""The loops of an LSTM by a function that numba compiles: what JAX's loops compute, from several threads and devices."""

import functools
import os
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from replicant import kernels
from replicant.errors import ConfigurationError
from replicant.kernels.compiled import _lstm_loops
from replicant.kernels.functions import _lstm

from . import _both
from ._classifier import fit_classifier, loop_classifier
from ._threads import assert_same_in_threads

TARGET = _lstm_loops.TARGET
absent = _lstm_loops.FUNCTION.objection()
usable = pytest.mark.skipif(absent is not None, reason=f"the kernel cannot be used here: {absent}")
pytestmark = usable

STEPS, ROWS, FEATURES, UNITS = 4, 5, 3, 32


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(_lstm_loops, "MIN_PRODUCTS", 0)
    kernels.enable("numba_lstm")
    yield
    kernels.disable("numba_lstm")


def drawn(seed: int, steps: int = STEPS, rows: int = ROWS, units: int = UNITS) -> Any:
    """The inputs, the state and the weights of an LSTM."""
    rng = np.random.default_rng(seed)
    shapes = ((steps, rows, FEATURES), ((rows, units), (rows, units)), ((FEATURES, 4 * units), (units, 4 * units), (4 * units,)))
    arrays = jax.tree.map(lambda s: rng.normal(size=s).astype(np.float32), shapes, is_leaf=lambda s: isinstance(s[0], int))
    arrays[2][1][...] *= units**-0.5
    return jax.tree.map(jnp.asarray, arrays)


def drawn_mask(seed: int, steps: int = STEPS, rows: int = ROWS) -> Any:
    return jnp.asarray(np.random.default_rng(seed).integers(0, 2, (steps, rows, 1)), bool)


def of_everything(x: Any, state: Any, weights: Any, mask: Any = None) -> Any:
    """The results of an LSTM, and the gradients of a function of them."""
    out, pull = jax.vjp(lambda *args: _lstm.lstm(*args, mask), x, state, weights)
    return out, pull(jax.tree.map(jnp.cos, out))


both = functools.partial(_both.both, "numba_lstm", TARGET)
assert_close = functools.partial(_both.assert_close, tolerance=3e-6)


@pytest.mark.long
def test_values_and_gradients_are_those_of_the_loops_of_jax() -> None:
    num_called = 0

    @settings(max_examples=60 if os.environ.get("REPLICANT_TEST_FULL") else 6, deadline=None)
    @given(st.integers(1, 6), st.integers(1, 40), st.sampled_from([32, 64, 96]), st.booleans())
    def check(steps: int, rows: int, units: int, masked: bool) -> None:
        nonlocal num_called
        mask = drawn_mask(rows, steps, rows) if masked else None
        actual, expected, calls = both(of_everything, *drawn(steps, steps, rows, units), mask)
        num_called += calls
        assert_close(actual, expected)

    check()
    assert num_called >= 12


def loops(x: Any, state: Any, weights: Any) -> Any:
    """The results of the two compiled loops, without the products outside of them."""
    forward, gradient = _lstm_loops._FORWARD_LOOP.bind, _lstm_loops._GRADIENT_LOOP.bind
    inputs = jnp.concatenate([x] * UNITS, axis=-1)[..., : 4 * UNITS] + weights[0][0]
    outputs, carries, gates = forward(weights[1], inputs, *state, weights[2])
    return outputs, carries, *gradient(jnp.sin(outputs), jnp.cos(carries), weights[1], gates, carries, state[1])


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 33])
def test_a_row_does_not_depend_on_the_others(rows: int) -> None:
    x, (h, c), weights = drawn(0, rows=70)
    x = jnp.concatenate([x, x], axis=-1)
    whole = jax.jit(loops)(x, (h, c), weights)
    part = jax.jit(loops)(x[:, :rows], (h[:rows], c[:rows]), weights)
    for mine, all_of_them in zip(part, whole, strict=True):
        np.testing.assert_array_equal(mine, all_of_them[:, :rows] if mine.ndim == 3 else all_of_them[:rows])


def gates_of(sums: Any, carry: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The output, the carry and the gates of one step, of sums that are the same for all units."""
    rows = len(sums)
    given = jnp.asarray(np.repeat(np.asarray(sums, np.float32), UNITS, axis=1))[None]
    zeros, no_weights = jnp.zeros((rows, UNITS)), jnp.zeros((UNITS, 4 * UNITS))
    operands = no_weights, given, zeros, zeros + carry, jnp.zeros(4 * UNITS)
    outputs, carries, gates = jax.jit(_lstm_loops._FORWARD_LOOP.bind)(*operands)
    return np.asarray(outputs[0, :, 0]), np.asarray(carries[0, :, 0]), np.asarray(gates[0, :, ::UNITS])


def test_logistic_functions_and_tangents_are_exact_to_a_few_units_in_the_last_place() -> None:
    points = np.concatenate([np.linspace(-80, 80, 4001), np.linspace(-1e-2, 1e-2, 501), [1e-20, -1e-20, 0.0]]).astype(np.float32)
    _, _, gates = gates_of(np.stack([points] * 4, axis=1))
    exact = points.astype(np.float64)
    np.testing.assert_allclose(gates[:, 0], 1 / (1 + np.exp(-exact)), rtol=5e-7)
    np.testing.assert_array_equal(gates[:, 1], gates[:, 0])
    np.testing.assert_array_equal(gates[:, 3], gates[:, 0])
    np.testing.assert_allclose(gates[:, 2], np.tanh(exact), rtol=5e-7)


def test_what_is_large_or_not_finite() -> None:
    inf, nan = np.inf, np.nan
    sums = [[1000, -1000, inf, -inf], [inf, inf, -1000, inf], [-inf, 0, 0, 0], [nan, 0, 0, 0], [0, 0, 0, nan]]
    outputs, carries, gates = gates_of(sums, carry=1.0)
    expected = [[1, 0, 1, 0], [1, 1, -1, 1], [0, 0.5, 0, 0.5], [nan, 0.5, 0, 0.5], [0.5, 0.5, 0, nan]]
    np.testing.assert_allclose(gates, expected, rtol=1e-7, atol=1e-37)
    np.testing.assert_allclose(carries, [1, 0, 0.5, nan, 0.5], atol=1e-37)
    np.testing.assert_allclose(outputs, [0, 0, 0.5 * np.tanh(0.5), nan, nan], rtol=1e-6, atol=1e-37)


def test_what_is_not_a_number_stays_in_its_row() -> None:
    x, state, weights = drawn(0)
    actual, expected, _ = both(of_everything, x.at[1, 2, 0].set(jnp.nan), state, weights)
    for mine, theirs in zip(actual[0], expected[0], strict=True):
        np.testing.assert_array_equal(np.isnan(mine), np.isnan(theirs))
        assert np.isnan(mine[:, 2]).any(), "this row has it"
        assert not np.isnan(np.delete(mine, 2, axis=1)).any()


@pytest.mark.parametrize(
    ("units", "dtype", "calls"), [(32, "float32", 2), (24, "float32", 0), (544, "float32", 0), (32, "float64", 0)]
)
@pytest.mark.long
def test_only_what_it_can_do_is_given_to_it(units: int, dtype: str, calls: int) -> None:
    with jax.enable_x64(dtype == "float64"):
        arguments = jax.tree.map(lambda x: x.astype(dtype), drawn(0, units=units))
        actual, expected, num_calls = both(of_everything, *arguments)
        assert num_calls == calls
        assert_close(actual, expected)


def test_small_loops_are_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lstm_loops, "MIN_PRODUCTS", 4 * UNITS * UNITS * STEPS * ROWS + 1)
    assert both(of_everything, *drawn(0))[2] == 0


def test_without_steps_or_rows() -> None:
    for steps, rows in ((0, 3), (3, 0)):
        actual, expected, calls = both(of_everything, *drawn(0, steps=steps, rows=rows))
        assert calls == 0
        assert_close(actual, expected)


def summed(x: Any, state: Any, weights: Any) -> Any:
    return sum(jnp.sum(jnp.sin(out)) for out in _lstm.lstm(x, state, weights, None))


ARGUMENTS = range(3)
DERIVATIVES: dict[str, tuple[Any, int]] = {
    "forward": (jax.jvp, 1),
    "reverse": (lambda f, arguments, _: jax.grad(f, ARGUMENTS)(*arguments), 2),
    "forward over reverse": (lambda f, arguments, tangents: jax.jvp(jax.grad(f, ARGUMENTS), arguments, tangents), 0),
    "reverse over forward": (
        lambda f, arguments, tangents: jax.grad(lambda *a: jax.jvp(f, a, tangents)[1], ARGUMENTS)(*arguments),
        0,
    ),
    "reverse over reverse": (
        lambda f, arguments, tangents: jax.grad(
            lambda *a: sum(map(jnp.vdot, jax.tree.leaves(jax.grad(f, ARGUMENTS)(*a)), jax.tree.leaves(tangents))), ARGUMENTS
        )(*arguments),
        0,
    ),
    "transposed twice": (
        lambda f, arguments, tangents: jax.linear_transpose(jax.vjp(f, *arguments)[1], jax.ShapeDtypeStruct((), jnp.float32))(
            tangents
        ),
        1,
    ),
}


@pytest.mark.cases("reverse over reverse")
@pytest.mark.parametrize(("derivative", "num_calls"), DERIVATIVES.values(), ids=DERIVATIVES)
@pytest.mark.long
def test_derivatives_of_both_modes_and_second_order(derivative: Any, num_calls: int) -> None:
    actual, expected, calls = both(lambda *a: derivative(summed, *a), drawn(0), drawn(1))
    assert calls == num_calls, "derivatives of derivatives are as JAX writes them"
    assert_close(actual, expected, tolerance=1e-5)


@pytest.mark.long
def test_a_batch_of_rows_is_computed_together_and_one_of_weights_is_not() -> None:
    x, state, weights = drawn(0)
    many = jnp.stack([x, x + 1, x - 1])
    actual, expected, calls = both(jax.vmap(of_everything, in_axes=(0, None, None)), many, state, weights)
    assert calls == 2
    assert_close(actual, expected)
    for axes in (((0, None, None), 1), ((None, (0, 0), None), 0)):
        given = [x, state, weights]
        place = axes[0].index(0) if 0 in axes[0] else 1
        given[place] = jax.tree.map(lambda a, axis=axes[1]: jnp.stack([a, 2 * a], axis), given[place])
        in_axes = tuple(None if i != place else axes[1] for i in range(3))
        actual, expected, calls = both(jax.vmap(of_everything, in_axes=in_axes), *given)
        assert calls == 2
        assert_close(actual, expected)
    of_weights = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), weights)
    actual, expected, calls = both(jax.vmap(of_everything, in_axes=(None, None, 0)), x, state, of_weights)
    assert calls == 0
    assert_close(actual, expected)


def test_threads_may_call_it_at_once() -> None:
    assert_same_in_threads(jax.jit(of_everything), *drawn(0, steps=20, rows=19))


def test_exported_programs_and_those_that_xla_divides_do_not_contain_it() -> None:
    x, state, weights = drawn(0, rows=6)
    assert TARGET not in jax.export.export(jax.jit(of_everything))(x, state, weights).mlir_module()
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("d",))
    rows = jax.NamedSharding(mesh, P(None, "d"))
    divided = jax.jit(of_everything).lower(jax.device_put(x, rows), state, weights).as_text()
    assert TARGET not in divided


@pytest.mark.parametrize("checked", [False, True])
def test_each_device_computes_its_own_rows(checked: bool) -> None:
    x, state, weights = drawn(0, rows=6)
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("d",))

    def loss(x: Any, state: Any, weights: Any) -> Any:
        return jax.lax.psum(summed(x, state, weights), "d")

    specs = (P(None, "d"), (P("d"), P("d")), P())
    mapped = jax.shard_map(loss, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=checked)
    actual, expected, calls = both(jax.grad(mapped, 2), x, state, weights)
    assert calls == (0 if checked else 2)  # a checked program says which values differ between devices
    assert_close(actual, expected)


@pytest.mark.long
def test_without_jit() -> None:
    arguments = drawn(0)
    expected = jax.jit(of_everything)(*arguments)
    assert_close(of_everything(*arguments), expected)
    with jax.disable_jit():
        assert_close(of_everything(*arguments), expected)


@pytest.mark.long
def test_it_is_part_of_the_kernel_lstm() -> None:
    layer = keras.layers.LSTM(UNITS)
    layer.build((ROWS, STEPS, FEATURES))
    weights, others = ([v.value for v in some] for some in (layer.trainable_variables, layer.non_trainable_variables))
    x = drawn(0)[0].swapaxes(0, 1)

    def gradient(weights: Any) -> Any:
        return jax.grad(lambda w: jnp.sum(layer.stateless_call(w, others, x)[0]))(weights)

    assert both(gradient, weights)[2] == 2
    with kernels.disabled("lstm"):
        assert both(gradient, weights)[2] == 0


TOKENS = np.random.default_rng(0).integers(0, 9, (6, STEPS)).astype(np.int32)
LABELS = np.random.default_rng(1).integers(0, 3, 6).astype(np.int32)


def classifier() -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.Input((STEPS,)), keras.layers.Embedding(9, 8, mask_zero=True), keras.layers.LSTM(UNITS), keras.layers.Dense(3)]
    return keras.Sequential(layers)


def fitted(num_replicas: int) -> Any:
    return fit_classifier(classifier, TOKENS, LABELS, num_replicas)


def looped(num_replicas: int) -> Any:
    return loop_classifier(classifier, TOKENS, LABELS, num_replicas)


@pytest.mark.both_ways
@pytest.mark.cases("fused-looped")
@pytest.mark.parametrize("train", [fitted, looped])
@pytest.mark.long
def test_training_is_the_same_with_and_without(train: Any, fuse_replicas: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = _lstm_loops._compiled
    monkeypatch.setattr(_lstm_loops, "_compiled", lambda kind, *arrays: calls.append(kind) or original(kind, *arrays))
    for num_replicas in (1, 2):
        calls.clear()
        actual = train(num_replicas)
        divided = train is fitted and num_replicas > 1 and fuse_replicas == "apart"  # XLA divides it among devices
        assert {*calls} == (set() if divided else {0, 1}), "forward and gradient"
        with kernels.disabled("numba_lstm"):
            assert_close(actual, train(num_replicas))


def test_enabling_it_without_numba_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"'numba_lstm' cannot be switched on: numba is not installed; pip install"):
        kernels.enable("numba_lstm")
