"""The names of all JAX primitives by which Replicant tells equations apart.

Most primitives have no public object, only a name. If JAX changed a name, whatever looks for it would be switched off silently,
such as the check that replicas agree, or the search for gradients that are counted several times. So all names are checked against
the installed JAX before the first program is traced.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives

from ...errors import BackendError
from ...replicas._collectives import AXIS
from ._marks import inner_jaxprs

# Primitives that only some of the supported versions of JAX make.
SOMETIMES: Mapping[str, str] = {
    "psum_invariant": "in a shard_map with check_vma=True",
    "all_gather_invariant": "in a shard_map with check_vma=True",
    "closed_call": "JAX 0.10 and 0.11",
    "eval_jaxpr": "JAX 0.12, instead of closed_call",
}

# Operations that give all replicas the same result.
SUMS = frozenset({"psum", "psum_invariant"})
GATHER = "all_gather"
AGREEING = SUMS | {"pmax", "pmin", GATHER, "all_gather_invariant"}
SUM_OF_SLICES = "reduce_scatter"  # gives each replica its slice of the sum
EXCHANGES = AGREEING | {SUM_OF_SLICES}
INDEX = "axis_index"

# Operations that call a body with their operands. Those in INLINED mean no more than their body.
JIT = "jit"
INLINED = frozenset({JIT, "closed_call", "eval_jaxpr", "custom_jvp_call", "custom_vjp_call"})
REMAT = "remat2"
CALLS = INLINED | {REMAT}
LOOPS = frozenset({"cond", "scan", "while"})
PRINTING = frozenset({"debug_callback", "debug_print"})

# Operations that draw random numbers with a key, their first operand. Those of the generator "rbg" use RAW_DRAW in the end.
DRAWS = frozenset({"random_bits", "random_fold_in", "random_split", "random_gamma"})
RAW_DRAW = "rng_bit_generator"
VECTORIZED = "threefry2x32"  # the generator whose draws JAX vectorizes, and an operation

BARRIER = "optimization_barrier"

# Operations through which a factor of the operand becomes a factor of the result.
LINEAR = frozenset(
    {"neg", "convert_element_type", "reshape", "squeeze", "broadcast_in_dim", "reduce_sum", "copy", "reduce_precision"}
    | {"transpose", BARRIER}
)
ADDITIVE = frozenset({"add", "sub", "add_any"})
PRODUCTS = frozenset({"mul", "div", "dot_general", "conv_general_dilated", "scatter-add"})
CONCATENATE = "concatenate"  # also stacks
REST = frozenset({"rev", "select_n", "dynamic_update_slice", CONCATENATE})
CONSTRAINT = "sharding_constraint"
NAMES = (
    AGREEING
    | CALLS
    | LOOPS
    | PRINTING
    | LINEAR
    | ADDITIVE
    | PRODUCTS
    | REST
    | DRAWS
    | {INDEX, SUM_OF_SLICES, CONSTRAINT, RAW_DRAW, VECTORIZED}
)


@functools.cache
def check() -> None:
    """Check, once per process, that the installed JAX makes primitives of all these names.

    Raises:
        BackendError: If it does not.
    """
    known = {each.name for each in vars(primitives).values() if isinstance(each, jex.Primitive)}
    made = set(_names(jax.make_jaxpr(_everything, axis_env=[(AXIS, 2)])(jnp.float32(1)).jaxpr))
    # An old name may be kept for something else. So the names that decide must occur in a program that JAX has traced.
    deciding = AGREEING | CALLS | LOOPS | PRINTING | {INDEX, SUM_OF_SLICES}
    missing = ((deciding - made) | (NAMES - made - known)) - SOMETIMES.keys()
    if missing:
        raise BackendError(
            f"JAX {jax.__version__} has no operations with these names, which Replicant looks for in programs: "
            f"{', '.join(sorted(missing))}. Use a JAX version that this release of Replicant was tested with (0.10 to 0.12), or a "
            "newer Replicant."
        )


def _names(jaxpr: jex.Jaxpr) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in inner_jaxprs(eqn):
            yield from _names(inner)


def _everything(x: Any) -> Any:
    """A program with all operations whose names decide."""
    jax.debug.callback(lambda _: None, x)
    jax.debug.print("{}", x)
    same = lax.psum(x, AXIS) + lax.pmax(x, AXIS) + lax.pmin(x, AXIS) + lax.all_gather(x, AXIS)[0] + lax.axis_index(AXIS)
    same += lax.psum_scatter(jnp.stack([x, x]), AXIS)
    x = lax.cond(x > 0, lambda: x, lambda: same)
    x = lax.scan(lambda carry, _: (carry, None), x, None, length=2)[0]
    x = lax.while_loop(lambda carry: carry < 0, lambda carry: carry, x)
    return jax.checkpoint(jax.jit(_with_vjp))(jax.nn.relu(lax.optimization_barrier(x)))


@jax.custom_vjp
def _with_vjp(x: Any) -> Any:
    return x


_with_vjp.defvjp(lambda x: (x, None), lambda _, gradient: (gradient,))
