"""The kernel "dot" computes products whose first axes meet to the numbers of XLA, in another form, and leaves all others to it."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from replicant import kernels
from replicant.kernels.lowerings import _transposed_dot

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def without_numba() -> Iterator[None]:
    """The kernel "numba_dot" comes first, where it is on."""
    with kernels.disabled("numba_dot"):
        yield


def drawn(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32).astype(dtype)


def lowered(dimensions: Any, *operands: Any, **params: Any) -> str:
    return jax.jit(functools.partial(lax.dot_general, dimension_numbers=dimensions, **params)).lower(*operands).as_text()


FIRST = (((0,), (0,)), ((), ()))
FIRST_TWO = (((0, 1), (0, 1)), ((), ()))
BATCH = (((1,), (1,)), ((0,), (0,)))

# The shapes of the operands, how they meet, and which operations are in the program besides one product: a transposition of an
# operand or of the result, each behind a barrier, and a sum of halves.
CASES = {
    "a high result": ((1024, 128), (1024, 64), FIRST, "turned"),
    "many rows": ((4096, 64), (4096, 128), FIRST, "halves"),
    "many rows, a high result": ((4096, 128), (4096, 64), FIRST, "turned halves"),
    "an odd number of rows": ((4097, 128), (4097, 64), FIRST, "turned"),
    "a batch of sequences": ((16, 64, 4, 32), (16, 64, 64), FIRST_TWO, "turned"),
    "a batch of sequences, not so high": ((16, 64, 64), (16, 64, 64), FIRST_TWO, ""),
    "heads": ((8, 64, 64), (8, 64, 32), BATCH, "turned twice"),
    "heads, wide": ((8, 64, 32), (8, 64, 64), BATCH, "turned"),
    "heads, square": ((16, 64, 64), (16, 64, 64), BATCH, "turned"),
    "ten classes": ((128, 512), (128, 10), FIRST, "outer turned back"),
    "ten rows": ((128, 10), (128, 512), FIRST, "outer"),
    "two classes": ((512, 256), (512, 2), FIRST, "outer turned back"),
    "positions of ten classes": ((16, 64, 128), (16, 64, 10), FIRST_TWO, "outer turned back"),
    "a batch of three columns": ((4, 64, 128), (4, 64, 3), BATCH, "outer turned back"),
    "a batch of three rows": ((4, 64, 3), (4, 64, 128), BATCH, "outer"),
    "32 columns of a long sum": ((4096, 128), (4096, 32), FIRST, "outer turned back"),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_numpy(name: str) -> None:
    shape, other, dimensions, how = CASES[name]
    lhs, rhs = drawn(*shape), drawn(*other)
    text = lowered(dimensions, lhs, rhs)
    barriers = {"": 0, "halves": 0, "turned twice": 2}.get(how, 1)
    assert text.count("optimization_barrier") == barriers
    assert ("stablehlo.reduce" in text) == ("halves" in how or "outer" in how)
    assert ("stablehlo.dot_general" in text) == ("outer" not in how)
    assert ("stablehlo.transpose" in text) == ("turned" in how)
    assert "contracting_dims = [0, 1]" not in text
    found = jax.jit(functools.partial(lax.dot_general, dimension_numbers=dimensions))(lhs, rhs)
    axes = {FIRST: "km,kn->mn", FIRST_TWO: "kKab,kKc->abc" if len(shape) == 4 else "kKa,kKc->ac", BATCH: "bkm,bkn->bmn"}[dimensions]
    exact = np.einsum(axes, np.asarray(lhs, np.float64), np.asarray(rhs, np.float64))
    assert found.shape == exact.shape
    np.testing.assert_allclose(found, exact, atol=2e-4)


@pytest.mark.parametrize("name", ["32 columns of a long sum", "ten classes", "two classes", "a batch of three columns"])
def test_outer_products_are_never_in_memory(name: str) -> None:
    """Those of the first are 67 MB. What makes the operands is computed once, and not for each product."""
    shape, other, dimensions, _ = CASES[name]
    lhs, rhs = drawn(*shape), drawn(*other)
    product = jax.jit(lambda a, b: lax.dot_general(jnp.tanh(a), jnp.exp(b), dimensions)).lower(lhs, rhs).compile()
    memory, costs = product.memory_analysis(), product.cost_analysis()
    assert memory.temp_size_in_bytes <= 1.1 * (lhs.nbytes + rhs.nbytes + memory.output_size_in_bytes)
    assert costs["transcendentals"] == lhs.size + rhs.size


@st.composite
def products(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    """Two shapes whose axes lie in any order, but for the last one, which is one of the result."""
    sizes = st.integers(1, 4)
    batch, sums = (draw(st.lists(sizes, max_size=2)) for _ in range(2))
    sums = sums or [draw(sizes)]
    shapes, places = [], []
    for _ in range(2):
        free = draw(st.lists(sizes, min_size=1, max_size=2))
        axes = [*(("batch", i, n) for i, n in enumerate(batch)), *(("sum", i, n) for i, n in enumerate(sums))]
        axes = draw(st.permutations([*axes, *(("free", i, n) for i, n in enumerate(free[:-1]))]))
        axes = [*axes, ("free", len(free), free[-1])]
        shapes.append(tuple(n for _, _, n in axes))
        places.append({kind: [next(j for j, a in enumerate(axes) if a[:2] == (kind, i)) for i in range(count)]
                       for kind, count in (("batch", len(batch)), ("sum", len(sums)))})  # fmt: skip
    one, other = places
    dimensions = ((tuple(one["sum"]), tuple(other["sum"])), (tuple(one["batch"]), tuple(other["batch"])))
    return shapes[0], shapes[1], dimensions


@settings(max_examples=30)
@given(products(), st.sampled_from([1, 1 << 30]), st.booleans())
@pytest.mark.long
def test_axes_in_any_order(case: tuple[tuple[int, ...], tuple[int, ...], Any], rows: int, narrow: bool) -> None:
    shape, other, dimensions = case
    lhs, rhs = (np.random.default_rng(1).integers(-9, 9, s).astype(np.float32) for s in (shape, other))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HIGH_ROWS": rows, "HIGH_WIDTH": 1, "SPLIT_ROWS": rows, "SPLIT_PRODUCTS": 1}.items():
            patch.setattr(_transposed_dot, name, value)
        patch.setattr(_transposed_dot, "SPLIT_RESULT", range(1 << 30))
        patch.setattr(_transposed_dot, "NARROW_PRODUCTS", 1 if narrow else 1 << 30)
        found = _transposed_dot.product(jnp.asarray(lhs), jnp.asarray(rhs), dimension_numbers=dimensions)
    np.testing.assert_array_equal(found, lax.dot_general(lhs, rhs, dimensions))  # whole numbers, so each order of sums is exact


@pytest.mark.parametrize(
    ("lhs", "rhs", "dimensions"),
    [
        (drawn(512, 96), drawn(96, 64), (((1,), (0,)), ((), ()))),
        (drawn(512, 96), drawn(64, 96), (((1,), (1,)), ((), ()))),
        (drawn(96, 512), drawn(64, 96), (((0,), (1,)), ((), ()))),
        (drawn(8, 64, 64), drawn(8, 64, 31), BATCH),
        (drawn(1023, 128), drawn(1023, 64), FIRST),
        (drawn(1024, 127), drawn(1024, 64), FIRST),
        (drawn(8192, 128), drawn(8192, 63), FIRST),
        (drawn(4097, 64), drawn(4097, 128), FIRST),
        (drawn(2048, 512), drawn(2048, 512), FIRST),
        (drawn(64, 64, 64), drawn(64, 64, 7), BATCH),
        (drawn(64, 7, 64), drawn(64, 7, 64), BATCH),
        (drawn(512, 64), drawn(512, 1), FIRST),
        (drawn(1, 1 << 15), drawn(1, 16), FIRST),
        (drawn(127, 64), drawn(127, 8), FIRST),
        (drawn(128, 512), drawn(128, 33), FIRST),
        (drawn(8, 64, 64, dtype=jnp.bfloat16), drawn(8, 64, 64, dtype=jnp.bfloat16), BATCH),
        (drawn(96, 64), drawn(96, 64), ((((), ()), ((), ())))),
        (drawn(0, 96), drawn(0, 64), FIRST),
        (drawn(4096), drawn(4096), FIRST),
    ],
    ids=[
        "plain",
        "last axes",
        "crossed",
        "small",
        "fewer rows",
        "not so high",
        "small result",
        "odd",
        "large result",
        "narrow",
        "few rows",
        "one column",
        "one row",
        "narrow and small",
        "not so narrow",
        "16 bits",
        "outer",
        "empty",
        "vectors",
    ],
)
def test_others_are_left_to_xla(lhs: Any, rhs: Any, dimensions: Any) -> None:
    text = lowered(dimensions, lhs, rhs)
    with kernels.disabled("dot"):
        assert lowered(dimensions, lhs, rhs) == text


def test_what_a_product_is_asked_for_is_kept() -> None:
    lhs, rhs = drawn(1024, 128), drawn(1024, 64)
    assert "HIGHEST" in lowered(FIRST, lhs, rhs, precision="highest")
    assert "optimization_barrier" in lowered(FIRST, lhs, rhs, preferred_element_type=jnp.float32)
    assert "optimization_barrier" not in lowered(FIRST, lhs, rhs, preferred_element_type=jnp.bfloat16)


def test_programs_for_several_devices_and_for_files_are_those_of_jax() -> None:
    mesh = Mesh(jax.devices()[:2], "d")
    cut = [jax.device_put(drawn(2048, n), NamedSharding(mesh, P("d"))) for n in (128, 64)]
    product = functools.partial(lax.dot_general, dimension_numbers=FIRST)
    assert "optimization_barrier" not in jax.jit(product).lower(*cut).as_text()
    exported = jax.export.export(jax.jit(product))(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in cut))
    assert "optimization_barrier" not in exported.mlir_module()
    of_each = jax.shard_map(lambda a, b: lax.psum(product(a, b), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
    assert "optimization_barrier" in jax.jit(of_each).lower(*cut).as_text()
    np.testing.assert_allclose(jax.jit(of_each)(*cut), np.asarray(cut[0]).T @ np.asarray(cut[1]), atol=2e-4)


def test_derivatives_of_all_orders() -> None:
    x, w, v = drawn(1024, 64) / 8, drawn(64, 128), drawn(64, 128)

    def loss(w: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    def derivatives() -> list[Any]:
        gradient = jax.grad(loss)
        return [
            jax.jit(gradient)(w),
            jax.jit(lambda: jax.jvp(gradient, (w,), (v,))[1])(),
            jax.jit(jax.vmap(gradient))(jnp.stack([w, v])),
        ]

    assert "optimization_barrier" in jax.jit(jax.grad(loss)).lower(w).as_text()
    found = derivatives()
    with kernels.disabled("dot"):
        wanted = derivatives()
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


def test_what_other_kernels_compute_is_left_to_xla() -> None:
    """The filter gradient of a strided convolution with a window of one position is a product over images, rows and columns."""
    images, gradient = drawn(8, 32, 32, 32), drawn(8, 16, 16, 64)

    def conv(filters: Any) -> Any:
        return lax.conv_general_dilated(images, filters, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    text = jax.jit(lambda: jax.vjp(conv, drawn(1, 1, 32, 64))[1](gradient)).lower().as_text()
    assert "contracting_dims = [0, 1, 2]" in text
