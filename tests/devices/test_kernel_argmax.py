"""The kernel `argmax` finds the positions that JAX and NumPy find: the first of equal elements, and the first NaN before all."""

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
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import replicant
from replicant import kernels

WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "max": (lax.argmax, np.argmax),
    "min": (lax.argmin, np.argmin),
}


def lowered(function: Callable[..., Any], *args: Any) -> str:
    return jax.jit(function).lower(*args).as_text()


@st.composite
def arrays(draw: st.DrawFn) -> tuple[str, str, tuple[int, ...], int, int, str]:
    """A way, a type, a shape, an axis, a seed, and what the elements are."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=0, max_size=2)))
    axis = draw(st.integers(0, len(shape)))
    size = draw(st.sampled_from([32, 33, 64, 100, 257, 4096]))
    kind = draw(st.sampled_from(["ties", "nans", "infinite", "all nan", "zeros", "worst", "few nans"]))
    dtype = draw(st.sampled_from(["float32", "bfloat16", "float16"]))
    return draw(st.sampled_from(sorted(WAYS))), dtype, (*shape[:axis], size, *shape[axis:]), axis, draw(st.integers(0, 99)), kind


def filled(shape: tuple[int, ...], kind: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, shape).astype(np.float32)
    if kind in ("nans", "infinite"):
        x[rng.random(shape) < 0.2] = np.inf
        x[rng.random(shape) < 0.2] = -np.inf
    if kind in ("nans", "few nans"):
        x[rng.random(shape) < (0.1 if kind == "nans" else 2 / x.size)] = np.nan
    if kind == "all nan":
        x[...] = np.nan
    if kind == "zeros":
        x = np.where(rng.random(shape) < 0.5, np.float32(0), np.float32(-0.0))
    if kind == "worst":
        x[...] = rng.choice([-np.inf, np.inf])
    return x


@pytest.mark.again
@settings(max_examples=400 if os.environ.get("REPLICANT_TEST_FULL") else 25, deadline=None)
@given(arrays())
@pytest.mark.long
def test_positions_are_those_of_numpy_and_of_jax(case: Any) -> None:
    way, dtype, shape, axis, seed, kind = case
    find, expected = WAYS[way]
    x = jnp.asarray(filled(shape, kind, seed), dtype)
    jitted = jax.jit(lambda x: find(x, axis, jnp.int32))
    with kernels.disabled():
        plain = jitted(x)
    found = jitted(x)
    assert (found.dtype, found.shape) == (plain.dtype, plain.shape)
    np.testing.assert_array_equal(found, plain)
    np.testing.assert_array_equal(found, expected(np.asarray(x, np.float32), axis))


@pytest.mark.parametrize("way", sorted(WAYS))
def test_nans_among_many_elements(way):
    """XLA:CPU's own maximum of as many elements is a number here (YNNPACK, jaxlib 0.12)."""
    x = filled((16, 4096), "few nans", 3)
    assert 0 < np.isnan(x).any(1).sum() < 16
    np.testing.assert_array_equal(jax.jit(lambda x: WAYS[way][0](x, 1, jnp.int32))(x), WAYS[way][1](x, 1))


@pytest.mark.parametrize(
    ("shape", "dtype", "axis", "used"),
    [
        ((4, 32), "float32", 1, True),
        ((4, 31), "float32", 1, False),  # XLA is faster
        ((40, 4), "float32", 0, True),
        ((40, 4), "float32", 1, False),
        ((4, 64), "int32", 1, False),
        ((4, 64), "bfloat16", 1, True),
        ((4, 64), "float16", 1, True),
        ((0, 64), "float32", 1, False),
    ],
)
def test_where_it_is_used(shape, dtype, axis, used):
    """JAX's reduction has two operands and two results."""

    def find(x: Any) -> Any:
        return lax.argmax(x, axis, jnp.int32), lax.argmin(x, axis, jnp.int32)

    x = jnp.zeros(shape, dtype)
    assert ("applies stablehlo.maximum" in lowered(find, x)) is used
    with kernels.disabled("argmax"):
        assert "applies stablehlo.maximum" not in lowered(find, x)
    assert [r.shape for r in jax.jit(find)(x)] == [tuple(n for i, n in enumerate(shape) if i != axis)] * 2


@pytest.mark.parametrize("dtype", [bool, jnp.int8, jnp.uint32, jnp.float32])
def test_what_is_left_to_jax_is_as_in_jax(dtype):
    x = jnp.asarray(np.random.default_rng(0).integers(0, 2, (5, 20)), dtype)
    for find, expected in WAYS.values():
        np.testing.assert_array_equal(jax.jit(lambda x, find=find: find(x, 1, jnp.int32))(x), expected(np.asarray(x), 1))


@pytest.mark.parametrize("index_dtype", [jnp.int8, jnp.uint8, jnp.int16, jnp.uint32])
def test_small_types_of_positions(index_dtype):
    x = np.zeros((2, 120), np.float32)
    x[0, 119], x[1, 118] = 1, np.nan
    found = jax.jit(lambda x: lax.argmax(x, 1, index_dtype))(x)
    assert found.dtype == index_dtype
    assert found.tolist() == [119, 118]


def test_within_transformations():
    """Under `vmap`, `scan` and gradients, in other programs and beside arrays on a mesh, it finds the same."""
    x = filled((3, 4, 64), "ties", 1)
    expected = x.argmax(-1)
    for way in (jax.vmap(lambda x: jnp.argmax(x, -1)), lambda x: lax.map(lambda row: jnp.argmax(row, -1), x)):
        np.testing.assert_array_equal(jax.jit(way)(x), expected)
    gradient = jax.jit(jax.grad(lambda x: jnp.take(x, jnp.argmax(x))))(x.ravel())
    assert np.flatnonzero(gradient).tolist() == [int(x.argmax())]
    exported = jax.export.export(jax.jit(lambda x: jnp.argmax(x, -1)))(jax.ShapeDtypeStruct(x.shape, x.dtype))
    np.testing.assert_array_equal(exported.call(x), expected)
    (size,) = jax.export.symbolic_shape("n")
    symbolic = jax.export.export(jax.jit(lambda x: jnp.argmax(x, 0)))(jax.ShapeDtypeStruct((size,), x.dtype))
    assert symbolic.call(x.ravel()) == x.argmax()


@pytest.mark.parametrize("axis", [0, 1])
def test_on_several_devices(axis):
    """Cut by XLA, with explicit axes, and within `shard_map`."""
    x = filled((64, 96), "few nans", 5)
    expected = x.argmax(axis)
    find = jax.jit(lambda x: jnp.argmax(x, axis))
    for spec in (P("a"), P(None, "a")):
        mesh = Mesh(np.array(jax.devices()[:2]), ("a",))
        np.testing.assert_array_equal(find(jax.device_put(x, NamedSharding(mesh, spec))), expected)
    rows = P("a") if axis == 1 else P(None, "a")
    found = jax.shard_map(lambda x: jnp.argmax(x, axis), mesh=mesh, in_specs=rows, out_specs=P("a"))
    np.testing.assert_array_equal(jax.jit(found)(x), expected)
    explicit = Mesh(np.array(jax.devices()[:2]), ("a",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(explicit):
        for spec in (P("a"), P(None, "a")):
            for few in (x, x[:, :20] if axis == 1 else x[:20]):  # the second is left to JAX
                np.testing.assert_array_equal(find(jax.device_put(few, NamedSharding(explicit, spec))), few.argmax(axis))


def test_accuracy_in_a_loop_is_the_same():
    """Keras's accuracy counts the same, on fused replicas, with the kernel and without."""
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(8, 6, 40)).astype(np.float32), rng.integers(0, 40, (8, 6))
    logits[0, 0], logits[1, 2, 7] = 1.0, np.nan

    def count() -> float:
        strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
        with strategy.scope():
            accuracy = keras.metrics.SparseCategoricalAccuracy()
        batch = next(iter(strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensors((logits, labels)))))
        replicant.function(lambda batch: strategy.run(lambda x, y: accuracy.update_state(y, x), args=batch))(batch)
        result: Any = accuracy.result()
        return float(result)

    with kernels.disabled():
        plain = count()
    assert count() == plain == pytest.approx((logits.argmax(-1) == labels).mean())
