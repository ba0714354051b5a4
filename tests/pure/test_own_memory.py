"""Copies of what callers may write to: equal, apart from the original, and begun where CPU devices use them as they are."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis.extra import numpy as numpy_st

from replicant.runtime._own_memory import has_memory_alone, own, own_if_held


@example(np.zeros((0, 2), [("a", "?")]))  # has strides of 0
@given(numpy_st.arrays(numpy_st.array_dtypes(), numpy_st.array_shapes(min_dims=0, min_side=0, max_side=40)))
@pytest.mark.long
def test_copies_are_equal_and_apart(x: np.ndarray) -> None:
    for each in (x, x.T, x[..., None][::-1] if x.ndim else x):
        copy = own(each)
        assert type(copy) is np.ndarray
        native = each.dtype.newbyteorder("=")
        assert (copy.shape, copy.dtype) == (each.shape, native)
        assert copy.tobytes() == each.astype(native).tobytes()
        assert copy.flags.writeable
        assert copy.flags.c_contiguous
        assert not np.shares_memory(copy, each)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64", jnp.bfloat16])
@pytest.mark.parametrize("size", [5000, 5001, 100_003])
def test_large_copies_begin_where_jax_shares_memory(dtype: Any, size: int) -> None:
    x = np.ones(size + 1, dtype)[1:]
    copy = own(x)
    assert copy.ctypes.data % 64 == 0 or copy.nbytes < 4096
    assert copy.tobytes() == x.tobytes()


def test_what_repeats_is_copied_once() -> None:
    row = np.arange(3.0)
    copy = own(np.broadcast_to(row, (1 << 40, 3)))
    row[:] = 0
    assert copy.shape == (1 << 40, 3)
    assert copy[-1].tolist() == [0, 1, 2]
    for shape in ((0, 3), (1, 3), (1, 1, 3), (2, 0, 3)):
        assert own(np.broadcast_to(row, shape)).shape == shape


def test_files_in_memory_and_objects(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "file", np.float32, "w+", shape=(3000,))
    mapped[:] = 1
    copy = own(mapped)
    mapped[:] = 2
    assert type(copy) is np.ndarray
    assert (copy == 1).all()
    texts = np.array(["a", "b"], object)
    kept = own(texts)
    texts[:] = "c"
    assert kept.tolist() == ["a", "b"]


class OnAnotherDevice:
    """An array that is not in host memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)  # CUDA

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise AssertionError("it was copied to the host")


class OfAnotherLibrary(OnAnotherDevice):
    """An array in host memory."""

    def __init__(self, memory: np.ndarray):
        self.memory = memory

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return self.memory


def test_what_is_not_copied() -> None:
    for x in (jnp.ones(3), 1.0, "text", None, [1], np.float32(2), OnAnotherDevice()):
        assert own(x) is x
    traced = jax.make_jaxpr(lambda x: own(x) + 1)(1.0)
    assert len(traced.eqns) == 1


def test_arrays_of_other_libraries_are_copied() -> None:
    theirs = OfAnotherLibrary(np.ones(3))
    copy = own(theirs)
    theirs.memory[:] = 2
    assert copy.tolist() == [1, 1, 1]


def test_only_what_others_hold_is_copied() -> None:
    held, element = np.ones(4), np.ones(4)
    arrays = own_if_held([np.zeros(3), np.zeros((2, 3))[..., None], np.zeros(3)[:2].T, held, held[:2], element], (element,))
    held[:] = element[:] = 5
    assert [array.sum() for array in arrays] == [0, 0, 0, 4, 2, 20]
    fresh = [np.zeros(3)]
    address = fresh[0].ctypes.data
    assert own_if_held(fresh, ())[0].ctypes.data == address
    del fresh


def test_memory_that_others_hold() -> None:
    table = np.zeros((4, 4))
    assert has_memory_alone(table)  # who holds `table` itself is for the caller to count
    row = table[0]
    assert not has_memory_alone(row)
    del table
    assert has_memory_alone(row)
    assert not has_memory_alone(np.frombuffer(b"abcd", np.uint8))
    assert has_memory_alone(own(np.zeros(10_000)))
