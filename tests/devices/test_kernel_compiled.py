"""Convolutions by a function that numba compiles: what XLA computes, from several threads and devices, and never in an export."""

import os
import subprocess
import sys
import zlib
from pathlib import Path
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
from replicant.errors import ConfigurationError
from replicant.kernels.compiled import _convolutions, _kept_code

from ._threads import assert_same_in_threads

CHANNELS_LAST = ("NHWC", "HWIO", "NHWC")
TARGET = _convolutions.TARGET
absent = _convolutions.FUNCTION.objection()
usable = pytest.mark.skipif(absent is not None, reason=f"the kernel cannot be used here: {absent}")


@pytest.fixture
def switched_on() -> Any:
    kernels.enable("numba_conv")
    yield
    kernels.disable("numba_conv")


@pytest.fixture
def small_ones_too(switched_on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_convolutions, "MIN_PRODUCTS", 0)


def convolve(x: Any, w: Any, strides: Any = (1, 1), padding: Any = "SAME", **how: Any) -> Any:
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=how.pop("layouts", CHANNELS_LAST), **how)


def arrays(*shapes: Any, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.integers(-4, 5, shape), jnp.float32) for shape in shapes]  # sums of these are exact in any order


def text_of(function: Any, *args: Any) -> str:
    return jax.jit(function).lower(*args).as_text()


@st.composite
def convolutions(draw: st.DrawFn) -> Any:
    """The shapes of images and filters, strides, padding, the number of groups and a seed."""
    window = [draw(st.integers(1, 5)) for _ in range(2)]
    padding = [(draw(st.integers(0, 4)), draw(st.integers(0, 4))) for _ in range(2)]
    if jax.__version_info__ < (0, 12):  # there, XLA's own gradients are wrong if more than the window lies on one side only
        padding = [(min(low, w - 1), min(high, w - 1)) for w, (low, high) in zip(window, padding, strict=True)]
    space = [draw(st.integers(max(1, w - low - high), 19)) for w, (low, high) in zip(window, padding, strict=True)]
    filters = draw(st.sampled_from([16, 32, 48, 64]))
    depthwise = draw(st.booleans())
    channels = filters if depthwise else draw(st.sampled_from([1, 2, 3, 4, 5, 16, 33, 64]))
    images, groups = (draw(st.sampled_from([1, 2, 3, 17])), *space, channels), channels if depthwise else 1
    strides = (draw(st.integers(1, 3)),) * 2
    return images, (*window, channels // groups, filters), strides, padding, groups, draw(st.integers(0, 2**16))


@usable
@pytest.mark.usefixtures("small_ones_too")
@pytest.mark.long
def test_values_and_gradients_are_those_of_xla() -> None:
    num_called = 0

    @settings(max_examples=100 if os.environ.get("REPLICANT_TEST_FULL") else 8, deadline=None)
    @given(convolutions())
    def check(case: Any) -> None:
        nonlocal num_called
        images, filters, strides, padding, groups, seed = case

        def function(x: Any, w: Any) -> Any:
            return convolve(x, w, strides, padding, feature_group_count=groups)

        def everything(x: Any, w: Any, g: Any) -> Any:
            value, pull = jax.vjp(function, x, w)
            return value, *pull(g)

        shape = jax.eval_shape(function, jnp.zeros(images), jnp.zeros(filters)).shape
        jitted, args = jax.jit(everything), arrays(images, filters, shape, seed=seed)
        num_called += jitted.lower(*args).as_text().count(TARGET)
        actual = jitted(*args)
        with kernels.disabled():
            expected = jitted(*args)
        for mine, theirs in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))

    check()
    assert num_called > 8


@usable
@pytest.mark.usefixtures("small_ones_too")
@pytest.mark.parametrize(
    ("height", "window", "padding", "stride"),
    [
        (1, 3, (2, 2), 1),  # the image is in one row of each window
        (2, 1, (3, 3), 1),  # windows that lie in the padding alone, above and below
        (1, 2, (4, 0), 3),
        (1, 2, (0, 4), 3),
        (9, 5, (4, 4), 2),
    ],
)
def test_rows_of_padding_count_as_zeros(height: int, window: int, padding: tuple[int, int], stride: int) -> None:
    x, w = arrays((3, height, 2 + 3 * stride, 2), (window, 2, 2, 16))

    def function(x: Any, w: Any) -> Any:
        return convolve(x, w, (stride, stride), (padding, (0, 0)))

    padded = np.pad(np.asarray(x), ((0, 0), padding, (0, 0), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (window, 2), (1, 2))[:, ::stride, ::stride]
    assert TARGET in text_of(function, x, w)
    expected = np.einsum("nyxckl,klcf->nyxf", windows, w)
    np.testing.assert_array_equal(np.asarray(jax.jit(function)(x, w)), expected)

    [g] = arrays(expected.shape, seed=1)
    gradient = jax.jit(lambda x, g: jax.vjp(lambda w: function(x, w), w)[1](g)[0])
    assert TARGET in text_of(gradient, x, g)
    np.testing.assert_array_equal(np.asarray(gradient(x, g)), np.einsum("nyxckl,nyxf->klcf", windows, g))


@st.composite
def odd_convolutions(draw: st.DrawFn) -> Any:
    """Images, filters, their type, and what else a program may say. The kernel computes few of these."""
    groups, channels = draw(st.sampled_from([(1, 1), (1, 3), (1, 16), (2, 4), (16, 16)]))
    filters = draw(st.sampled_from([16, 32, 16, 48, 0, 1, 24]))
    window = [draw(st.sampled_from([3, 1, 2, 7])) for _ in range(2)]
    apart, between = ([draw(st.sampled_from([1, 1, 1, 2])) for _ in range(2)] for _ in range(2))
    padding = [(draw(st.sampled_from([0, 1, 9, -1])), draw(st.sampled_from([0, 1, 9, -1]))) for _ in range(2)]
    batch = draw(st.sampled_from([1, 3, 0]))
    images = (batch, *[draw(st.integers(14, 17)) for _ in range(2)], channels)
    how = {
        "strides": [draw(st.sampled_from([1, 1, 2])) for _ in range(2)],
        "padding": padding,
        "rhs_dilation": apart,
        "lhs_dilation": between,
        "feature_group_count": groups,
    }
    if batch == 3 and filters == 48 and groups == 1 and draw(st.booleans()):
        how["batch_group_count"] = 3
    return images, (*window, channels // groups, filters - filters % groups), how, draw(st.sampled_from(TYPES))


TYPES = ["float32", "float32", "float32", "float16", "bfloat16", "int32", "float64"]


@usable
@pytest.mark.usefixtures("small_ones_too")
@pytest.mark.long
def test_what_it_cannot_do_is_left_to_xla() -> None:
    @settings(max_examples=200 if os.environ.get("REPLICANT_TEST_FULL") else 6, deadline=None)
    @given(odd_convolutions())
    def check(case: Any) -> None:
        images, filters, how, dtype = case
        with jax.enable_x64(dtype == "float64"):
            x, w = (array.astype(dtype) for array in arrays(images, filters))
            compute = jax.jit(lambda x, w: convolve(x, w, **dict(how)))
            actual = compute(x, w)
            with kernels.disabled():
                expected = compute(x, w)
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(actual, np.float64), np.asarray(expected, np.float64))

    check()


@usable
@pytest.mark.usefixtures("small_ones_too")
@pytest.mark.parametrize(
    ("images", "filters", "how", "num_calls"),
    [
        ((2, 8, 8, 16), (3, 3, 16, 16), {}, 3),
        ((2, 8, 8, 16), (3, 3, 16, 24), {}, 1),  # only the input gradient has 16 filters
        ((2, 8, 8, 1), (3, 3, 1, 16), {}, 2),  # the input gradient has one filter
        ((2, 8, 8, 256), (3, 3, 256, 16), {}, 0),  # too many channels
        ((2, 8, 8, 16), (1, 1, 16, 16), {}, 0),  # a product of matrices
        ((2, 8, 8, 256), (3, 3, 1, 256), {"feature_group_count": 256}, 3),  # depthwise, with any number of channels
        ((2, 8, 8, 16), (3, 3, 1, 16), {"feature_group_count": 16, "strides": (2, 2)}, 3),
        ((2, 8, 8, 16), (3, 3, 1, 16), {"feature_group_count": 16, "strides": (1, 2)}, 2),  # two phases of the input gradient
        ((2, 8, 8, 16), (3, 3, 1, 16), {"feature_group_count": 16, "rhs_dilation": (2, 2)}, 0),
        # Not the filter gradient, for which the images would be spread, too.
        ((2, 8, 8, 16), (3, 3, 1, 16), {"feature_group_count": 16, "lhs_dilation": (2, 2), "padding": ((1, 2), (1, 2))}, 2),
        ((2, 8, 8, 24), (3, 3, 1, 24), {"feature_group_count": 24}, 0),  # not a multiple of 16 channels
        ((2, 8, 8, 16), (3, 3, 1, 32), {"feature_group_count": 16}, 0),  # two filters for each channel
        ((2, 8, 8, 32), (3, 3, 2, 32), {"feature_group_count": 16}, 0),  # groups of two channels
        ((2, 16, 8, 8), (3, 3, 1, 16), {"feature_group_count": 16, "layouts": ("NCHW", "HWIO", "NCHW")}, 0),
        ((2, 8, 8, 16), (3, 3, 16, 16), {"rhs_dilation": (2, 2)}, 0),
        ((2, 8, 8, 16), (3, 3, 16, 16), {"strides": (1, 2)}, 0),
        ((2, 16, 8, 8), (3, 3, 16, 16), {"layouts": ("NCHW", "HWIO", "NCHW")}, 0),
        ((0, 8, 8, 16), (3, 3, 16, 16), {}, 0),
    ],
)
def test_only_what_it_can_do_is_given_to_it(images: Any, filters: Any, how: Any, num_calls: int) -> None:
    def everything(x: Any, w: Any) -> Any:
        value, pull = jax.vjp(lambda x, w: convolve(x, w, **dict(how)), x, w)
        return value, pull(value)

    assert text_of(everything, jnp.zeros(images), jnp.zeros(filters)).count(f"@{TARGET}") == num_calls


@usable
@pytest.mark.usefixtures("switched_on")
def test_small_convolutions_and_other_types_are_left_to_xla() -> None:
    small, large = jnp.zeros((1, 4, 4, 3)), jnp.zeros((8, 8, 8, 16))
    assert TARGET not in text_of(convolve, small, jnp.zeros((2, 2, 3, 16)))
    assert TARGET in text_of(convolve, large, jnp.zeros((3, 3, 16, 16)))
    assert TARGET not in text_of(lambda x, w: convolve(x, w, feature_group_count=16), large, jnp.zeros((3, 3, 1, 16)))
    for dtype in (jnp.bfloat16, jnp.float16, jnp.int32):
        assert TARGET not in text_of(convolve, large.astype(dtype), jnp.zeros((3, 3, 16, 16), dtype))


@usable
@pytest.mark.usefixtures("switched_on")
def test_exported_programs_and_those_that_xla_divides_do_not_contain_it() -> None:
    x, w = arrays((8, 8, 8, 16), (3, 3, 16, 16))
    assert TARGET not in jax.export.export(jax.jit(convolve))(x, w).mlir_module()
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("d",))
    divided = jax.device_put(x, NamedSharding(mesh, P("d"))), jax.device_put(w, NamedSharding(mesh, P()))
    assert TARGET not in text_of(convolve, *divided)

    mapped = jax.jit(jax.shard_map(convolve, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d")))
    assert TARGET in mapped.lower(*divided).as_text()  # each device computes its own images
    np.testing.assert_array_equal(np.asarray(mapped(*divided)), np.asarray(jax.jit(convolve)(x, w)))


@usable
@pytest.mark.usefixtures("switched_on")
def test_threads_may_call_it_at_once() -> None:
    x, w, g = arrays((19, 9, 9, 16), (3, 3, 16, 48), (19, 9, 9, 48))
    assert_same_in_threads(jax.jit(lambda x, w, g: jax.vjp(convolve, x, w)[1](g)), x, w, g)


@usable
@pytest.mark.usefixtures("switched_on")
def test_what_is_not_finite_stays_so() -> None:
    x, w = arrays((4, 8, 8, 16), (3, 3, 16, 16))
    x = x.at[1, 2, 3, 4].set(jnp.nan).at[2, 0, 0, 0].set(jnp.inf)
    actual = jax.jit(convolve)(x, w)
    with kernels.disabled():
        expected = jax.jit(convolve)(x, w)
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "REPLICANT_KERNELS")} | environment
    return subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=240, check=False)


SHOW = "import replicant; print(replicant.kernels.status().kernels['numba_conv'])\n"
COMPUTE = (
    "import jax, jax.numpy as jnp\nf = lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), 'SAME', dimension_numbers="
    "('NHWC', 'HWIO', 'NHWC'))\nprint(float(jax.jit(f)(jnp.ones((8, 8, 8, 16)), jnp.ones((3, 3, 16, 16))).max()))\n"
)
NO_NUMBA = (
    "import importlib.util as u; real = u.find_spec\nu.find_spec = lambda name, *a: None if name == 'numba' else real(name, *a)\n"
)


WITHOUT_MEMORY = """
import resource, replicant, jax, jax.numpy as jnp

def convolve(x, w):
    return jax.lax.conv_general_dilated(x, w, (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

x, w = jnp.ones((1, 1024, 1024, 16)), jnp.ones((3, 3, 16, 16))
lowered = jax.jit(convolve).lower(x, w)
assert "replicant_convolution" in lowered.as_text()
compute = lowered.compile()
print(compute(x, w).max())
[size] = [int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize")]
resource.setrlimit(resource.RLIMIT_AS, (size + (24 << 20), resource.RLIM_INFINITY))  # the result has 4 MB, the padded image 64
try:
    print(compute(x, w).max())
except Exception as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(compute(x, w).max())
"""


@usable
@pytest.mark.long
def test_without_memory_there_is_an_error_and_no_result() -> None:
    done = run(WITHOUT_MEMORY, REPLICANT_KERNELS="1,numba_conv")
    assert done.stdout.splitlines() == ["144.0", "RESOURCE_EXHAUSTED: no memory for a CPU kernel", "144.0"], done.stderr


@usable
@pytest.mark.parametrize(
    ("environment", "state"),
    [
        ({}, "on"),
        ({"REPLICANT_KERNELS": "1"}, "on"),
        ({"REPLICANT_KERNELS": "numba_conv"}, "on"),
        ({"REPLICANT_KERNELS": "max_pool"}, "off: REPLICANT_KERNELS does not ask for it"),
        ({"REPLICANT_KERNELS": "0"}, "off: REPLICANT_KERNELS does not ask for it"),
    ],
)
@pytest.mark.long
def test_it_is_on_unless_the_environment_asks_for_others(environment: dict[str, str], state: str) -> None:
    assert run(SHOW, **environment).stdout == f"{state}\n"


@pytest.mark.long
def test_without_numba_it_is_quietly_off_unless_it_is_named() -> None:
    done = run(NO_NUMBA + SHOW + COMPUTE + "replicant.kernels.enable()\n" + COMPUTE)
    assert done.stdout.splitlines() == ["off: numba is not installed; pip install 'replicant-jax[numba]'", "144.0", "144.0"], (
        done.stderr
    )
    assert done.stderr == ""


@pytest.mark.long
def test_without_numba_it_is_off_and_says_so_if_it_is_named() -> None:
    done = run(NO_NUMBA + SHOW + COMPUTE, REPLICANT_KERNELS="1,numba_conv")
    assert done.stdout.splitlines() == ["off: numba is not installed; pip install 'replicant-jax[numba]'", "144.0"], done.stderr
    message = "The CPU kernel 'numba_conv' is off: numba is not installed; pip install 'replicant-jax[numba]'. XLA computes the"
    assert done.stderr.count(message) == 1


def test_enabling_it_without_numba_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"'numba_conv' cannot be switched on: numba is not installed; pip install"):
        kernels.enable("numba_conv")


@usable
@pytest.mark.long
def test_a_numba_that_cannot_compile_it_leaves_the_work_to_xla(tmp_path: Path) -> None:
    broken = "import numba\ndef cfunc(*a, **k): raise RuntimeError('no such type' + chr(10) + 'and more')\nnumba.cfunc = cfunc\n"
    done = run(broken + "import replicant\n" + COMPUTE + SHOW, PYTHONPYCACHEPREFIX=str(tmp_path))
    state = done.stdout.splitlines()
    assert state[0] == "144.0", done.stderr
    assert state[1].startswith("off: numba ")
    assert state[1].endswith("could not compile it (RuntimeError: no such type)")
    assert "RuntimeWarning: The CPU kernel 'numba_conv' is off: numba " in done.stderr


AFTER_NUMBA = """
import sys, replicant
{compute}
print("numba" in sys.modules)
import numba

@numba.cfunc("int64(int64)")
def small(number):
    if number > 3:
        raise ValueError("too large")
    return number

print(small.ctypes(2), small.ctypes(7))
{compute}
"""


@usable
@pytest.mark.long
def test_the_machine_code_is_loaded_without_numba_which_works_after_it() -> None:
    assert _convolutions.FUNCTION.is_ready()  # the file is there now
    done = run(AFTER_NUMBA.format(compute=COMPUTE))
    assert done.stdout.splitlines() == ["144.0", "False", "2 0", "144.0"], done.stderr
    assert "ValueError: too large" in done.stderr  # numba reports it, and goes on


@usable
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:40],
        lambda content: b"another kind\n" + content,
        lambda content: content.replace(b"sched_yield", b"sched_field"),
        lambda content: with_checksum(
            content, content.partition(b"cfunc.")[2].partition(b"\n")[2].replace(b"sched_yield", b"sched_field")
        ),
    ],
    ids=["empty", "cut", "only the name", "another kind", "changed", "an unknown symbol"],
)
def test_a_damaged_file_of_machine_code_is_not_loaded(damage: Any, tmp_path: Path) -> None:
    assert _convolutions.FUNCTION.is_ready()
    file = tmp_path / "convolution.object"
    file.write_bytes(damage(_convolutions.FUNCTION.file().read_bytes()))
    assert _kept_code.load(file) is None


def with_checksum(content: bytes, data: bytes) -> bytes:
    head = content.partition(b"cfunc.")[2].partition(b"\n")[0]
    return _kept_code._MAGIC + f"{zlib.crc32(data)} cfunc.".encode() + head + b"\n" + data


@usable
@pytest.mark.slow
def test_a_folder_that_cannot_be_written_leaves_numba_to_compile_each_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = run("import replicant\n" + COMPUTE + SHOW, PYTHONPYCACHEPREFIX=str(blocked), XDG_CACHE_HOME=str(blocked))
    assert done.stdout.splitlines() == ["144.0", "on"], done.stderr
    assert done.stderr == ""
