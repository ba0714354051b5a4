"""Which values of a traced function may differ between replicas: one row per function of (own, same)."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from replicant.tracing.replicas._varying import Varying

OWN, SAME = True, False


def trace(fn):
    """The jaxpr of `fn` inside a shard_map over two devices, so that the axis name is known."""
    mesh = Mesh(jax.devices()[:2], ("replica",))
    found = []

    def body(own, same):
        found.append(jax.make_jaxpr(fn)(own[0], same))
        return jnp.zeros(())

    spec = PartitionSpec("replica")
    jax.eval_shape(
        jax.shard_map(body, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=PartitionSpec(), check_vma=False),
        jnp.zeros((2, 3)),
        jnp.zeros(3),
    )
    return found[0].jaxpr


def total(x):
    return lax.psum(x, "replica")


def scan_with_carry(own, same):
    """The carry starts the same on all replicas and picks up the own value on the way; the sum of it agrees again."""

    def body(carry, _):
        return carry + own, total(carry)

    return lax.scan(body, same, None, length=2)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda own, same: (own, same, same * 2, own + same), [OWN, SAME, SAME, OWN]),
        (lambda own, same: (total(own), total(own) * same, total(own) + own), [SAME, SAME, OWN]),
        (lambda own, same: (lax.pmax(own, "replica"), lax.all_gather(own, "replica")), [SAME, SAME]),
        (lambda own, same: (lax.axis_index("replica"), same), [OWN, SAME]),
        (lambda own, same: (jax.jit(lambda x: (total(x), x))(own), jax.nn.relu(same)), [SAME, OWN, SAME]),
        (lambda own, same: jax.checkpoint(jnp.sin)(total(own)), [SAME]),
        (lambda own, same: lax.cond(same[0] > 0, lambda: (own, same), lambda: (same, same)), [OWN, SAME]),
        (lambda own, same: lax.cond(own[0] > 0, lambda: same, lambda: same * 2), [OWN]),
        (scan_with_carry, [OWN, SAME]),
        (lambda own, same: lax.scan(lambda c, _: (c * 2, c), same, None, length=2), [SAME, SAME]),
        (lambda own, same: lax.fori_loop(0, 3, lambda _, c: total(c * own), same), [SAME]),
        (lambda own, same: lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, same), [SAME]),
        (lambda own, same: lax.while_loop(lambda c: c[0] < own[0], lambda c: c + 1, same), [OWN]),
        (lambda own, same: jax.grad(lambda w: jnp.sum(w * own))(same), [OWN]),
        (lambda own, same: jnp.ones(3), [SAME]),
    ],
)
def test_varying(fn, expected: list[bool]) -> None:
    assert Varying(trace(fn), [OWN, SAME]).outputs == expected
