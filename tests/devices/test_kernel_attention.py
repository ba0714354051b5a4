"""The kernel "attention" gives the numbers and derivatives of `jax.nn.dot_product_attention`, and leaves all else to Keras."""

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import kernels
from replicant.keras.cpu import _attention

RNG = np.random.default_rng(0)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shapes of the queries and keys that the kernel is given, in each trace."""
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    original = _attention.attention

    def noted(query: Any, key: Any, value: Any, mask: Any, scale: float) -> Any:
        shapes.append((query.shape, key.shape))
        return original(query, key, value, mask, scale)

    monkeypatch.setattr(_attention, "attention", noted)
    return shapes


@pytest.fixture
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_attention, "MIN_SCORES", 1)


def drawn(batch: int, positions: int, others: int, heads: int = 2, features: int = 8) -> list[jax.Array]:
    shapes = [(batch, n, heads, features) for n in (positions, others, others)]
    return [jnp.asarray(RNG.normal(size=shape).astype(np.float32)) for shape in shapes]


def with_gradients(arrays: list[jax.Array], **options: Any) -> tuple[Any, ...]:
    def loss(*arrays: Any) -> tuple[Any, Any]:
        out = keras.ops.dot_product_attention(*arrays, **options)
        return jnp.sum(jnp.sin(3 * out)), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*arrays)
    return (out, *gradients)


def assert_close(found: Any, wanted: Any, **tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


def assert_equal_to_rounding(found: Any, wanted: Any, of_largest: float = 2e-6) -> None:
    """Sums of numbers as large as the largest of an array are off by some roundings of that, also where they cancel."""
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=of_largest * float(np.abs(other).max()))


# Positions, other positions, options, and the numbers of queries and keys of each part.
CASES = {
    "all": (96, 200, {}, [(96, 200)]),
    "one position": (1, 7, {}, [(1, 7)]),
    "scaled": (16, 16, {"scale": 0.3}, [(16, 16)]),
    "causal": (100, 100, {"is_causal": True}, [(100, 100)]),
    "causal, halves": (131, 131, {"is_causal": True}, [(65, 65), (66, 131)]),
    "causal, quarters": (514, 514, {"is_causal": True}, [(128, 128), (129, 257), (128, 385), (129, 514)]),
    "causal, more keys": (130, 150, {"is_causal": True}, [(130, 150)]),
    "causal, fewer keys": (150, 130, {"is_causal": True}, [(150, 130)]),
}


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.long_cases("causal, quarters")
def test_values_and_gradients_are_those_of_jax(name: str, computed: list[Any]) -> None:
    positions, others, options, parts = CASES[name]
    arrays = drawn(3, positions, others)
    found = with_gradients(arrays, **options)
    assert [(query[1], key[1]) for query, key in computed] == parts
    with kernels.disabled("attention"):
        wanted = with_gradients(arrays, **options)
    assert_equal_to_rounding(found, wanted)
    assert len(computed) == len(parts)  # switched off, Keras computes it


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", [(3, 2, 40, 40), (3, 1, 40, 40), (1, 1, 40, 40), (3, 1, 1, 40)])
def test_masks(shape: tuple[int, ...], is_causal: bool, computed: list[Any]) -> None:
    """In the second row, no position attends to any other: JAX spreads it evenly, and its scores are constants."""
    mask = RNG.random(shape) < 0.5
    mask[-1, -1, min(1, shape[2] - 1)] = False
    arrays = drawn(3, 40, 40)
    found = with_gradients(arrays, mask=jnp.asarray(mask), is_causal=is_causal)
    with kernels.disabled("attention"):  # with a mask of one shape: one program serves all cases
        wanted = with_gradients(arrays, mask=jnp.asarray(np.broadcast_to(mask, (3, 2, 40, 40))), is_causal=is_causal)
    assert_equal_to_rounding(found, wanted)
    assert computed == [((3, 40, 2, 8), (3, 40, 2, 8))]


def test_scores_beyond_what_floats_hold() -> None:
    """The largest score of each position is subtracted before exponentials are taken."""
    query, key, value = drawn(1, 4, 4)
    out = _attention.attention(1e5 * query, 1e5 * key, value, None, 1.0)
    np.testing.assert_array_equal(out, jax.nn.dot_product_attention(1e5 * query, 1e5 * key, value, scale=1.0))
    assert np.isfinite(out).all()


@pytest.mark.long
def test_derivatives_of_both_modes_and_of_second_order() -> None:
    arrays, changes = drawn(2, 6, 6), drawn(2, 6, 6)

    def derivatives(attend: Any) -> list[Any]:
        def loss(query: Any) -> Any:
            return jnp.sum(jnp.sin(attend(query, *arrays[1:])))

        gradient = jax.grad(loss)
        return [
            *jax.jvp(attend, arrays, changes),
            jax.jvp(gradient, arrays[:1], changes[:1])[1],
            jax.grad(lambda query: jnp.vdot(gradient(query), changes[0]))(arrays[0]),
            jax.vmap(attend)(*(jnp.stack([x, 2 * x]) for x in arrays)),
        ]

    ours = derivatives(lambda q, k, v: _attention.attention(q, k, v, None, 0.25))
    assert_close(ours, derivatives(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, scale=0.25)), atol=5e-6, rtol=5e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": False, "bias": np.ones((1, 1, 256, 256), np.float32)},
        {"scale": jnp.float32(0.3)},
    ],
    ids=str,
)
def test_what_it_does_not_compute_is_left_to_keras(options: dict[str, Any], computed: list[Any]) -> None:
    arrays = drawn(2, 256, 256, heads=8)
    keras.ops.dot_product_attention(*arrays, **options)
    assert computed == []
    keras.ops.dot_product_attention(*arrays)
    assert computed == [((2, 256, 8, 8), (2, 256, 8, 8))]


@pytest.mark.long
def test_other_types_few_scores_and_shared_keys_are_left_to_keras(computed: list[Any]) -> None:
    query, key, value = drawn(2, 256, 256, heads=8)
    keras.ops.dot_product_attention(*(x.astype("bfloat16") for x in (query, key, value)))
    keras.ops.dot_product_attention(query[:, :127], key, value)  # 520,192 scores, and half of 2 ** 20 are the least
    keras.ops.dot_product_attention(query[:, :128], key, value)
    keras.ops.dot_product_attention(query, key[:, :, :2], value[:, :, :2])
    assert computed == [((2, 128, 8, 8), (2, 256, 8, 8))]


@pytest.mark.parametrize("sizes", ["b, 256, 8, 8", "2, t, 8, 8"])
def test_exports_with_symbolic_sizes_are_keras_own(sizes: str, computed: list[Any]) -> None:
    def attend(x: Any) -> Any:
        return keras.ops.dot_product_attention(x, x, x, is_causal=True)

    exported = jax.export.export(jax.jit(attend))(jax.ShapeDtypeStruct(jax.export.symbolic_shape(sizes), "float32"))
    assert computed == []
    query = drawn(2, 256, 256, heads=8)[0]
    found = exported.call(query)
    assert_equal_to_rounding([found], [np.asarray(attend(query))], of_largest=5e-7)
    assert [key[1] for _, key in computed] == [128, 256]


def transformer() -> keras.Model:
    keras.utils.set_random_seed(0)
    x = y = keras.Input((128, 16))
    for _ in range(2):
        y = keras.layers.LayerNormalization()(y)
        y = y + keras.layers.MultiHeadAttention(4, 8)(y, y, use_causal_mask=True)
        y = y + keras.layers.Dense(16)(keras.layers.Dense(128, "relu")(y))
    return keras.Model(x, keras.layers.Dense(2)(y))


def with_and_without(trained: Callable[[], list[np.ndarray]], computed: list[Any]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The weights with both kernels, which did compute something, and without them."""
    found = trained()
    assert computed
    with kernels.disabled("attention", "dot"):
        return found, trained()


@pytest.mark.cases("fit-1", "loop-2")
@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("way", ["fit", "loop"])
@pytest.mark.long_cases("loop-2")
@pytest.mark.long_cases("fit-1")
def test_training_is_the_same_with_and_without(way: str, num_replicas: int, computed: list[Any]) -> None:
    rng = np.random.default_rng(0)  # its own: the numbers must not depend on which tests this process ran before
    x, y = (rng.normal(size=(40, 128, n)).astype(np.float32) for n in (16, 2))

    def trained() -> list[np.ndarray]:
        strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
        with strategy.scope():
            model = transformer()
            optimizer = keras.optimizers.SGD(0.1)
            model.compile(optimizer, "mse")
        if way == "fit":
            model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
            return [np.asarray(weight) for weight in model.get_weights()]

        def replica_step(batch: Any) -> None:
            with replicant.GradientTape() as tape:
                losses = jnp.mean((model(batch[0], training=True) - batch[1]) ** 2, axis=(1, 2))
                loss = replicant.compute_average_loss(losses, global_batch_size=16)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        step = replicant.function(lambda batch: strategy.run(replica_step, args=(batch,)))
        for batch in strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices((x, y)).batch(16)):
            step(batch)
        return [np.asarray(weight) for weight in model.get_weights()]

    assert_close(*with_and_without(trained, computed), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_200_steps_are_the_same_with_and_without(computed: list[Any]) -> None:
    x, y = (RNG.normal(size=(16 * 200, 128, n)).astype(np.float32) for n in (16, 2))

    def trained() -> list[np.ndarray]:
        with replicant.MirroredStrategy(["cpu:0"]).scope():
            model = transformer()
            model.set_weights([w if w.ndim < 2 else 0.1 * np.sign(w) * np.abs(w) ** 0.5 for w in model.get_weights()])
            model.compile(keras.optimizers.SGD(0.01), "mse")
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
        return [np.asarray(weight) for weight in model.get_weights()]

    assert_close(*with_and_without(trained, computed), atol=1e-5)
