"""Kernels compute what XLA computes, wherever a program may meet them; training is the same with and without."""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import replicant
from replicant import kernels

Sizes = tuple[int, ...]
OPERATIONS: dict[str, tuple[Callable[..., Any], float]] = {
    "max": (lax.max, -np.inf),
    "min": (lax.min, np.inf),
    "sum": (lax.add, 0.0),
}


def pool(kind: str, x: Any, window: Sizes, strides: Sizes, padding: Any) -> Any:
    combine, first = OPERATIONS[kind]
    return lax.reduce_window(x, first, combine, window, strides, padding)


def pool_and_gradient(kind: str, x: Any, cotangent: Any, *how: Any) -> tuple[Any, Any]:
    value, pull = jax.vjp(lambda x: pool(kind, x, *how), x)
    return value, pull(cotangent)[0]


def both_ways(function: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """The results of one jitted function with the kernels and with JAX's own lowerings."""
    jitted = jax.jit(function)
    with kernels.disabled():
        plain = jitted(*args)
    return jitted(*args), plain


@st.composite
def pools(draw: st.DrawFn) -> tuple[str, str, Sizes, Sizes, Sizes, tuple[tuple[int, int], ...], int]:
    """An operation, a type, a shape, a window, strides, padding (smaller than the window) and a seed."""
    ndim = draw(st.integers(1, 3))
    window = tuple(draw(st.integers(1, 3)) for _ in range(ndim))
    strides = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    shape = tuple(draw(st.integers(w, 8)) for w in window)
    padding = tuple((draw(st.integers(0, w - 1)), draw(st.integers(0, w - 1))) for w in window)
    channels_last = draw(st.booleans())
    batch, channel = ((2,), (3,)) if channels_last else ((2, 3), ())

    def whole(spatial: Any, other: Any) -> Any:
        return (*[other for _ in batch], *spatial, *[other for _ in channel])

    kind, dtype = draw(st.sampled_from(sorted(OPERATIONS))), draw(st.sampled_from(["float32", "bfloat16", "float16"]))
    shape = (*batch, *shape, *channel)
    return kind, dtype, shape, whole(window, 1), whole(strides, 1), whole(padding, (0, 0)), draw(st.integers(0, 2**16))


@pytest.mark.again
@settings(max_examples=400 if os.environ.get("REPLICANT_TEST_FULL") else 25, deadline=None)
@given(pools(), st.booleans())
@pytest.mark.long
def test_pooling_and_its_gradient_are_those_of_xla(case: Any, not_a_number: bool) -> None:
    kind, dtype, shape, window, strides, padding, seed = case
    rng = np.random.default_rng(seed)
    x = rng.integers(-1, 2, shape).astype(np.float32)  # many ties, and windows of equal elements
    if not_a_number:
        x[rng.random(shape) < 0.2] = np.nan
    x = jnp.asarray(x, dtype)
    out = lax.reduce_window_shape_tuple(shape, window, strides, padding)
    cotangent = jnp.asarray(rng.integers(1, 100, out), dtype)  # whole numbers: their sums are exact in any order

    (value, gradient), (plain, plain_gradient) = both_ways(
        lambda x, c: pool_and_gradient(kind, x, c, window, strides, padding), x, cotangent
    )

    np.testing.assert_array_equal(np.asarray(value, np.float32), np.asarray(plain, np.float32))
    np.testing.assert_array_equal(np.asarray(gradient, np.float32), np.asarray(plain_gradient, np.float32))


NAN = float("nan")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([3, 1, 2, 5], [10, 0, 0, 20]),
        ([4, 4, 7, 7], [10, 0, 20, 0]),  # the first of equals
        ([NAN, 1, 2, NAN], [0, 10, 0, 20]),  # whatever follows a NaN is selected, and a NaN is when it comes last
        ([0.0, -0.0, -np.inf, -np.inf], [10, 0, 20, 0]),
    ],
)
def test_which_element_gets_the_gradient(row: list[float], expected: list[float]) -> None:
    _, gradient = jax.jit(lambda x: pool_and_gradient("max", x, jnp.asarray([10.0, 20.0]), (2,), (2,), "VALID"))(
        jnp.asarray(row, jnp.float32)
    )
    assert gradient.tolist() == expected


def test_the_program_has_no_scatter_and_no_window_left() -> None:
    x = jnp.ones((2, 6, 6, 3))

    def text() -> str:
        step = jax.jit(jax.grad(lambda x: (pool("max", x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2).sum()))
        return step.lower(x).as_text()

    with kernels.disabled("max_pool"):
        plain = text()
    assert ("select_and_scatter" in plain, "reduce_window" in plain) == (True, True)
    assert ("select_and_scatter" in text(), "reduce_window" in text()) == (False, False)


def test_large_windows_and_whole_numbers_are_left_to_xla() -> None:
    x = jnp.arange(2 * 9 * 9, dtype=jnp.float32).reshape(2, 9, 9)
    text = jax.jit(jax.grad(lambda x: pool("max", x, (1, 9, 9), (1, 9, 9), "VALID").sum())).lower(x).as_text()
    assert ("select_and_scatter" in text, "reduce_window" in text) == (True, False)  # the forward pass is not needed here
    value, gradient = jax.jit(lambda x: pool_and_gradient("max", x, jnp.ones((2, 1, 1)), (1, 9, 9), (1, 9, 9), "VALID"))(x)
    assert (value.ravel().tolist(), jnp.argwhere(gradient.ravel()).ravel().tolist()) == ([80, 161], [80, 161])

    whole = jnp.asarray([[1, 5, 2, 8]])
    low = jnp.iinfo(whole.dtype).min
    assert jax.jit(lambda x: lax.reduce_window(x, low, lax.max, (1, 2), (1, 2), "VALID"))(whole).tolist() == [[5, 8]]


def scalar_loss(x: Any) -> Any:
    return (pool("max", x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2).sum()


def shard_mapped(check_vma: bool) -> Callable[[Any], Any]:
    mesh = jax.make_mesh((2,), ("replica",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    return jax.shard_map(jax.grad(scalar_loss), mesh=mesh, in_specs=P("replica"), out_specs=P("replica"), check_vma=check_vma)


def partitioned(x: Any) -> Any:
    mesh = jax.make_mesh((2,), ("replica",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    x = lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, P("replica")))
    return jax.grad(scalar_loss)(x)


PLACES: dict[str, Callable[[Any], Any]] = {
    "vmap": jax.vmap(lambda row: jax.grad(scalar_loss)(row[None])[0]),
    "scan": lambda x: lax.scan(lambda carry, row: (carry, jax.grad(scalar_loss)(row[None])[0]), 0, x)[1],
    "checkpoint": jax.grad(jax.checkpoint(scalar_loss)),
    "shard_map": shard_mapped(check_vma=False),
    "shard_map with checked types": shard_mapped(check_vma=True),
    "partitioned": partitioned,
    "gradient of a gradient": jax.grad(lambda x: (jax.grad(scalar_loss)(x) ** 2).sum()),
    "forward over reverse": lambda x: jax.jvp(jax.grad(scalar_loss), (x,), (jnp.ones_like(x),))[1],
}


@pytest.mark.parametrize("place", PLACES)
def test_everywhere(place: str) -> None:
    x = jnp.asarray(np.random.default_rng(3).integers(-2, 3, (4, 7, 7, 3)), jnp.float32)
    value, plain = both_ways(PLACES[place], x)
    np.testing.assert_array_equal(np.asarray(value), np.asarray(plain))


def test_other_platforms_keep_their_lowering() -> None:
    x = jax.ShapeDtypeStruct((2, 6, 6, 3), jnp.float32)
    exported = jax.export.export(jax.jit(jax.grad(scalar_loss)), platforms=["tpu"])(x)
    assert "select_and_scatter" in exported.mlir_module()


def test_exported_with_a_symbolic_batch_and_for_two_platforms() -> None:
    x = jnp.asarray(np.random.default_rng(3).normal(size=(4, 6, 6, 3)), jnp.float32)
    expected = np.asarray(jax.grad(scalar_loss)(x))
    (batch,) = jax.export.symbolic_shape("b")
    symbolic = jax.ShapeDtypeStruct((batch, 6, 6, 3), jnp.float32)
    for exported in (
        jax.export.export(jax.jit(jax.grad(scalar_loss)))(symbolic),
        jax.export.export(jax.jit(jax.grad(scalar_loss)), platforms=["cpu", "cuda"])(jax.ShapeDtypeStruct(x.shape, x.dtype)),
    ):
        np.testing.assert_array_equal(np.asarray(exported.call(x)), expected)


def test_switching_compiles_anew() -> None:
    step = jax.jit(jax.grad(scalar_loss))
    x = jnp.ones((2, 4, 4, 1))

    def scatters() -> bool:
        step(x)
        return "select_and_scatter" in step.lower(x).as_text()

    seen = [scatters()]
    kernels.disable("max_pool")
    try:
        seen.append(scatters())
        with kernels.disabled():
            seen.append(scatters())
    finally:
        kernels.enable("max_pool")
    seen.append(scatters())
    assert seen == [False, True, True, False]


def train(steps: int) -> tuple[list[np.ndarray], list[float]]:
    keras.utils.set_random_seed(5)
    layers = [
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(4, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(3, strides=2, padding="same"),
        keras.layers.AveragePooling2D(2, padding="same"),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential([keras.Input((13, 13, 1)), *layers])
    model.compile(keras.optimizers.Adam(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8 * steps, 13, 13, 1)).astype(np.float32)
    y = rng.integers(0, 3, 8 * steps).astype(np.int32)  # Keras without a strategy asks for int64 shapes, of which JAX 0.12 warns
    history = model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    return [np.asarray(w) for w in model.get_weights()], history.history["loss"]


@pytest.mark.long
def test_training_is_the_same_after_200_steps() -> None:
    with_kernels, losses = train(200)
    with kernels.disabled():
        without, plain_losses = train(200)
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)
    for a, b in zip(with_kernels, without, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_what_is_on() -> None:
    states = dict(kernels.status().kernels)
    assert list(states) == [
        "conv",
        "memory",
        "argmax",
        "attention",
        "avg_pool",
        "direct_conv",
        "dot",
        "flat_update",
        "inline",
        "lstm",
        "max_pool",
        "numba_conv",
        "numba_dot",
        "numba_lstm",
        "numba_norm",
        "strided_conv",
    ]
    assert (states["avg_pool"], states["max_pool"]) == ("on", "on")
    with kernels.disabled("avg_pool"):
        assert kernels.status().kernels["avg_pool"] == "off: switched off"
        assert "avg_pool off: switched off, direct_conv on, dot on, flat_update on, inline on, lstm on, max_pool on, numb" in str(
            kernels.status()
        )
        assert repr(kernels.status()).splitlines()[5] == (
            "  avg_pool      off: switched off  (sums over windows (average pooling and its gradient), as additions of slices)"
        )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("pool",),
            (
                "There is no kernel 'pool' to switch. Use 'argmax', 'attention', 'avg_pool', 'direct_conv', 'dot', 'flat_update', "
                "'inline', 'lstm', 'max_pool', 'numba_conv', 'numba_dot', 'numba_lstm', 'numba_norm', 'strided_conv', "
                "or no name to switch all."
            ),
        ),
        (
            ("conv",),
            (
                "The kernel 'conv' is an option of XLA that is read when JAX starts, so it cannot be switched later. Start the "
                "program with REPLICANT_KERNELS=1 to have it, or with REPLICANT_KERNELS=argmax,attention,avg_pool,direct_conv,"
                "dot,flat_update,inline,lstm,max_pool,memory,numba_conv,numba_dot,numba_lstm,numba_norm,strided_conv for "
                "all except this one."
            ),
        ),
        (
            ("max_pool", "memory"),
            (
                "The kernel 'memory' is an option of the allocator that is read when JAX starts, so it cannot be switched later. "
                "Start the program with REPLICANT_KERNELS=1 to have it, or with REPLICANT_KERNELS=argmax,attention,avg_pool,"
                "conv,direct_conv,dot,flat_update,inline,lstm,max_pool,numba_conv,numba_dot,numba_lstm,numba_norm,"
                "strided_conv for all except this one."
            ),
        ),
    ],
)
def test_names_that_cannot_be_switched(names: tuple[str, ...], message: str) -> None:
    for switch in (kernels.enable, kernels.disable, lambda *names: kernels.disabled(*names).__enter__()):
        with pytest.raises(replicant.errors.ArgumentError) as caught:
            switch(*names)
        assert str(caught.value) == message
