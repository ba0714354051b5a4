"""Which traces are those of small programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicant.programs._costs import _costs, is_small


def traced(function, *shapes):
    return jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]).jaxpr


def conv(x, filters):
    return jax.lax.conv_general_dilated(x, filters, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda x: x, [(8,)], (0, 0)),
        (lambda x: x + x, [(8,)], (32, 0)),
        (lambda x, y: x @ y, [(2, 3), (3, 5)], (40, 60)),
        (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), [(7, 2, 3), (7, 3, 5)], (280, 420)),
        (lambda x, y: jax.jit(lambda: jax.jit(jnp.matmul)(x, y))(), [(2, 3), (3, 5)], (40, 60)),
        (conv, [(1, 4, 4, 3), (3, 3, 3, 8)], (4 * 8 * 4, 2 * 4 * 8 * 27)),
        (lambda x: jax.lax.scan(lambda c, _: (c + x, None), x, length=3)[0], [()], (float("inf"), float("inf"))),
        (lambda x: jax.jit(lambda: jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, x))(), [()], (float("inf"), float("inf"))),
    ],
)
def test_bytes_and_multiplications(function, shapes, expected):
    assert _costs(traced(function, *shapes)) == expected


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda x: -x, [((1 << 19) - 1,)], True),
        (lambda x: -x, [(1 << 19,)], False),  # 2 MiB that are taken, and 2 MiB that are computed
        (lambda x: x[0], [(1 << 20,)], False),
        (lambda x, y: x @ y, [(100, 499), (499, 100)], True),  # 9,980,000
        (lambda x, y: x @ y, [(100, 500), (500, 100)], False),
        (lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c + x, x), [()], False),
    ],
)
def test_small_programs(function, shapes, expected):
    assert is_small(traced(function, *shapes)) == expected
