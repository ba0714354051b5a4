"""Compiling a training step for devices that are not there, and reading what the compiler says about it."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._placement import Placement
from .._planning import Held, Planning, StepFound, planning
from ..errors import ConfigurationError, ContextError
from ._chips import Chip, Target
from ._exchanges import Exchange, exchanges_in


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler says about one step, for each device. `source` says where the figures come from."""

    source: str
    flops: float
    memory_bytes: float
    temporary_bytes: int
    code_bytes: int
    exchanges: tuple[Exchange, ...]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Step:
    """A program's first training step, and the strategies that the program made."""

    found: StepFound
    strategies: tuple[Any, ...]

    def lower(self, placement: Placement) -> Any:
        """The step for the devices of `placement`."""
        before = [strategy._placement for strategy in self.strategies]
        for strategy in self.strategies:
            strategy._placement = placement
        try:
            return self.found.lower(placement)
        finally:
            for strategy, old in zip(self.strategies, before, strict=True):
                strategy._placement = old


def find_step(program: Callable[[], Any], target: Target) -> Step:
    """Run `program` up to its first training step, with as many replicas as the target has devices.

    Raises ContextError if it ends without one.
    """
    here = jax.local_devices(backend="cpu")[0]
    # Only shapes matter: all replicas on one device of this machine.
    placement = Placement((here,) * target.num_devices, fused=target.num_devices > 1)
    with planning(Planning(placement)) as plan:
        try:
            program()
        except StepFound as found:
            return Step(found, tuple(plan.strategies))
    raise ContextError(
        "The program ended without a training step under a strategy: nothing was trained by model.fit, nor by strategy.run "
        "of a function that assigns trainable variables."
    )


def compile_step(step: Step, target: Target) -> Compiled:
    """Compile the step for its target: for TPUs by libtpu, ahead of time; else for the CPU of this machine, whose counts serve."""
    began = time.perf_counter()
    if target.kind == "tpu":
        compiled = step.lower(Placement(tuple(_tpu_devices(target)))).compile()
        share, source = 1, f"compiled for {target.num_devices} x {_name(target.chip)}"
        exchanges = exchanges_in(compiled.as_text())
    else:
        here = jax.local_devices(backend="cpu")[0]
        compiled = step.lower(Placement((here,) * target.num_devices, fused=target.num_devices > 1)).compile()
        share, source = target.num_devices, "counted in the program for this machine's CPU"
        if target.kind == "cpu":  # whose cores all replicas share
            share = 1
        exchanges = _gradients_of(step.found.held) if target.kind == "gpu" and target.num_devices > 1 else []
    cost, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    return Compiled(
        source,
        cost.get("flops", 0.0) / share,
        cost.get("bytes accessed", 0.0) / share,
        memory.temp_size_in_bytes // share,
        memory.generated_code_size_in_bytes if target.kind == "tpu" else 0,
        tuple(exchanges),
        time.perf_counter() - began,
    )


def _name(chip: Chip | None) -> str:
    return chip.name if chip is not None else "this machine's CPU"


def _gradients_of(held: tuple[Held, ...]) -> list[Exchange]:
    total = sum(int(np.prod(x.shape)) * jnp.dtype(x.dtype).itemsize for x in held if x.kind == "weights")
    return [Exchange("all-reduce", total, 0)]


def _tpu_devices(target: Target) -> list[Any]:
    from jax.experimental import topologies

    generation = target.text.strip().lower().partition(":")[0]
    extra = {"num_slices": target.num_slices} if target.num_slices > 1 else {}
    try:
        with _offline():
            description = topologies.get_topology_desc(platform="tpu", topology_name=f"{generation}:{target.shape}", **extra)
    except Exception as error:
        raise ConfigurationError(
            f"{target.text!r} needs libtpu, which compiles for TPUs on any machine: pip install 'replicant[tpu-plan]'. If it "
            f"is installed, it does not know this topology. It says: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from error
    return list(description.devices)


@contextmanager
def _offline() -> Iterator[None]:
    """Libtpu would ask a cloud's server about this machine, unless it is told."""
    added = {name: value for name, value in _TOLD.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


_TOLD = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}


def measured_cpu() -> Chip:
    """What this machine's CPU can do, from half a second of matrix products and copies."""
    size, words = 1024, 1 << 24
    a = jnp.ones((size, size), jnp.float32)
    flops = 2 * size**3 / _seconds(jax.jit(lambda a: a @ a), a)
    row = jnp.ones((words,), jnp.float32)
    rate = 2 * 4 * words / _seconds(jax.jit(lambda row: row + 1), row)
    return Chip("this machine's CPU", flops, _memory(), rate, float("inf"), 1 << 30, float("inf"))


def _seconds(fn: Any, argument: Any) -> float:
    fn(argument).block_until_ready()
    times = []
    for _ in range(8):
        began = time.perf_counter()
        fn(argument).block_until_ready()
        times.append(time.perf_counter() - began)
    return min(times)


def _memory() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
