"""Sums over CPU workers. Those over two workers of one device each are one exchange; all are the bits of plain addition."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402

SHAPES = {(2, 1): "collective-permute", (2, 2): "all-reduce", (3, 1): "all-reduce"}  # workers and their devices
FLOATS = ("float32", "bfloat16", "float16", "complex64")
INTEGERS = ("int32", "int8", "uint32")


@pytest.mark.parametrize("shape", [(2, 1), *(pytest.param(shape, marks=pytest.mark.slow) for shape in [(2, 2), (3, 1)])])
def test_sums(tmp_path, shape):
    num_workers, num_devices = shape
    group = _group.Group(HERE / "_worker_sums.py", num_workers, tmp_path, environ={"DEVICES": str(num_devices)})
    for answer in group.ended_well():
        for name in (*FLOATS, *INTEGERS):
            assert answer[name]["kinds"] == [SHAPES[shape]], name
        equal = {name for name in (*FLOATS, *INTEGERS) if answer[name]["equal"]}
        assert equal >= {*INTEGERS, *(FLOATS if shape == (2, 1) else ())}  # more than two numbers may be added in another order
        assert answer["empty"] == {"shape": [num_devices, 0], "equal": True}
        assert answer["scalar"] == {"shape": [num_devices], "equal": True} or shape != (2, 1)
        for name in ("mean", "maximum", "gradient", "mapped", "in a loop", "two of them", "nested"):
            assert answer[name] < 1e-3, name
