"""Random programs of nested control flow, variables, exchanges and uneven batches, equal to a simulator in NumPy.

All numbers are integers, so nothing is rounded, and the simulator is exact.
"""

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant

MODULUS = 1009
NUM_SEEDS = int(os.environ.get("CONTROL_FLOW_SEEDS", "24"))


@dataclasses.dataclass(frozen=True)
class Statement:
    """One statement: its kind, a number, and the blocks of statements in it."""

    kind: str
    number: int = 0
    blocks: tuple[tuple["Statement", ...], ...] = ()


Block = tuple[Statement, ...]
LOCAL = ("scale", "own", "read")  # what a replica may do while others do something else
SHARED = ("total", "first", "count", "exchange", "psum", "mirrored")
BRANCHES = {"cond": 2, "keras cond": 2, "switch": 3}
LOOPS = ("for", "keras while", "while", "scan", "map", "jit", "checkpoint", "vmap")


def program(random: np.random.Generator, depth: int, *, shared: bool = True) -> Block:
    """Return a random block."""
    statements = []
    for _ in range(random.integers(1, 4)):
        kind = random.choice([*LOCAL, *(SHARED if shared else ()), *(() if depth == 0 else ("branch", "loop", "local branch"))])
        if kind == "branch":
            kind = random.choice([*BRANCHES])
            blocks = tuple(program(random, depth - 1, shared=shared) for _ in range(BRANCHES[kind]))
        elif kind == "local branch":
            blocks = tuple(program(random, depth - 1, shared=False) for _ in range(2))
        elif kind == "loop":
            kind = random.choice(LOOPS)
            blocks = (program(random, depth - 1, shared=shared and kind != "vmap"),)
        else:
            blocks = ()
        statements.append(Statement(str(kind), int(random.integers(1, 4)), blocks))
    return tuple(statements)


class Simulator:
    """What all replicas do: `x` has a number for each of them."""

    def __init__(self, num_replicas: int):
        self.total, self.first, self.count, self.own = 0, 1, 0, [0] * num_replicas

    def block(self, block: Block, x: list[int], active: set[int]) -> list[int]:
        for statement in block:
            x = self.statement(statement, x, active)
        return x

    def statement(self, s: Statement, x: list[int], active: set[int]) -> list[int]:  # noqa: C901, PLR0912 - a table
        k, blocks = s.number, s.blocks
        match s.kind:
            case "scale":
                return [(v * (k + 1) + k) % MODULUS for v in x]
            case "own":
                for r in active:
                    self.own[r] = (self.own[r] + x[r] * k) % MODULUS
                return x
            case "read":
                return [(v + own + self.total) % MODULUS for v, own in zip(x, self.own, strict=True)]
            case "total":
                self.total += sum(x) * k
            case "first":
                self.first = (x[0] + k) % MODULUS
            case "count":
                self.count += k
            case "exchange" | "psum":
                return [(v + sum(x)) % MODULUS for v in x]
            case "mirrored":
                return [(v + self.first) % MODULUS for v in x]
            case "cond" | "keras cond":
                return self.block(blocks[self.count % 2], x, active)
            case "switch":
                return self.block(blocks[self.count % 3], x, active)
            case "local branch":
                return [self.block(blocks[x[r] % 2], x, {r} & active)[r] for r in range(len(x))]
            case "jit" | "checkpoint":
                return self.block(blocks[0], x, active)
            case "vmap":
                return self.block(blocks[0], x, set())  # what differs by element is not assigned, see `Replica.vmapped`
            case _:
                for _ in range(k):
                    x = self.block(blocks[0], x, active)
        return x


class Replica:
    """What one replica does."""

    def __init__(self) -> None:
        self.total = replicant.Variable(0, aggregation="SUM")
        self.first = replicant.Variable(1, aggregation="ONLY_FIRST_REPLICA")
        self.count = replicant.Variable(0)
        self.own = replicant.Variable(0, synchronization="ON_READ", aggregation="SUM")
        self.held = replicant.Variable(0, synchronization="ON_READ", aggregation="SUM")
        self.quiet = False

    def block(self, block: Block, x: Any) -> Any:
        for statement in block:
            x = self.statement(statement, x)
        return x

    def statement(self, s: Statement, x: Any) -> Any:
        k, blocks = s.number, s.blocks
        match s.kind:
            case "scale":
                return (x * (k + 1) + k) % MODULUS
            case "own":
                if not self.quiet:
                    self.own.assign((self.own + x * k) % MODULUS)
            case "read":
                return (x + self.own + self.total) % MODULUS
            case "total":
                self.total.assign_add(x * k)
            case "first":
                self.first.assign((x + k) % MODULUS)
            case "count":
                self.count.assign_add(k)
            case "exchange":
                return (x + replicant.get_replica_context().all_reduce("SUM", x)) % MODULUS
            case "psum":
                return (x + jax.lax.psum(x, "replica")) % MODULUS
            case "mirrored":
                return (x + self.first) % MODULUS
            case _:
                return self.controlled(s.kind, k, [lambda x, b=b: self.block(b, x) for b in blocks], x)
        return x

    def controlled(self, kind: str, k: int, blocks: list[Callable[[Any], Any]], x: Any) -> Any:
        first = blocks[0]
        match kind:
            case "cond":
                return jax.lax.cond(self.count % 2 == 0, blocks[0], blocks[1], x)
            case "keras cond":
                return keras.ops.cond(self.count % 2 == 0, lambda: blocks[0](x), lambda: blocks[1](x))
            case "switch":
                return jax.lax.switch(self.count % 3, blocks, x)
            case "local branch":
                return jax.lax.cond(x % 2 == 0, blocks[0], blocks[1], x)
            case "jit":
                return jax.jit(first)(x)
            case "checkpoint":
                return jax.checkpoint(first)(x)
            case "for":
                return jax.lax.fori_loop(0, k, lambda _, x: first(x), x)
            case "scan":
                return jax.lax.scan(lambda x, _: (first(x), None), x, None, length=k)[0]
            case "while":
                return jax.lax.while_loop(lambda c: c[0] < k, lambda c: (c[0] + 1, first(c[1])), (0, x))[1]
            case "keras while":
                return keras.ops.while_loop(lambda i, _: i < k, lambda i, x: (i + 1, first(x)), (jnp.asarray(0), x))[1]
            case "map":
                return self.mapped(first, k, x)
            case _:
                return self.vmapped(first, x)

    def mapped(self, block: Callable[[Any], Any], k: int, x: Any) -> Any:
        """Call `block` `k` times on what it has returned before: a map that keeps its number in a variable."""
        if self.quiet:
            return jax.lax.fori_loop(0, k, lambda _, x: block(x), x)
        held = self.held
        held.assign(x)
        jax.lax.map(lambda _: held.assign(block(held.value())), jnp.arange(k))
        return held.value()

    def vmapped(self, block: Callable[[Any], Any], x: Any) -> Any:
        before, self.quiet = self.quiet, True
        try:
            return jax.vmap(block)(jnp.stack([x, x + 1]))[0]
        finally:
            self.quiet = before


def check(seed: int) -> None:
    random = np.random.default_rng(seed)
    num_replicas, num_rows = int(random.integers(1, 4)), int(random.integers(1, 8))
    blocks = program(random, 3)
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    with strategy.scope():
        replica = Replica()
    simulator = Simulator(num_replicas)
    data = random.integers(0, 100, num_rows).astype(np.int32)
    size = math.ceil(num_rows / num_replicas)
    (batch,) = strategy.experimental_distribute_dataset([data])

    def step(rows: Any) -> Any:
        return replica.block(blocks, jnp.sum(rows) % MODULUS)

    call = (lambda batch: strategy.run(step, args=(batch,))) if seed % 2 else replicant.function(lambda b: strategy.run(step, (b,)))
    for _ in range(2):
        x = [int(data[r * size : (r + 1) * size].sum()) % MODULUS for r in range(num_replicas)]
        expected = simulator.block(blocks, x, {*range(num_replicas)})
        found = [int(v) for v in strategy.experimental_local_results(call(batch))]
        assert found * (num_replicas if len(found) == 1 else 1) == expected, (seed, blocks)
        state = [int(replica.total), int(replica.first), int(replica.count), int(replica.own)]
        assert state == [simulator.total, simulator.first, simulator.count, sum(simulator.own)], (seed, blocks)


@pytest.mark.both_ways
@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_a_random_program_equals_its_simulation(seed: int) -> None:
    check(seed)
