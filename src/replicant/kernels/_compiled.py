"""Computes convolutions and their gradients with a function that numba compiles, where this is faster than XLA's own.

A forward convolution and its input gradient are the same operation with other filters. JAX writes the filter gradient as a
convolution in which channels and batch change places, in as many groups as channels if the convolution is depthwise. XLA calls the
function by its name, so a program can only run in a process that has registered it: lowering does. Exported programs never contain
it (see `Kernel.is_local`).
"""

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import math
import os
import platform
import sys
import threading
import warnings
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from . import _object_code
from ._lowering import Kernel
from ._result_shape import result_shape

FAMILY = "numba_conv"
TARGET = "replicant_convolution"
FILTERS_AT_ONCE = 16  # the width of the registers that it needs
MAX_CHANNELS = 128  # measured up to here, see docs/kernels.md
MAX_WINDOW = 49
MIN_PRODUCTS = 100_000  # a call costs as much as some ten thousand

_CONVOLUTION, _FILTER_GRADIENT, _DEPTHWISE, _DEPTHWISE_GRADIENT = range(4)  # as in _direct_convolution.py

_CHANNELS_LAST = (0, 3, 1, 2)
_BATCH_LAST = (3, 0, 1, 2)

_lock = threading.Lock()
_state: dict[str, str | None] = {}


def objection() -> str | None:
    """Why the kernel cannot be used on this machine, or None. Does not load numba."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "it needs Linux on x86-64"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed; pip install 'replicant[numba]'"
    if not _has_wide_registers():
        return "the processor has no AVX-512"
    return _state.get("failed")


@functools.cache
def _has_wide_registers() -> bool:
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    return any(line.startswith("flags") and "avx512vl" in line.split() for line in lines)


def is_ready() -> bool:
    """Compile the function and give it to XLA, once. If that fails, warn, and return False from now on."""
    with _lock:
        if "failed" not in _state:
            _state["failed"] = _register()
            if _state["failed"]:
                warnings.warn(
                    f"The CPU kernel {FAMILY!r} is off: {_state['failed']}. XLA computes the convolutions instead.",
                    RuntimeWarning,
                    stacklevel=2,
                )
    return _state["failed"] is None


def _register() -> str | None:
    """Returns what is wrong, or None."""
    if reason := objection():
        return reason
    try:
        address = _address()
    except Exception as error:  # noqa: BLE001 - whatever a broken or unknown numba raises
        reason = str(error).partition("\n")[0]  # the rest is numba's view of the code
        return f"numba {importlib.metadata.version('numba')} could not compile it ({type(error).__name__}: {reason})"
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(address), platform="cpu", api_version=1)
    return None


def _address() -> int:
    """The address of the compiled function. Its machine code is kept for the next process."""
    file = _file()
    if address := _object_code.load(file):
        return address
    function = _function()
    with contextlib.suppress(AttributeError):  # names of numba's that may change: then each process compiles
        _object_code.store(file, function._wrapper_name, function._library._get_compiled_object())  # noqa: SLF001
    return function.address


def _file() -> Path:
    """Where the machine code is kept: beside that of Python, or where this user keeps such things if that cannot be written."""
    names = ("_machine_code.py", "_direct_products.py", "_direct_convolution.py")
    sources = b"".join(Path(__file__).with_name(name).read_bytes() for name in names)
    versions = [importlib.metadata.version(name) for name in ("numba", "llvmlite")]
    key = zlib.crc32(repr((sources, versions, _object_code.machine())).encode())
    folder = Path(importlib.util.cache_from_source(__file__)).parent
    if not os.access(folder if folder.exists() else folder.parent, os.W_OK):
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicant"
    return folder / f"convolution-{key:08x}.object"


@functools.cache
def _function() -> Any:
    """The function, which numba compiles."""
    from ._direct_convolution import handle  # it imports numba
    from ._machine_code import numba

    return numba.cfunc(numba.types.int64(numba.types.int64), error_model="numpy")(handle)


def _call(shape: tuple[int, ...], images: Array, other: Array, *, kind: int, stride: int, padding: Any, dilation: int) -> Array:
    numbers = {"dilation": dilation, "kind": kind, "left": padding[1][0], "stride": stride, "top": padding[0][0]}
    function = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(shape, images.dtype))
    return function(images, other, **{name: np.int64(number) for name, number in numbers.items()})


def convolution(images: Array, filters: Array, **params: Any) -> Array:
    """A convolution of images with channels last, with strides and padding. It combines all channels, or is depthwise."""
    spec = params["dimension_numbers"].rhs_spec
    shape, depthwise = result_shape(images, filters, params), params["feature_group_count"] > 1
    filters = lax.transpose(filters, (*spec[2:], *(spec[:2] if depthwise else (spec[1], spec[0]))))
    return _call(
        shape,
        images,
        filters,
        kind=_DEPTHWISE if depthwise else _CONVOLUTION,
        stride=params["window_strides"][0],
        padding=params["padding"],
        dilation=params["lhs_dilation"][0],
    )


def filter_gradient(images: Array, gradient: Array, **params: Any) -> Array:
    """The gradient of such a convolution with respect to its filters, as JAX writes it."""
    spec, depthwise = params["dimension_numbers"].out_spec, params["batch_group_count"] > 1
    order = (*spec[2:], *((spec[1], spec[0]) if depthwise else spec[:2]))
    shape = result_shape(images, gradient, params)
    result = _call(
        tuple(shape[axis] for axis in order),
        images,
        gradient,
        kind=_DEPTHWISE_GRADIENT if depthwise else _FILTER_GRADIENT,
        stride=params["rhs_dilation"][0],
        padding=params["padding"],
        dilation=1,
    )
    return lax.transpose(result, _inverse(order))


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(axis) for axis in range(len(order)))


def _choose(lhs: Any, rhs: Any, **params: Any) -> Any:
    if lhs.ndim != 4 or str(lhs.dtype) != "float32" or str(rhs.dtype) != "float32":
        return None
    if params["preferred_element_type"] not in (None, np.dtype("float32")):
        return None
    if any(edge < 0 for edges in params["padding"] for edge in edges):
        return None
    compute = _form(lhs, rhs, result_shape(lhs, rhs, params), params)
    return compute if compute and is_ready() else None


def _form(lhs: Any, rhs: Any, shape: tuple[int, ...], params: Any) -> Any:
    """Which of the two functions computes a convolution faster than XLA, if one does. This was measured, see docs/kernels.md."""
    spec = params["dimension_numbers"]
    strides, apart = set(params["window_strides"]), set(params["rhs_dilation"])
    if spec.lhs_spec == spec.out_spec == _CHANNELS_LAST and apart == {1} and len(strides) == 1:
        compute, window, channels = convolution, [rhs.shape[axis] for axis in spec.rhs_spec[2:]], lhs.shape[3]
    elif spec.lhs_spec == spec.rhs_spec == _BATCH_LAST and strides == {1} and len(apart) == 1:
        compute, window, channels = filter_gradient, [shape[axis] for axis in spec.out_spec[2:]], lhs.shape[3]
    else:
        return None
    filters = shape[spec.out_spec[1]]
    if 0 in shape or filters % FILTERS_AT_ONCE:
        return None
    of_images, of_gradients, dilation = params["feature_group_count"], params["batch_group_count"], set(params["lhs_dilation"])
    if of_images > 1 or of_gradients > 1:
        groups = (of_images, of_gradients) if compute is convolution else (of_gradients, of_images)
        is_spread_evenly = dilation == {1} or (compute is convolution and len(dilation) == 1)
        fits = groups == (channels, 1) and filters == channels and is_spread_evenly
        return compute if fits and _is_worth_it(window, shape, rhs, spec) else None
    if dilation != {1} or not 3 <= channels <= MAX_CHANNELS or filters > MAX_CHANNELS:
        return None
    return compute if _is_worth_it(window, shape, rhs, spec) else None


def _is_worth_it(window: list[int], shape: tuple[int, ...], rhs: Any, spec: Any) -> bool:
    products = math.prod(shape) * rhs.size // rhs.shape[spec.rhs_spec[0]]
    return 1 < math.prod(window) <= MAX_WINDOW and products >= MIN_PRODUCTS


KERNEL = Kernel(FAMILY, lax.conv_general_dilated_p, _choose, is_local=True)
