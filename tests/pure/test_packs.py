"""Packs: arrays with the bits of several variables."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replicant
from replicant.kernels._pack import FUNCTION
from replicant.variables._packs import Pack

FOUR, TWO = [np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.uint32)], [np.dtype(np.float16), np.dtype(jnp.bfloat16)]


def placement():
    return replicant.OneDeviceStrategy("cpu:0").placement


@pytest.mark.skipif(FUNCTION.objection() is not None, reason=f"there are no packs here: {FUNCTION.objection()}")
@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([FOUR, TWO]).flatmap(
        lambda dtypes: st.lists(
            st.tuples(st.lists(st.integers(1, 4), max_size=3).map(tuple), st.sampled_from(dtypes)), min_size=2, max_size=6
        )
    ),
    st.integers(0, 2**32 - 1),
)
def test_all_bits_come_back(specs, seed):
    rng = np.random.default_rng(seed)
    values = [np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape) for shape, dtype in specs]
    pack = Pack(specs, placement(), threading.RLock())
    pack.array = pack.with_values(dict(enumerate(values)))
    assert FUNCTION.is_ready()
    again = jax.jit(lambda array: pack.join(pack.cut(array)))(pack.array)
    assert np.asarray(again).tobytes() == np.asarray(pack.array).tobytes() == b"".join(value.tobytes() for value in values)
    for i, (value, (shape, dtype)) in enumerate(zip(values, specs, strict=True)):
        shown = pack.show(i)
        assert (shown.shape, shown.dtype, np.asarray(shown).tobytes()) == (shape, dtype, value.tobytes())


def test_other_values_leave_the_rest():
    pack = Pack(
        [((2,), np.dtype(np.float32)), ((), np.dtype(np.int32)), ((1, 2), np.dtype(np.uint32))], placement(), threading.RLock()
    )
    pack.array = pack.with_values({0: np.float32([1.5, -0.0]), 1: np.int32(-7), 2: np.uint32([[3, 2**32 - 1]])})
    pack.array = pack.with_values({1: np.int32(8)})
    assert [np.asarray(pack.show(i)).tolist() for i in range(3)] == [[1.5, -0.0], 8, [[3, 2**32 - 1]]]


def test_what_is_shown_shares_no_memory():
    pack = Pack([((4,), np.dtype(np.float32)), ((4,), np.dtype(np.float32))], placement(), threading.RLock())
    pack.array = pack.with_values({0: np.arange(4.0), 1: np.arange(4.0, 8.0)})
    shown, before = pack.show(1), pack.array
    pack.array = jax.jit(lambda array: array + jnp.uint32(0), donate_argnums=0)(before)
    assert before.is_deleted()
    np.testing.assert_array_equal(shown, [4, 5, 6, 7])


def test_a_pack_without_its_array_can_be_filled_whole():
    """As after a program that failed and had consumed the array: whoever assigns all variables can go on."""
    pack = Pack([((2,), np.dtype(np.float32)), ((), np.dtype(np.float32))], placement(), threading.RLock())
    pack.array = pack.with_values({0: np.zeros(2), 1: np.float32(1)})
    pack.array.delete()
    pack.array = pack.with_values({0: np.float32([5, 6]), 1: np.float32(7)})
    assert [np.asarray(pack.show(i)).tolist() for i in range(2)] == [[5, 6], 7]


@pytest.mark.parametrize("kind", ["own", "keras"])
def test_a_missing_attribute_is_named(kind):
    keras = pytest.importorskip("keras")
    one = replicant.OneDeviceStrategy("cpu:0")
    with one.scope():
        variable = replicant.Variable(1.0) if kind == "own" else keras.Variable(1.0)
    target = variable._ref if kind == "own" else variable
    with pytest.raises(AttributeError, match=f"'{type(target).__name__}' object has no attribute 'nothing'"):
        _ = target.nothing
    blank = type(target).__new__(type(target))  # as `copy` makes one
    with pytest.raises(AttributeError, match=f"'{type(target).__name__}' object has no attribute '__setstate__'"):
        _ = blank.__setstate__
    del target._value  # which nothing holds for it
    with pytest.raises(AttributeError, match=f"'{type(target).__name__}' object has no attribute '_value'"):
        _ = target._value
