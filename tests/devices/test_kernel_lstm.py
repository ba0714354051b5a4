"""The kernel "lstm" computes what Keras's loop computes, with all settings of the layer, and so do its derivatives."""

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicant import kernels
from replicant.kernels.functions import _lstm

from ._classifier import fit_classifier, loop_classifier

RNG = np.random.default_rng(0)
ROWS, LENGTH, FEATURES, UNITS = 6, 5, 3, 4
X = RNG.normal(size=(ROWS, LENGTH, FEATURES)).astype(np.float32)
Y = RNG.integers(0, 3, ROWS).astype(np.int32)
MASK = np.array([[n > i for i in range(LENGTH)] for n in (5, 3, 1, 0, 4, 5)])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The masks with which the kernel is traced."""
    masks: list[Any] = []
    original = _lstm.lstm

    def noted(*args: Any) -> Any:
        masks.append(args[-1])
        return original(*args)

    monkeypatch.setattr(_lstm, "lstm", noted)
    return masks


def layer_of(kind: Any = keras.layers.LSTM, **options: Any) -> Any:
    """A layer whose weights, bias included, depend on nothing but their shapes."""
    layer = kind(UNITS, seed=3, **options)
    layer.build((ROWS, LENGTH, FEATURES))
    rng = np.random.default_rng(1)
    for weight in layer.weights:
        if "seed" not in weight.path:
            weight.assign(rng.normal(size=weight.shape, scale=0.5))
    return layer


def value_and_gradients(layer: Any, x: Any, **given: Any) -> Any:
    """The outputs of a layer, and the gradients of a function of them with respect to the inputs and the weights."""

    def loss(weights: Any, x: Any) -> tuple[Any, Any]:
        out, _ = layer.stateless_call(weights, [v.value for v in layer.non_trainable_variables], x, **given)
        return sum(jnp.sum(jnp.sin(part + 0.1 * i)) for i, part in enumerate(jax.tree.leaves(out))), out

    return jax.jit(jax.grad(loss, (0, 1), has_aux=True))([v.value for v in layer.trainable_variables], x)


def assert_same(with_kernel: Any, without: Any, rtol: float = 2e-5) -> None:
    for a, b in zip(jax.tree.leaves(with_kernel), jax.tree.leaves(without), strict=True):
        largest = float(np.abs(b).max(initial=0))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1e-2, largest))


def both(make: Any, *args: Any, **given: Any) -> tuple[Any, Any]:
    """The results of equal layers with the kernel and without it."""
    with_kernel = value_and_gradients(make(), *args, **given)
    with kernels.disabled("lstm"):
        return with_kernel, value_and_gradients(make(), *args, **given)


PLAIN: dict[str, dict[str, Any]] = {
    "as it is": {},
    "sequences": {"return_sequences": True},
    "state": {"return_state": True, "return_sequences": True},
    "backwards": {"go_backwards": True, "return_sequences": True, "return_state": True},
    "no bias": {"use_bias": False},
    "no forget bias": {"unit_forget_bias": False},
    "dropout": {"dropout": 0.4},
    "implementation 1": {"implementation": 1},
    "zeros where masked": {"zero_output_for_mask": True, "return_sequences": True, "return_state": True},
}


@pytest.mark.cases("backwards-True", "dropout-False", "zeros where masked-True")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN)
@pytest.mark.long_cases("backwards-True")
@pytest.mark.long_cases("dropout-False")
def test_computes_what_keras_computes(options: dict[str, Any], masked: bool, calls: list[Any]) -> None:
    given = {"mask": MASK} if masked else {}
    with_kernel, without = both(lambda: layer_of(**options), X, training=True, **given)
    assert_same(with_kernel, without)
    assert [mask is not None for mask in calls] == [masked]


OTHER: dict[str, dict[str, Any]] = {
    "recurrent dropout": {"recurrent_dropout": 0.4},
    "unrolled": {"unroll": True},
    "relu": {"activation": "relu"},
    "hard sigmoid": {"recurrent_activation": "hard_sigmoid"},
    "16 bits": {"dtype": "mixed_bfloat16"},
    "no fused form": {"use_cudnn": False},
}


@pytest.mark.cases("recurrent dropout", "16 bits")
@pytest.mark.parametrize("options", OTHER.values(), ids=OTHER)
@pytest.mark.long
def test_other_settings_are_keras_own(options: dict[str, Any], calls: list[Any]) -> None:
    with_kernel, without = both(lambda: layer_of(**options), X, training=True, mask=MASK)
    assert not calls
    for a, b in zip(jax.tree.leaves(with_kernel), jax.tree.leaves(without), strict=True):
        np.testing.assert_array_equal(a, b)


def test_cudnn_that_is_demanded_is_still_refused() -> None:
    layer = layer_of(use_cudnn=True)
    with pytest.raises(ValueError, match="cuDNN is not supported"):
        layer(X)


def test_without_derivatives_the_numbers_are_those_of_keras(calls: list[Any]) -> None:
    layer = layer_of(return_sequences=True)
    got = layer(X)
    with kernels.disabled("lstm"):
        expected = layer(X)
    assert len(calls) == 1
    np.testing.assert_array_equal(got, expected)


def test_initial_states_and_their_gradients() -> None:
    states = [RNG.normal(size=(ROWS, UNITS)).astype(np.float32) for _ in range(2)]

    def gradients() -> Any:
        layer = layer_of(return_sequences=True)
        weights, others = ([v.value for v in some] for some in (layer.trainable_variables, layer.non_trainable_variables))

        def loss(states: Any) -> Any:
            return jnp.sum(jnp.sin(layer.stateless_call(weights, others, X, initial_state=states, mask=MASK)[0]))

        return jax.jit(jax.grad(loss))(states)

    with_kernel = gradients()
    with kernels.disabled("lstm"):
        assert_same(with_kernel, gradients())


def test_stateful_layers_continue(calls: list[Any]) -> None:
    def outputs() -> list[Any]:
        layer = keras.layers.LSTM(UNITS, stateful=True, kernel_initializer="ones", recurrent_initializer="ones")
        return [np.asarray(layer(X)) for _ in range(3)]

    with_kernel = outputs()
    assert len(calls) == 3
    assert np.abs(with_kernel[0] - with_kernel[2]).max() > 1e-3
    with kernels.disabled("lstm"):
        np.testing.assert_array_equal(with_kernel, outputs())


@pytest.mark.long
def test_both_directions(calls: list[Any]) -> None:
    def results() -> Any:
        layer = keras.layers.Bidirectional(layer_of(return_sequences=True))
        layer.build((ROWS, LENGTH, FEATURES))
        rng = np.random.default_rng(1)
        for weight in layer.trainable_variables:
            weight.assign(rng.normal(size=weight.shape, scale=0.5))
        return value_and_gradients(layer, X, mask=MASK)

    with_kernel = results()
    assert len(calls) == 2
    with kernels.disabled("lstm"):
        assert_same(with_kernel, results())


def reference(x: Any, state: Any, weights: Any, mask: Any) -> Any:
    """The equations of an LSTM, step by step."""
    (h, c), (kernel, recurrent_kernel, bias) = state, weights
    outputs, carries = [], []
    for t in range(x.shape[0]):
        i, f, g, o = jnp.split(x[t] @ kernel + h @ recurrent_kernel + bias, 4, axis=-1)
        new = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        out = jax.nn.sigmoid(o) * jnp.tanh(new)
        h, c = (out, new) if mask is None else (jnp.where(mask[t], out, h), jnp.where(mask[t], new, c))
        outputs.append(h)
        carries.append(c)
    return jnp.stack(outputs), jnp.stack(carries)


def drawn(seed: int, length: int = LENGTH, rows: int = ROWS, features: int = FEATURES, units: int = UNITS) -> Any:
    rng = np.random.default_rng(seed)
    x, h, c = (length, rows, features), (rows, units), (rows, units)
    shapes = (x, (h, c), ((features, 4 * units), (units, 4 * units), (4 * units,)))
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s), jnp.float32), shapes, is_leaf=lambda s: isinstance(s[0], int))


def summed(function: Any) -> Any:
    """A function of the results of an LSTM without a mask."""
    return lambda *args: sum(jnp.sum(jnp.sin(out)) for out in function(*args, None))


ARGUMENTS = range(3)
DERIVATIVES: dict[str, Any] = {
    "forward": jax.jvp,
    "reverse": lambda f, arguments, _: jax.grad(f, ARGUMENTS)(*arguments),
    "forward over reverse": lambda f, arguments, tangents: jax.jvp(jax.grad(f, ARGUMENTS), arguments, tangents),
    "reverse over forward": lambda f, arguments, tangents: jax.grad(lambda *a: jax.jvp(f, a, tangents)[1], ARGUMENTS)(*arguments),
}


@pytest.mark.cases("forward over reverse")
@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
@pytest.mark.long
def test_derivatives_of_both_modes_and_second_order(derivative: Any) -> None:
    got, expected = (jax.jit(lambda *a, f=f: derivative(summed(f), *a))(drawn(0), drawn(1)) for f in (_lstm.lstm, reference))
    assert_same(got, expected, rtol=1e-4)


@settings(max_examples=6)
@given(*(st.integers(1, 4) for _ in range(4)), st.booleans())
@pytest.mark.long
def test_any_sizes(length: int, rows: int, features: int, units: int, masked: bool) -> None:
    mask = jnp.asarray(np.random.default_rng(rows).integers(0, 2, (length, rows, 1)), bool) if masked else None

    def results(function: Any) -> Any:
        def of_arguments(*arguments: Any) -> Any:
            out, pull = jax.vjp(lambda *args: function(*args, mask), *arguments)
            return out, pull(out)

        return jax.jit(of_arguments)(*drawn(length, length, rows, features, units))

    assert_same(results(_lstm.lstm), results(reference), rtol=1e-4)


@pytest.mark.long
def test_vmap_over_models() -> None:
    many = jax.tree.map(lambda *pair: jnp.stack(pair), drawn(0), drawn(1))
    got, expected = (jax.jit(jax.vmap(jax.grad(summed(f), ARGUMENTS)))(*many) for f in (_lstm.lstm, reference))
    assert_same(got, expected, rtol=1e-4)


def test_weights_that_are_not_trained() -> None:
    def results() -> Any:
        layer = layer_of()
        layer.cell.recurrent_kernel.trainable = False
        return value_and_gradients(layer, X)

    with_kernel = results()
    with kernels.disabled("lstm"):
        assert_same(with_kernel, results())


def test_the_gradient_has_one_product_in_each_loop() -> None:
    arguments = drawn(0)
    gradient = jax.grad(summed(_lstm.lstm), ARGUMENTS)
    with kernels.disabled("numba_lstm"):
        equations = jax.make_jaxpr(gradient)(*arguments).eqns
    scans = [equation for equation in equations if equation.primitive.name == "scan"]
    products = [[e.primitive.name for e in scan.params["jaxpr"].eqns].count("dot_general") for scan in scans]
    assert products == [1, 1]


def test_exports_with_any_number_of_rows() -> None:
    layer = layer_of(return_sequences=True)
    (rows,) = jax.export.symbolic_shape("rows")
    shape = jax.ShapeDtypeStruct((rows, LENGTH, FEATURES), jnp.float32)
    weights, others = ([v.value for v in some] for some in (layer.trainable_variables, layer.non_trainable_variables))
    exported = jax.export.export(jax.jit(lambda x: layer.stateless_call(weights, others, x)[0]))(shape)
    np.testing.assert_allclose(exported.call(X), layer(X), rtol=1e-6)


def classifier() -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [keras.Input((LENGTH,)), keras.layers.Embedding(9, FEATURES, mask_zero=True), layer_of(), keras.layers.Dense(3)]
    )


TOKENS = RNG.integers(0, 9, (ROWS, LENGTH)).astype(np.int32)


def fitted(num_replicas: int) -> Any:
    return fit_classifier(classifier, TOKENS, Y, num_replicas)


def looped(num_replicas: int) -> Any:
    return loop_classifier(classifier, TOKENS, Y, num_replicas)


@pytest.mark.cases("looped")
@pytest.mark.parametrize("train", [fitted, looped])
@pytest.mark.long
def test_training_is_the_same_with_and_without(train: Any, calls: list[Any]) -> None:
    results = [train(n) for n in (1, 2)]
    assert calls
    with kernels.disabled("lstm"):
        expected = train(1)
    for got in results:
        assert_same(got, expected, rtol=1e-4)
