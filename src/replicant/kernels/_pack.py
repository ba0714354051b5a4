"""Cuts an array into the small variables whose bits it has, and joins them again, in one call.

XLA would do so in a loop for each variable, which it fuses with what is computed of that variable. It would then round otherwise
than without a pack, and hand these loops to several threads. Between two calls that it does not look into, it computes what it
would compute for variables with arrays of their own, with the same loops.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import jax
import numpy as np
from jax import Array

from ._native import Native

FAMILY = "pack"  # variables/_packs.py has the packs; programs/_packing.py decides which programs have them
TARGET = "replicant_pack"

FUNCTION = Native(FAMILY, TARGET, "_direct_pack", (), "Variables keep arrays of their own.", vectors=False)

Specs: TypeAlias = Sequence[tuple[tuple[int, ...], np.dtype]]  # the shapes and dtypes of variables, all of one size per element


def dtype_of(specs: Specs) -> np.dtype:
    """The dtype of the array that has the bits of such variables: unsigned integers."""
    return np.dtype(f"uint{8 * specs[0][1].itemsize}")


def cut(array: Array, specs: Specs) -> list[Array]:
    """The values of all variables, of which there are at least two. `FUNCTION` must be ready."""
    results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in specs]
    return list(jax.ffi.ffi_call(TARGET, results)(array, of_element=np.int64(array.dtype.itemsize)))


def join(values: Sequence[Array], specs: Specs) -> Array:
    """The opposite of `cut`."""
    dtype, size = dtype_of(specs), sum(math.prod(shape) for shape, _ in specs)
    return jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct((size,), dtype))(*values, of_element=np.int64(dtype.itemsize))
