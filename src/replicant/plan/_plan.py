"""A plan: what a training step will do on devices that nobody has paid for yet."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from .._planning import Held
from ._chips import Chip, Target, parse_target
from ._compile import Compiled, compile_step, find_step, measured_cpu
from ._estimate import ASSUMPTIONS, Times, scaling, times_of

_MIB = 1 << 20
MOST_DEVICES = 1024  # at least, in the table of scaling


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a training step will do.

    Attributes:
        target: the topology.
        batch: shapes of the batch's components, of one replica.
        weights, optimizer_state, other_state, batch_bytes: bytes on each device.
        compiled: what the compiler counted.
        chip: what one device can do.
    """

    target: Target
    batch: tuple[tuple[int, ...], ...]
    weights: int
    optimizer_state: int
    other_state: int
    batch_bytes: int
    compiled: Compiled
    chip: Chip

    @property
    def bytes_per_device(self) -> int:
        """Bytes that each device must hold at once."""
        held = self.weights + self.optimizer_state + self.other_state + self.batch_bytes
        return held + self.compiled.temporary_bytes + self.compiled.code_bytes

    @property
    def fits(self) -> bool:
        """Whether a device's memory holds it."""
        return self.bytes_per_device <= self.chip.memory

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of each device that are all-reduced in a step."""
        return sum(x.num_bytes for x in self.compiled.exchanges)

    @property
    def times(self) -> Times:
        """Estimated seconds of a step."""
        return times_of(self.chip, **self._work(), num_devices=self.target.num_devices)

    @property
    def examples_per_step(self) -> int:
        """The global batch."""
        return (self.batch[0][0] if self.batch and self.batch[0] else 1) * self.target.num_devices

    def scaling(self) -> list[tuple[int, Times, float]]:
        """(devices, times, efficiency) for 1, 2, 4 ... devices with the same batch each; none on a CPU, whose cores they share."""
        if self.target.kind == "cpu":
            return []
        return scaling(self.chip, **self._work(), most=max(MOST_DEVICES, self.target.num_devices))

    def _work(self) -> dict[str, float]:
        return {
            "flops": self.compiled.flops,
            "memory_bytes": self.compiled.memory_bytes,
            "exchanged_bytes": float(self.exchanged_bytes or self.weights),
        }

    def to_json(self) -> str:
        """The plan as JSON: counts in bytes, operations and seconds."""
        times = self.times
        return json.dumps(
            {
                "topology": self.target.text,
                "devices": self.target.num_devices,
                "batch_per_replica": [list(shape) for shape in self.batch],
                "bytes_per_device": {
                    "weights": self.weights,
                    "optimizer_state": self.optimizer_state,
                    "other_state": self.other_state,
                    "batch": self.batch_bytes,
                    "temporary": self.compiled.temporary_bytes,
                    "code": self.compiled.code_bytes,
                    "all": self.bytes_per_device,
                },
                "fits": self.fits,
                "flops_per_device": self.compiled.flops,
                "memory_traffic_per_device": self.compiled.memory_bytes,
                "exchanges": [dataclasses.asdict(x) for x in self.compiled.exchanges],
                "seconds": {**dataclasses.asdict(times), "step": times.step},
                "bound": times.bound,
                "source": self.compiled.source,
                "assumptions": list(ASSUMPTIONS),
                "scaling": [{"devices": n, "seconds": t.step, "efficiency": round(e, 4)} for n, t, e in self.scaling()],
            },
            indent=1,
        )

    def __str__(self) -> str:
        return "\n".join([*_rows(self), "", *_scaling_rows(self), "", *[f"Assumed: {text}." for text in ASSUMPTIONS]])

    def _repr_html_(self) -> str:
        cells = (line.partition("  ") for line in _rows(self))
        rows = "".join(f"<tr><td>{name.strip()}</td><td>{value.strip()}</td></tr>" for name, _, value in cells)
        return f"<table>{rows}</table>"


def make_plan(program: Callable[[], Any], topology: str) -> Plan:
    """What the first training step of a program will do on a topology.

    Args:
        program: called without arguments; makes a strategy, a model and data, and trains: by ``model.fit``, or by
            ``strategy.run`` of a function that assigns trainable variables. It gets as many replicas as the topology has devices,
            and is left at its first training step, which is compiled and not computed.
        topology: "cpu:8", "gpu:8xh100", "v5e:16x16", "v6e:16x16*4" (four slices).

    Raises ArgumentError for an unknown topology or a first batch that the replicas do not divide, ConfigurationError if libtpu is
    missing, ContextError if nothing is trained.

    >>> import keras, numpy as np, replicant
    >>> def program():
    ...     with replicant.MirroredStrategy().scope():
    ...         model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    ...         model.compile("sgd", "mse")
    ...     model.fit(np.zeros((8, 4)), np.zeros((8, 2)), batch_size=8, verbose=0)
    >>> plan = make_plan(program, "cpu:4")
    >>> plan.batch, plan.weights, plan.examples_per_step
    (((2, 4), (2, 2)), 40, 8)
    """
    target = parse_target(topology)
    step = find_step(program, target)
    compiled = compile_step(step, target)
    n = target.num_devices
    batch = tuple(_share(x, n) for x in step.found.held if x.kind == "batch" and x.shape)
    return Plan(
        target,
        batch,
        _bytes(step.found.held, "weights", n),
        _bytes(step.found.held, "optimizer state", n),
        _bytes(step.found.held, "other state", n),
        _bytes(step.found.held, "batch", n) * (n if target.kind == "cpu" else 1),
        compiled,
        target.chip or measured_cpu(),
    )


def _share(held: Held, num_replicas: int) -> tuple[int, ...]:
    """The shape of one replica's part."""
    if held.layout == "stacked":
        return held.shape[1:]
    if held.layout == "cut" and held.shape and held.shape[0] % num_replicas == 0:
        return (held.shape[0] // num_replicas, *held.shape[1:])
    return held.shape


def _bytes(held: Sequence[Held], kind: str, num_replicas: int) -> int:
    total = 0
    for x in held:
        if x.kind == kind:
            size = math.prod(_share(x, num_replicas)) * jnp.dtype(x.dtype).itemsize
            total += size // num_replicas if x.layout == "sliced" else size
    return total


def _rows(plan: Plan) -> list[str]:
    times, compiled = plan.times, plan.compiled
    fits = "fits" if plan.fits else "DOES NOT FIT"
    kinds: dict[str, int] = {}
    for exchange in compiled.exchanges:
        kinds[exchange.kind] = kinds.get(exchange.kind, 0) + 1
    listing = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    shapes = ", ".join("x".join(map(str, shape)) for shape in plan.batch)
    rows = [
        ("topology", f"{plan.target.text}: {plan.target.num_devices} x {plan.chip.name}"),
        ("batch per replica", f"{shapes} (global batch {plan.examples_per_step})"),
        ("weights", _size(plan.weights)),
        ("optimizer state", _size(plan.optimizer_state)),
        ("metrics and other state", _size(plan.other_state)),
        ("batch", _size(plan.batch_bytes)),
        ("activations and other temporaries", _size(compiled.temporary_bytes)),
        (
            "the machine holds" if plan.target.kind == "cpu" else "each device holds",
            f"{_size(plan.bytes_per_device)} of {_size(plan.chip.memory)}: {fits}",
        ),
        ("exchanged per step and device", f"{_size(plan.exchanged_bytes)} ({listing})"),
        ("operations per device", f"{compiled.flops / 1e9:,.2f} GFLOP"),
        ("memory traffic per device", _size(compiled.memory_bytes)),
        ("estimated step", _time(times.step)),
        ("of which", f"compute {_time(times.compute)} beside memory {_time(times.memory)}, then network {_time(times.network)}"),
        ("bound by", times.bound),
        ("examples per second", f"{plan.examples_per_step / times.step:,.0f}" if times.step else "-"),
        ("figures", f"{compiled.source}, in {compiled.seconds:.1f} s"),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"{name:{width}}  {value}" for name, value in rows]


def _scaling_rows(plan: Plan) -> list[str]:
    if plan.target.kind == "cpu":
        return ["All replicas share this machine's cores: more of them do not compute faster."]
    rows = [f"{'devices':>8}  {'step':>10}  efficiency"]
    for n, times, efficiency in plan.scaling():
        rows.append(f"{n:>8}  {_time(times.step):>10}  {efficiency:6.1%} {'#' * round(40 * efficiency)}")
    return rows


def _size(num_bytes: float) -> str:
    if num_bytes < _MIB:
        return f"{num_bytes / 1024:,.1f} KiB"
    return f"{num_bytes / _MIB:,.1f} MiB" if num_bytes < 10240 * _MIB else f"{num_bytes / (1 << 30):,.1f} GiB"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.2f} ms" if seconds < 1 else f"{seconds:,.2f} s"
