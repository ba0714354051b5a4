"""The one table of names of JAX's primitives by which equations are told apart.

Most primitives have no public object, only a name, and a name that JAX has changed would switch off in silence what looks for it:
the check that replicas agree, the search for gradients that are counted twice. So before the first program is traced, all names
are looked for in the JAX that is installed.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives

from ..errors import BackendError
from ..replicas._collectives import AXIS
from ._marks import inner_jaxprs

# Only some of the supported versions of JAX make these.
SOMETIMES: Mapping[str, str] = {
    "psum_invariant": "in a shard_map with check_vma=True",
    "all_gather_invariant": "in a shard_map with check_vma=True",
    "closed_call": "JAX 0.10 and 0.11",
    "eval_jaxpr": "JAX 0.12, in the place of closed_call",
}

# What gives all replicas the same.
SUMS = frozenset({"psum", "psum_invariant"})
AGREEING = SUMS | {"pmax", "pmin", "all_gather", "all_gather_invariant"}
INDEX = "axis_index"

# What calls a body with its operands. The first of them mean no more than their body.
JIT = "jit"
INLINED = frozenset({JIT, "closed_call", "eval_jaxpr", "custom_jvp_call", "custom_vjp_call"})
CALLS = INLINED | {"remat2"}
LOOPS = frozenset({"cond", "scan", "while"})
PRINTING = frozenset({"debug_callback", "debug_print"})

# Through these a factor of what goes in is a factor of what comes out.
LINEAR = frozenset(
    {"neg", "convert_element_type", "reshape", "squeeze", "broadcast_in_dim", "reduce_sum", "copy", "reduce_precision"}
    | {"transpose", "optimization_barrier"}
)
ADDITIVE = frozenset({"add", "sub", "add_any"})
PRODUCTS = frozenset({"mul", "div", "dot_general", "conv_general_dilated", "scatter-add"})
REST = frozenset({"rev", "select_n", "dynamic_update_slice"})
NAMES = AGREEING | CALLS | LOOPS | PRINTING | LINEAR | ADDITIVE | PRODUCTS | REST | {INDEX}


@functools.cache
def check() -> None:
    """Raise BackendError unless the installed JAX makes primitives of all names; it is asked once."""
    known = {each.name for each in vars(primitives).values() if isinstance(each, jex.Primitive)}
    made = set(_names(jax.make_jaxpr(_everything, axis_env=[(AXIS, 2)])(jnp.float32(1)).jaxpr))
    # An old name may live on for something else: of what decides, it counts only what JAX's functions make of a program.
    deciding = AGREEING | CALLS | LOOPS | PRINTING | {INDEX}
    missing = ((deciding - made) | (NAMES - made - known)) - SOMETIMES.keys()
    if missing:
        raise BackendError(
            f"JAX {jax.__version__} has other names for what Replicant looks for in programs: no {', '.join(sorted(missing))}. Use "
            "a JAX version that this release of Replicant was tested with (0.10 to 0.12), or a newer Replicant."
        )


def _names(jaxpr: jex.Jaxpr) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in inner_jaxprs(eqn):
            yield from _names(inner)


def _everything(x: Any) -> Any:
    """A program with all that decides."""
    jax.debug.callback(lambda _: None, x)
    jax.debug.print("{}", x)
    same = lax.psum(x, AXIS) + lax.pmax(x, AXIS) + lax.pmin(x, AXIS) + lax.all_gather(x, AXIS)[0] + lax.axis_index(AXIS)
    x = lax.cond(x > 0, lambda: x, lambda: same)
    x = lax.scan(lambda carry, _: (carry, None), x, None, length=2)[0]
    x = lax.while_loop(lambda carry: carry < 0, lambda carry: carry, x)
    return jax.checkpoint(jax.jit(_with_vjp))(jax.nn.relu(lax.optimization_barrier(x)))


@jax.custom_vjp
def _with_vjp(x: Any) -> Any:
    return x


_with_vjp.defvjp(lambda x: (x, None), lambda _, gradient: (gradient,))
