"""Compiles a training step for devices that this machine does not have, and reads what the compiler says about it."""

import dataclasses
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax

from .. import kernels
from ..errors import ConfigurationError, ContextError
from ..replicas._context import default_strategy
from ..replicas._placement import Placement
from ..replicas._planning import Held, Planning, StepFound
from . import _analysis_cache
from ._chips import Chip, Target
from ._cpu import step_seconds
from ._exchanges import Exchange, exchanges_in
from ._stages import stage

# The option for the least effort of XLA. Up to JAX 0.10 it is a number from -1 to 1. Later versions refuse this option as unknown.
_QUICK: dict[str, Any]
_QUICK = {"exec_time_optimization_effort": -1.0} if jax.__version_info__ < (0, 11) else {"optimization_level": "O0"}


@dataclasses.dataclass(frozen=True)
class Analysis:
    """What the compiler says about one step, for each device.

    Args:
        source: Where the figures come from.
        flops: The number of operations.
        memory_bytes: The bytes that are read and written.
        temporary_bytes: The bytes of temporary arrays.
        code_bytes: The bytes of the program itself.
        exchanges: The exchanges with other devices.
        seconds: The seconds that compiling took.
        measured: The measured seconds of the step, for the CPU of this machine.
    """

    source: str
    flops: float
    memory_bytes: float
    temporary_bytes: int
    code_bytes: int
    exchanges: tuple[Exchange, ...]
    seconds: float
    measured: float | None = None


@dataclasses.dataclass(frozen=True)
class FoundStep:
    """A program's first training step, with the strategies and datasets of the program."""

    found: StepFound
    strategies: tuple[Any, ...]
    inputs: tuple[Callable[[int, int], Any], ...]

    @property
    def model_parallel_size(self) -> int:
        """The number of devices of each replica."""
        return self.found.cuts["model_parallel_size"]

    def held(self, target: Target, *, slices_slots: bool = False) -> tuple[Held, ...]:
        """Return the arrays of the step. `slices_slots` cuts optimizer state into slices even if the program does not."""
        return self.held_on(_stand_ins(target, fused=target.kind == "cpu"), slices_slots=slices_slots)

    def held_on(self, placement: Placement, *, slices_slots: bool = False) -> tuple[Held, ...]:
        """Return the arrays of the step, as they lie on the devices of `placement`."""
        placement = self._placed(placement)
        return tuple(self.found.held(dataclasses.replace(placement, slices_slots=slices_slots or placement.slices_slots)))

    def _placed(self, placement: Placement) -> Placement:
        return dataclasses.replace(placement, **self.found.cuts)

    def lower(self, placement: Placement) -> Any:
        """Lower the step for the devices of `placement`."""
        placement = self._placed(placement)
        with ExitStack() as stack:
            for strategy in self.strategies:
                stack.enter_context(strategy.on(placement))
            return self.found.lower(placement)


def find_step(program: Callable[[], Any], target: Target, strategy: Any = None, *, keeps: bool = False) -> FoundStep:
    """Run `program` up to its first training step, with as many replicas as the target has devices.

    Args:
        program: A function that makes its strategy, or uses `strategy`.
        target: The devices to plan for.
        strategy: A strategy that exists already. It gets the target's devices while the program runs.
        keeps: Whether the program's objects are the user's, who goes on with them. Large variables that they have made then get
            their initial values after all.

    Raises:
        ContextError: If the program ends without a training step.
    """
    stage("running the program up to its first training step")
    plan, default = Planning(_stand_ins(target, fused=True).devices), default_strategy()
    with ExitStack() as stack:
        stack.enter_context(default.on(dataclasses.replace(default.placement, planning=plan)))
        if strategy is not None:
            plan.strategies.append(strategy)
            stack.enter_context(strategy.on(strategy.placement.planned(plan)))
        try:
            program()
        except StepFound as step:
            found = step
        else:
            found = None
    if keeps:
        for initialize in plan.uninitialized:
            initialize()
    if found is not None:
        return FoundStep(found, tuple(plan.strategies), tuple(plan.inputs))
    raise ContextError(
        "The program ended without a training step under a strategy. Train with model.fit, or with strategy.run of a function that "
        "assigns trainable variables."
    )


def _stand_ins(target: Target, *, fused: bool) -> Placement:
    """Let one device of this machine stand for all devices of the target, because only shapes matter."""
    here = jax.local_devices(backend="cpu")[0]
    return Placement((here,) * target.num_devices, fused=fused and target.num_devices > 1)


def compile_step(step: FoundStep, target: Target, *, quick: bool = False) -> Analysis:
    """Compile the step and count what it does.

    For TPUs, libtpu compiles it ahead of time. Otherwise it is compiled for the CPU of this machine, whose counts are used.

    Args:
        step: The step.
        target: The devices to plan for.
        quick: Whether to compile for TPUs with little effort.
    """
    began = time.perf_counter()
    if target.kind == "tpu":
        return _for_tpu(step, target, began, quick=quick)
    stage("compiling the step for this machine's CPU")
    if target.kind == "gpu":
        with kernels.disabled():  # XLA cannot count what the kernels do
            compiled = step.lower(_stand_ins(target, fused=True)).compile()
        source, n = "counted in the program for this machine's CPU", target.num_devices
        counted = _counted(compiled, n, source, _exchanges_by_rule(step, target), began)
        # The program holds the gradients once, and so does each device. The other temporaries are divided among the devices.
        whole = compiled.memory_analysis().temp_size_in_bytes
        gradients = min(whole, sum(x.num_bytes for x in step.held(target) if x.kind == "weights"))
        return dataclasses.replace(counted, temporary_bytes=gradients + (whole - gradients) // n)
    compiled = step.lower(_stand_ins(target, fused=True)).compile()  # for the CPU, whose cores all replicas share
    counted = _counted(compiled, 1, "compiled for this machine's CPU", (), began)
    with kernels.disabled():
        cost = step.lower(_stand_ins(target, fused=True)).cost_analysis() or {}
    stage("measuring the step")
    return dataclasses.replace(counted, flops=cost.get("flops", 0.0), measured=step_seconds(compiled))


def _for_tpu(step: FoundStep, target: Target, began: float, *, quick: bool) -> Analysis:
    what = f"{target.num_devices} x {_name(target.chip)}"
    stage(f"lowering the step for {what}")
    lowered = step.lower(Placement(tuple(_tpu_devices(target))))
    key = _analysis_cache.key_of(lowered.as_text(), target.text, quick)
    if (known := _analysis_cache.find(key)) is not None:
        return Analysis(**known | {"source": f"{known['source']}, at an earlier time", "seconds": time.perf_counter() - began})
    stage(f"compiling the step for {what}")
    try:
        with _not_kept_by_jax():
            compiled = lowered.compile(_QUICK) if quick else lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        found = _TOO_LARGE.search(str(error))
        if found is None:
            raise
        analysis = _too_large(step, target, int(float(found[1]) * _UNITS[found[2]]), began)
    else:
        source = f"compiled for {what}" + (" with little effort" if quick else "")
        counted = _counted(compiled, 1, source, exchanges_in(compiled.as_text()), began)
        analysis = dataclasses.replace(counted, code_bytes=compiled.memory_analysis().generated_code_size_in_bytes)
    _analysis_cache.keep(key, analysis)
    return analysis


@contextmanager
def _not_kept_by_jax() -> Iterator[None]:
    """Keep JAX from caching a program of 25 MB and more for absent devices, which it could not read again."""
    config: Any = jax.config  # type checkers do not know its options
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(config, name)
    config.update(name, float("inf"))
    try:
        yield
    finally:
        config.update(name, before)


# The error of XLA for a program whose temporaries alone are larger than the device's memory.
_TOO_LARGE = re.compile(r"RESOURCE_EXHAUSTED.*required for HLO temporaries \(([\d.]+)([KMGT]?)\)", re.DOTALL)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _too_large(step: FoundStep, target: Target, temporary_bytes: int, began: float) -> Analysis:
    """Return what is known of a step that the compiler has refused."""
    n = target.num_devices
    with kernels.disabled():
        cost = step.lower(_stand_ins(target, fused=True)).cost_analysis() or {}
    held = sum(x.num_bytes for x in step.held(target) if x.kind != "batch")
    return Analysis(
        f"of a step that XLA refuses to compile for {n} x {_name(target.chip)}, because it needs too much memory. Operations are "
        "counted before XLA's optimizations, exchanges by rule, and memory traffic as one read and one write of everything held",
        cost.get("flops", 0.0) / n,
        2.0 * (held + temporary_bytes),
        temporary_bytes,
        0,
        tuple(_exchanges_by_rule(step, target)),
        time.perf_counter() - began,
    )


def _counted(compiled: Any, share: int, source: str, exchanges: Sequence[Exchange], began: float) -> Analysis:
    """Return what the compiler counted, divided by `share` devices."""
    cost, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    return Analysis(
        source,
        cost.get("flops", 0.0) / share,
        cost.get("bytes accessed", 0.0) / share,
        memory.temp_size_in_bytes // share,
        0,
        tuple(exchanges),
        time.perf_counter() - began,
    )


def _name(chip: Chip | None) -> str:
    return chip.name if chip is not None else "this machine's CPU"


def _exchanges_by_rule(step: FoundStep, target: Target) -> list[Exchange]:
    """Return what the replicas of a step exchange.

    That is one all-reduce of all gradients and, with sliced optimizer state, one all-gather of the weights updated in slices.
    Weights that lie in slices are gathered for each direction, and their gradients are summed by a reduce-scatter.
    """
    if target.num_devices == 1:
        return []
    held = step.held(target)
    weights = [x for x in held if x.kind == "weights"]
    total = sum(x.num_bytes for x in weights)
    if not any(x.layout == "sliced" for x in held):
        return [Exchange("all-reduce", total, 0)]
    cut = sum(x.num_bytes for x in weights if x.layout == "sliced")
    if cut:
        k = step.model_parallel_size
        n, gathers = target.num_devices // k, [Exchange("all-gather", cut // k, 0)] * 2
        return [*gathers, Exchange("reduce-scatter", cut // (n * k), n), Exchange("all-reduce", total - cut, 0)]
    sliced = {x.shape for x in held if x.layout == "sliced"}
    return [Exchange("all-reduce", total, 0), Exchange("all-gather", sum(x.num_bytes for x in weights if x.shape in sliced), 0)]


def _tpu_devices(target: Target) -> list[Any]:
    from jax.experimental import topologies

    generation = target.text.strip().lower().partition(":")[0]
    extra = {"num_slices": target.num_slices} if target.num_slices > 1 else {}
    try:
        with _offline():
            description = topologies.get_topology_desc(platform="tpu", topology_name=f"{generation}:{target.shape}", **extra)
    except Exception as error:
        raise ConfigurationError(
            f"{target.text!r} needs libtpu, which compiles for TPUs on any machine: pip install 'replicant-jax[tpu-plan]'. If it "
            f"is installed, it does not know this topology. Its error is: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from error
    return list(description.devices)


@contextmanager
def _offline() -> Iterator[None]:
    """Keep libtpu from asking the cloud's metadata server about this machine."""
    added = {name: value for name, value in _LIBTPU_ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


_LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # of this host, which has no TPU, but libtpu warns if this is not set
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # compiling needs no TPU, so several processes may compile at a time
}
