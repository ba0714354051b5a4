"""What `replicant.export` needs to know about modules of Flax NNX; see ``export/_libraries.py``."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def name_of(module: Any) -> str:
    """Return how messages call a module."""
    return f"the module {type(module).__name__}"


def check_built(module: Any) -> None:
    """Do nothing: a module has its weights from the beginning."""
    del module


def weights(module: Any) -> list[tuple[str, Any]]:
    """Return the Variables of a module by the attributes that lead to them, without random keys and their counters."""
    found = [(path, node) for path, node in nnx.iter_graph(module) if isinstance(node, nnx.Variable)]
    return [(".".join(map(str, path)), node) for path, node in found if not isinstance(node, nnx.RngState)]


def assign(variable: Any, array: np.ndarray) -> None:
    """Give a Variable another value."""
    variable[...] = jnp.asarray(array)


def program(module: Any) -> tuple[Any, Callable[[Any, Any], Any]]:
    """Return the state of a module, and the function that computes its outputs with it, in evaluation mode."""
    graph, state = nnx.split(module)

    def call(values: Any, x: Any) -> Any:
        copy = nnx.merge(graph, values)
        copy.eval()
        return copy(x)

    return jax.tree.map(_on_host, state), call


def _on_host(value: Any) -> Any:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        numbers = np.asarray(jax.random.key_data(value))
        return jax.random.wrap_key_data(jnp.asarray(numbers), impl=jax.random.key_impl(value))
    return np.asarray(value)


def inputs_of(module: Any) -> None:
    """Return None: a module does not know what it will be called with."""
    del module
