"""The GPU that these tests need. Where there is none, they are skipped."""

import os
from collections.abc import Iterator
from typing import Any

import jax
import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes of tests may share the GPU


@pytest.fixture(scope="session")
def gpu() -> Any:
    """The first GPU."""
    try:
        return jax.local_devices(backend="gpu")[0]
    except RuntimeError:
        pytest.skip("needs a GPU that JAX sees")


@pytest.fixture
def exact_products() -> Iterator[None]:
    """Let products of float32 be computed in float32, and not in the shorter formats of tensor cores."""
    with jax.default_matmul_precision("highest"):
        yield
