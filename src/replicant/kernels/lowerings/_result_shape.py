"""Computes the shape of a convolution's result."""

from collections.abc import Mapping
from typing import Any


def result_shape(lhs: Any, rhs: Any, params: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape that a convolution of these arrays has. An axis on which the window does not fit has no elements."""
    spec = params["dimension_numbers"]
    sizes = [0] * lhs.ndim
    sizes[spec.out_spec[0]] = lhs.shape[spec.lhs_spec[0]] // params["batch_group_count"]
    sizes[spec.out_spec[1]] = rhs.shape[spec.rhs_spec[0]]
    for k, axis in enumerate(spec.out_spec[2:]):
        image = (lhs.shape[spec.lhs_spec[2 + k]] - 1) * params["lhs_dilation"][k] + 1 + sum(params["padding"][k])
        window = (rhs.shape[spec.rhs_spec[2 + k]] - 1) * params["rhs_dilation"][k] + 1
        sizes[axis] = max((image - window) // params["window_strides"][k] + 1, 0)
    return tuple(sizes)
