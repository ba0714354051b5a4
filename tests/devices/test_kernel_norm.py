"""The sums of BatchNormalization by a function that numba compiles: those of JAX and of float64, in training as well."""

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

import replicant
from replicant import kernels
from replicant.errors import ConfigurationError
from replicant.keras.cpu import _batch_norm
from replicant.kernels.functions import _norm

from . import _both
from ._classifier import fit_classifier, loop_classifier
from ._threads import assert_same_in_threads

TARGET = _norm.TARGET
absent = _norm.FUNCTION.objection()
usable = pytest.mark.skipif(absent is not None, reason=f"the kernel cannot be used here: {absent}")
pytestmark = usable

ROWS, CHANNELS = 37, 32


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(_norm, "MIN_NUMBERS", 0)
    monkeypatch.setattr(_batch_norm, "MIN_NUMBERS", 0)
    kernels.enable("numba_norm")
    yield
    kernels.disable("numba_norm")


def drawn(seed: int, rows: int = ROWS, channels: int = CHANNELS, batches: int | None = None) -> Any:
    """An array, scales and shifts, or a batch of each."""
    rng = np.random.default_rng(seed)
    batch = () if batches is None else (batches,)
    return tuple(
        jnp.asarray(rng.normal(size=(*batch, *shape)).astype(np.float32)) for shape in ((rows, channels), (channels,), (channels,))
    )


def results(x: Any, scale: Any, shift: Any) -> Any:
    mean, variance = _norm.moments(x)
    y = _norm.scaled(x, scale, shift)
    return mean, variance, _norm.scaled(x, scale * 2, shift), _norm.positive(y, x, scale, shift)


def of_everything(x: Any, scale: Any, shift: Any) -> Any:
    """The results of all functions, and the gradients of functions of them."""
    out, pull = jax.vjp(results, x, scale, shift)
    return out, pull(jax.tree.map(jnp.cos, out))


NUM_CALLS = 3  # of the compiled function, in `of_everything`: moments, and two pairs of gradients


both = functools.partial(_both.both, "numba_norm", TARGET)
assert_close = functools.partial(_both.assert_close, tolerance=2e-6)


@jax.jit
def sums_of(x: Any, gradient: Any, clear: Any, scale: Any, shift: Any) -> Any:
    """What all three functions compute, in one program."""
    return _norm.moments(x), _norm._SUMS_OF.bind(gradient, x), _norm._MASKED_SUMS.bind(clear, x, scale, shift)


# From one row, by fewer rows than are taken side by side, to several parts. Channels of one register and of many.
@pytest.mark.parametrize("channels", [16, 32, 48, 64, 112, 256, 1040, 4096])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 31, 1000])
def test_sums_are_those_of_float64(rows: int, channels: int) -> None:
    for mean in (0.0, 1000.0):
        x, scale, shift = map(np.asarray, drawn(rows, rows, channels))
        x, gradient = x + np.float32(mean), np.cos(x)
        shift = shift - scale * np.float32(mean)
        x64, gradient64, scale64, shift64 = (a.astype(np.float64) for a in (x, gradient, scale, shift))
        outputs = x64 * scale64 + shift64
        clear = np.where(np.abs(outputs) > 1e-3, gradient64, 0)  # rounding decides about the others
        wanted = np.where(outputs > 0, clear, 0)
        moments, sums, masked = sums_of(x, gradient, clear.astype(np.float32), scale, shift)
        # The mean of floats around 1000 has steps of 6e-5.
        np.testing.assert_allclose(moments[0], x64.mean(0), rtol=3e-7, atol=1e-6)
        np.testing.assert_allclose(moments[1], x64.var(0), rtol=2e-6, atol=1e-7)
        largest = np.abs(gradient64 * x64).sum(0)
        assert (np.abs(sums[0] - (gradient64 * x64).sum(0)) <= 1e-6 * largest).all()
        np.testing.assert_allclose(sums[1], gradient64.sum(0), atol=1e-6 * rows)
        assert (np.abs(masked[0] - (wanted * x64).sum(0)) <= 1e-6 * largest).all()
        np.testing.assert_allclose(masked[1], wanted.sum(0), atol=1e-6 * rows)


def test_a_large_mean_takes_nothing_from_a_variance() -> None:
    x = jnp.asarray(np.arange(4000, dtype=np.float32).reshape(250, 16) % 5 + 1e6)
    _, variance = jax.jit(_norm.moments)(x)
    np.testing.assert_allclose(variance, np.asarray(x, np.float64).var(0), rtol=1e-6)


@pytest.mark.long
def test_values_and_gradients_are_those_of_jax() -> None:
    num_called = 0

    @settings(max_examples=60 if os.environ.get("REPLICANT_TEST_FULL") else 6, deadline=None)
    @given(st.integers(1, 200), st.sampled_from([16, 32, 48, 80]), st.sampled_from([None, 1, 3]))
    def check(rows: int, channels: int, batches: int | None) -> None:
        nonlocal num_called
        function = of_everything if batches is None else jax.vmap(of_everything)
        actual, expected, calls = both(function, *drawn(rows, rows, channels, batches))
        num_called += calls
        assert_close(actual, expected)

    check()
    assert num_called >= 6 * NUM_CALLS


def test_batches_do_not_depend_on_each_other() -> None:
    arrays = drawn(0, 5000, 64, 3)
    together = jax.jit(jax.vmap(of_everything))(*arrays)
    for batch in range(3):
        alone = jax.jit(of_everything)(*(a[batch] for a in arrays))
        same = jax.tree.map(lambda one, of_all, i=batch: np.array_equal(one, of_all[i]), alone, together)
        assert all(jax.tree.leaves(same))


@pytest.mark.parametrize("row", [0, 17, 299])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_column(number: float, row: int) -> None:
    x, scale, shift = drawn(0, 300)
    x = x.at[row, 3].set(number)
    moments, plain, calls = both(_norm.moments, x)
    assert calls == 1
    for mine, theirs in zip(moments, plain, strict=True):
        np.testing.assert_array_equal(np.isfinite(mine), np.isfinite(theirs))
    of_column = np.arange(CHANNELS) == 3
    np.testing.assert_array_equal(np.isfinite(moments[1]), ~of_column)
    sums = jax.jit(_norm._MASKED_SUMS.bind)(jnp.ones_like(x), x, scale, shift)
    assert np.isfinite(np.delete(sums[0], 3)).all()


@pytest.mark.parametrize(
    ("rows", "channels", "dtype", "calls"),
    [
        (ROWS, 32, "float32", NUM_CALLS),
        (ROWS, 24, "float32", 0),
        (ROWS, 4112, "float32", 0),
        (ROWS, 32, "float64", 0),
        (0, 32, "float32", 0),
        (ROWS, 0, "float32", 0),
    ],
)
@pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning")
def test_only_what_it_can_do_is_given_to_it(rows: int, channels: int, dtype: str, calls: int) -> None:
    with jax.enable_x64(dtype == "float64"):
        arrays = [a.astype(dtype) for a in drawn(0, rows, channels)]
        actual, expected, num_calls = both(of_everything, *arrays)
        assert num_calls == calls
        if rows:
            assert_close(actual, expected)


def test_small_arrays_are_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_norm, "MIN_NUMBERS", ROWS * CHANNELS + 1)
    assert both(of_everything, *drawn(0))[2] == 0


def summed(x: Any, scale: Any, shift: Any) -> Any:
    mean, variance = _norm.moments(x)
    normal = _norm.scaled(x, scale * jax.lax.rsqrt(variance + 1e-3), shift - mean)
    return jnp.sum(jnp.sin(normal) * _norm.positive(_norm.scaled(x, scale, shift), x, scale, shift))


ARGUMENTS = range(3)
DERIVATIVES: dict[str, Any] = {
    "forward": jax.jvp,
    "reverse": lambda f, arguments, _: jax.grad(f, ARGUMENTS)(*arguments),
    "forward over reverse": lambda f, arguments, tangents: jax.jvp(jax.grad(f, ARGUMENTS), arguments, tangents),
    "reverse over forward": lambda f, arguments, tangents: jax.grad(lambda *a: jax.jvp(f, a, tangents)[1], ARGUMENTS)(*arguments),
    "reverse over reverse": lambda f, arguments, tangents: jax.grad(
        lambda *a: sum(map(jnp.vdot, jax.tree.leaves(jax.grad(f, ARGUMENTS)(*a)), jax.tree.leaves(tangents))), ARGUMENTS
    )(*arguments),
    "transposed twice": lambda f, arguments, tangents: jax.linear_transpose(
        jax.vjp(f, *arguments)[1], jax.ShapeDtypeStruct((), jnp.float32)
    )(tangents),
}


def plainly(x: Any, scale: Any, shift: Any) -> Any:
    """What `summed` computes, in terms of NumPy's functions."""
    mean, variance = jnp.mean(x, axis=0), jnp.var(x, axis=0)
    normal = x * (scale * jax.lax.rsqrt(variance + 1e-3)) + shift - mean
    return jnp.sum(jnp.sin(normal) * jax.nn.relu(x * scale + shift))


@pytest.mark.cases("reverse over reverse")
@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
@pytest.mark.long
def test_derivatives_of_both_modes_and_second_order(derivative: Any) -> None:
    actual, plain, calls = both(lambda *a: derivative(summed, a, drawn(1)), *drawn(0))
    assert calls >= 1
    assert_close(actual, plain, tolerance=1e-5)
    assert_close(actual, derivative(plainly, drawn(0), drawn(1)), tolerance=1e-5)


@pytest.mark.long
def test_a_batch_is_computed_together() -> None:
    x, scale, shift = drawn(0)
    for axis in (0, 1, 2):
        several = jnp.stack([x, x + 1, x - 1], axis)
        actual, expected, calls = both(jax.vmap(of_everything, in_axes=(axis, None, None)), several, scale, shift)
        assert calls == NUM_CALLS
        assert_close(actual, expected)
    two = jnp.stack([scale, shift])
    actual, expected, calls = both(jax.vmap(of_everything, in_axes=(None, 0, 1)), x, two, two.T)
    assert calls == NUM_CALLS
    assert_close(actual, expected)
    of_batches = jax.vmap(jax.vmap(of_everything, in_axes=(0, None, None)), in_axes=(None, 0, 0))
    actual, expected, calls = both(of_batches, jnp.stack([x, x + 1, x - 1]), two, two)
    assert calls == NUM_CALLS
    assert_close(actual, expected)


def test_a_relu_has_the_gradient_of_its_own_operand() -> None:
    """What an array is made of is no way for gradients: whoever asks for that of the array itself gets it."""
    x, scale, shift = drawn(0)
    y = _norm.scaled(x, scale, shift)

    def loss(y: Any, x: Any, scale: Any, shift: Any) -> Any:
        return jnp.sum(jnp.sin(_norm.positive(y, x, scale, shift)))

    of_y, *of_others = jax.jit(jax.grad(loss, range(4)))(y, x, scale, shift)
    np.testing.assert_allclose(of_y, jnp.where(y > 0, jnp.cos(y), 0), rtol=1e-6)
    assert not any(map(np.any, of_others))


def test_threads_may_call_it_at_once() -> None:
    assert_same_in_threads(jax.jit(of_everything), *drawn(0, 6000, 48))


def test_exported_programs_and_those_that_xla_divides_do_not_contain_it() -> None:
    x, scale, shift = drawn(0, rows=6)
    assert TARGET not in jax.export.export(jax.jit(of_everything))(x, scale, shift).mlir_module()
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("d",))
    rows = jax.NamedSharding(mesh, P("d"))
    assert TARGET not in jax.jit(of_everything).lower(jax.device_put(x, rows), scale, shift).as_text()


@pytest.mark.long
def test_without_jit() -> None:
    arrays = drawn(0)
    expected = jax.jit(of_everything)(*arrays)
    assert_close(of_everything(*arrays), expected)
    with jax.disable_jit():
        assert_close(of_everything(*arrays), expected)


# Keras

IMAGES = np.random.default_rng(0).normal(size=(12, 6, 6, 3)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 3, 12).astype(np.int32)


def with_relu(x: Any) -> Any:
    return keras.layers.ReLU()(keras.layers.BatchNormalization()(x))


def with_activation(x: Any) -> Any:
    return keras.layers.Activation("relu")(keras.layers.BatchNormalization(momentum=0.5)(x))


def without_scale(x: Any) -> Any:
    return keras.ops.relu(keras.layers.BatchNormalization(scale=False, center=False)(x))


def with_sum(x: Any) -> Any:
    """The ReLU of something else, and a normalization whose result is used several times."""
    normal = keras.layers.BatchNormalization()(x)
    return keras.layers.ReLU()(keras.layers.Add()([normal, x])) + keras.layers.ReLU()(normal) + keras.layers.ReLU()(normal)


def with_silu(x: Any) -> Any:
    return keras.layers.Activation("silu")(keras.layers.BatchNormalization()(x))


def with_mask(x: Any) -> Any:
    """Moments with a mask are sums, which Keras writes itself."""
    mask = keras.ops.any(x > 0, axis=-1)
    return keras.layers.ReLU()(keras.layers.BatchNormalization()(x, mask=mask))


def classifier(middle: Any) -> Any:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6, 6, 3))
    x = middle(keras.layers.Conv2D(CHANNELS, 3, use_bias=False)(inputs))
    x = middle(keras.layers.Conv2D(48, 3, use_bias=False)(x))
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(x)))


def strategy_of(num_replicas: int) -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])


def fitted(middle: Any, num_replicas: int) -> Any:
    return fit_classifier(functools.partial(classifier, middle), IMAGES, LABELS, num_replicas, rate=0.1)


def looped(middle: Any, num_replicas: int) -> Any:
    return loop_classifier(functools.partial(classifier, middle), IMAGES, LABELS, num_replicas, rate=0.1)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kinds of sums that were lowered as calls of the compiled function."""
    kinds: list[int] = []
    original = _norm._compiled
    monkeypatch.setattr(_norm, "_compiled", lambda kind, *arrays: kinds.append(kind) or original(kind, *arrays))
    return kinds


MOMENTS, SUMS, WHERE_POSITIVE = range(3)


@pytest.mark.both_ways
@pytest.mark.cases("fused-looped")
@pytest.mark.parametrize("train", [fitted, looped])
@pytest.mark.long
def test_training_is_the_same_with_and_without(train: Any, fuse_replicas: str, calls: list[int]) -> None:
    for num_replicas in (1, 2):
        calls.clear()
        actual = train(with_relu, num_replicas)
        divided = num_replicas > 1 and fuse_replicas == "apart"
        assert {*calls} == (set() if divided else {MOMENTS, WHERE_POSITIVE})
        with kernels.disabled("numba_norm"):
            assert_close(actual, train(with_relu, num_replicas), tolerance=2e-5)


@pytest.mark.cases("with_sum-kinds2")
@pytest.mark.parametrize(
    ("middle", "kinds"),
    [
        (with_activation, {MOMENTS, WHERE_POSITIVE}),
        (without_scale, {MOMENTS, WHERE_POSITIVE}),
        (with_sum, {MOMENTS, SUMS}),
        (with_silu, {MOMENTS, SUMS}),
        (with_mask, {WHERE_POSITIVE}),
    ],
)
@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning")
@pytest.mark.long
def test_other_layers_of_keras(middle: Any, kinds: set[int], calls: list[int]) -> None:
    actual = fitted(middle, 1)
    assert {*calls} == kinds
    with kernels.disabled("numba_norm"):
        assert_close(actual, fitted(middle, 1), tolerance=2e-5)


@pytest.mark.parametrize("axes", [(0, 1, 2), [0, 1, 2], (-4, -3, -2), (1, 2), 0, (0, 1, 2, 3)])
def test_moments_have_the_shapes_of_keras(axes: Any) -> None:
    strategy = strategy_of(1)

    def of_keras(keepdims: bool) -> Any:
        return strategy.run(lambda x: keras.ops.moments(x, axes, keepdims=keepdims), args=(jnp.asarray(IMAGES),))

    for keepdims in (False, True):
        expected = (
            IMAGES.mean(tuple(np.atleast_1d(axes)), keepdims=keepdims),
            IMAGES.var(tuple(np.atleast_1d(axes)), keepdims=keepdims),
        )
        for mine, theirs in zip(of_keras(keepdims), expected, strict=True):
            assert np.shape(mine) == theirs.shape
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_nothing_is_kept_of_a_trace_that_has_ended() -> None:
    with jax.checking_leaks():
        fitted(with_silu, 1)
    for last in (_batch_norm._last_normalized, _norm._last_masked):
        assert last._operands is None


@pytest.mark.parametrize("which", [0, 1])
def test_a_tape_has_the_gradients_of_what_lies_between(which: int, calls: list[int]) -> None:
    """Of the output of a normalization and of that of the ReLU after it, as maps of what a class looks at need them."""
    strategy = strategy_of(1)
    with strategy.scope():
        norm, relu, last = keras.layers.BatchNormalization(), keras.layers.ReLU(), keras.layers.Dense(1)
        norm.build((None, CHANNELS))
        last.build((None, CHANNELS))
    x = drawn(0)[0]

    def replica_step() -> Any:
        with replicant.GradientTape() as tape:
            normal = norm(x, training=True)
            rectified = relu(normal)
            loss = keras.ops.sum(last(rectified))
        return (normal, *tape.gradient(loss, [(normal, rectified)[which], norm.gamma, norm.beta]))

    normal, of_middle, of_gamma, of_beta = replicant.function(lambda: strategy.run(replica_step))()
    assert {*calls} == {MOMENTS, WHERE_POSITIVE}
    upper = np.repeat(last.get_weights()[0].T, ROWS, axis=0)
    lower = np.where(np.asarray(normal) > 0, upper, 0)
    np.testing.assert_allclose(of_middle, (lower, upper)[which], rtol=1e-6)
    np.testing.assert_allclose(of_beta, lower.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_gamma, (lower * np.asarray(normal)).sum(0), rtol=1e-4, atol=1e-4)  # gamma is 1, and beta 0


def test_outside_of_a_strategy_keras_computes() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 5, CHANNELS)).astype(np.float32))
    layer = keras.layers.BatchNormalization()
    layer.build(x.shape)
    weights, others = ([v.value for v in some] for some in (layer.trainable_variables, layer.non_trainable_variables))
    text = jax.jit(lambda w: layer.stateless_call(w, others, x, training=True)[0]).lower(weights).as_text()
    assert TARGET not in text


def test_enabling_it_without_numba_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"'numba_norm' cannot be switched on: numba is not installed; pip install"):
        kernels.enable("numba_norm")
