"""Two programs have the same fingerprint if they compute the same, whatever differs between the processes that traced them."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicant.tracing.jaxprs._fingerprint import Fingerprint, fingerprint, first_difference

X = np.arange(4, dtype=np.float32)


def traced(fn, *args):
    return fingerprint(jax.make_jaxpr(fn)(*(args or (X,))))


def custom(fn):
    rule = jax.custom_vjp(fn)
    rule.defvjp(lambda x: (fn(x), None), lambda _, gradient: (gradient,))
    return rule


def on_mesh(x):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("rows",))
    spec = jax.sharding.PartitionSpec("rows")
    x = jax.lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, spec))
    return jax.shard_map(lambda a: jax.lax.psum(a, "rows"), mesh=mesh, in_specs=spec, out_specs=spec)(x)


def plus_one(x):
    return x + 1


def cosine_minus_sine(x):
    sine, cosine = jnp.sin(x), jnp.cos(x)
    return cosine - sine


def drawing(key):
    return lambda x: x + jax.random.uniform(key)


def many_lines(at=None):
    def fn(x):
        for i in range(600):
            x = x * (2.0 if i == at else 1.5)
        return x

    return fn


def adding(captured):
    return lambda x: x + captured


# name: two ways to write the same program
SAME = {
    "names": (jax.jit(lambda x: x + 1), jax.jit(plus_one)),
    "custom rules": (custom(lambda x: x * 2), custom(lambda x: x * 2)),
    "meshes": (on_mesh, functools.partial(on_mesh)),
    "callbacks": (
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((4,), np.float32), x),
        lambda x: jax.pure_callback(plus_one, jax.ShapeDtypeStruct((4,), np.float32), x),
    ),
    "captured arrays": (adding(np.arange(4, dtype=np.float32)), adding(jnp.arange(4.0))),
    "what is printed": (lambda x: (jax.debug.print("a {}", x), x)[1], lambda x: (jax.debug.print("b {}", x), x)[1]),
}
# name: two programs of the same operations and shapes, and what is shown of each
UNLIKE = {
    "literal": (lambda x: x * 0.1, lambda x: x * 0.01, "mul(%0, 0.1", "mul(%0, 0.01"),
    "captured": (lambda x: x + X, lambda x: x + X[::-1], "float32[4] [0.0, 1.0, 2.0, ...]", "float32[4] [3.0, 2.0, 1.0, ...]"),
    "operands": (
        lambda x: jnp.sin(x) - jnp.cos(x),
        cosine_minus_sine,
        "sub(%1, %2)",
        "sub(%2, %1)",
    ),
    "parameter": (
        lambda x: jnp.flip(x.reshape(2, 2), 0),
        lambda x: jnp.flip(x.reshape(2, 2), 1),
        "rev(%0) dimensions=(0)",
        "rev(%0) dimensions=(1)",
    ),
    "in a jitted function": (jax.jit(lambda x: x * 2), jax.jit(lambda x: x * 3), "mul(%0, 2.0", "mul(%0, 3.0"),
    "in a loop": (
        lambda x: jax.lax.scan(lambda c, _: (c + 2, None), x, length=3)[0],
        lambda x: jax.lax.scan(lambda c, _: (c + 3, None), x, length=3)[0],
        "add(%0, 2.0",
        "add(%0, 3.0",
    ),
    "in the second branch": (
        lambda x: jax.lax.cond(x.sum() > 0, lambda a: a * 5, lambda a: a, x),
        lambda x: jax.lax.cond(x.sum() > 0, lambda a: a * 7, lambda a: a, x),
        "mul(%0, 5.0",
        "mul(%0, 7.0",
    ),
    "in a condition": (
        lambda x: jax.lax.while_loop(lambda a: a.sum() < 9, lambda a: a + 1, x),
        lambda x: jax.lax.while_loop(lambda a: a.sum() < 8, lambda a: a + 1, x),
        "lt(%1, 9.0",
        "lt(%1, 8.0",
    ),
    "in a custom rule": (custom(lambda x: x * 2), custom(lambda x: x * 3), "mul(%0, 2.0", "mul(%0, 3.0"),
    "random key": (
        lambda x: x + jax.random.uniform(jax.random.key(1)),
        lambda x: x + jax.random.uniform(jax.random.key(2)),
        "random_seed(1",
        "random_seed(2",
    ),
    "captured key": (
        drawing(jax.random.key(1)),
        drawing(jax.random.key(2)),
        "uint32[2] [0, 1, ...]",
        "uint32[2] [0, 2, ...]",
    ),
    "deep in a long program": (many_lines(), many_lines(at=400), "mul(%400, 1.5", "mul(%400, 2.0"),
    "one more": (lambda x: x + 1, lambda x: x + 1 + 1, "returns %1", "add(%1, 1.0"),
    "result": (lambda x: (x + 1, x)[0], lambda x: (x + 1, x)[1], "returns %1", "returns %0"),
    "half precision": (
        lambda x: x.astype(jnp.bfloat16) * jnp.bfloat16(0.5),
        lambda x: x.astype(jnp.bfloat16) * jnp.bfloat16(0.25),
        "0.5 (bfloat16)",
        "0.25 (bfloat16)",
    ),
}


def compared(a: Fingerprint, b: Fingerprint) -> list[str]:
    """What `first_difference` returns on the first of two workers; the second one's part is worked out beside it."""
    import queue
    import threading

    boxes = [queue.Queue(), queue.Queue()]

    def exchange_of(rank):
        def exchange(text):
            boxes[1 - rank].put(text)
            theirs = boxes[rank].get(timeout=20)
            return [text, theirs] if rank == 0 else [theirs, text]

        return exchange

    answers = {}
    other = threading.Thread(target=lambda: answers.update(second=first_difference(b, exchange_of(1))))
    other.start()
    answers["first"] = first_difference(a, exchange_of(0))
    other.join(20)
    assert answers["first"] == answers["second"]
    return answers["first"]


@pytest.mark.parametrize("name", SAME)
def test_the_same_program_has_the_same_fingerprint(name):
    first, second = map(traced, SAME[name])
    assert first.digest == second.digest, compared(first, second)
    assert compared(first, second) == []


@pytest.mark.parametrize("name", UNLIKE)
def test_another_program_has_another_fingerprint_and_the_difference_is_shown(name):
    first, second, shown_first, shown_second = UNLIKE[name]
    a, b = traced(first), traced(second)
    assert a.digest != b.digest
    lines = compared(a, b)
    assert shown_first in lines[0], lines
    assert shown_second in lines[1], lines


def test_a_scan_shows_how_many_operands_are_constants_and_how_many_are_carried():
    """JAX has kept these numbers in different parameters."""

    def loop(x):
        return jax.lax.scan(lambda carry, row: ((carry[0] + x * row, carry[1]), row), (x, x), jnp.arange(3.0))

    line = next(line for line in traced(loop).lines if " = scan(" in line.text)
    assert line.text.endswith(" jaxpr=<program> length=3 num_carry=1 num_consts=2 reverse=False unroll=1"), line.text


def test_operations_inside_others_are_counted():
    assert traced(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) + 2, None), x, length=3)[0]).num_operations == 3


def test_a_difference_names_the_line_of_the_program():
    def step(x, rate):
        return x * rate

    lines = compared(traced(lambda x: step(x, 2.0)), traced(lambda x: step(x, 3.0)))
    assert all(f"from {__file__}:" in line and "in test_a_difference" in line for line in lines), lines


PROGRAM = """
import jax
import jax.numpy as jnp
import numpy as np
from replicant.tracing.jaxprs._fingerprint import fingerprint

def everything(x, key):
    x = jax.jit(lambda a: jax.nn.relu(a * 0.1) + np.arange(4, dtype=np.float32))(x) + jax.nn.gelu(x)
    x = x + jax.random.normal(key, x.shape) + jnp.take(x, jnp.arange(4)) + jnp.sort(x)
    x = jax.lax.cond(x.sum() > 0, lambda a: a + 1, lambda a: a * 2, x)
    x, _ = jax.lax.scan(lambda carry, t: (carry * 0.5 + t, None), x, jnp.arange(3.0))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("rows",))
    spec = jax.sharding.PartitionSpec()
    x = jax.shard_map(lambda a: jax.lax.psum(a, "rows"), mesh=mesh, in_specs=spec, out_specs=spec)(x)
    x = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    return jax.grad(lambda a: jnp.linalg.norm(jnp.linalg.solve(jnp.outer(a, a) + jnp.eye(4), a)))(x)

print(fingerprint(jax.jit(everything).trace(jnp.ones(4), jax.random.key(0)).jaxpr).digest)
"""


@pytest.mark.long
def test_processes_whose_strings_hash_otherwise_agree():
    found = set()
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed}
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=120, check=True
        )
        found.add(ended.stdout.split()[-1])
    assert len(found) == 1, found
