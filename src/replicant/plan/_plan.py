"""A plan: what a training step will do on devices that nobody has paid for yet."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._plan_mode import Held, zeros
from ..errors import DatasetError
from ..input.sharding._plan import InputPlan
from ..replicas._values import PerReplica, is_array, map_replicas
from . import _tell
from ._chips import Chip, Target, parse_target
from ._compile import Compiled, Step, compile_step, find_step
from ._cpu import measured_cpu
from ._estimate import ASSUMPTIONS, Times, scaling, times_of
from ._exchanges import ring_bytes
from ._waiting import waiting

MOST_DEVICES = 1024  # at least, in the table of scaling


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """What a training step will do.

    Attributes:
        target: the topology.
        batch: shapes of the batch's components, of one replica.
        weights, optimizer_state, other_state, batch_bytes: bytes on each device.
        sliced_state: what `optimizer_state` would be with ``shard_optimizer_state=True``.
        compiled: what the compiler counted.
        chip: what one device can do.
        inputs: who reads what of each dataset that is trained on; a text where that cannot be shared so.
    """

    target: Target
    batch: tuple[tuple[int, ...], ...]
    weights: int
    optimizer_state: int
    other_state: int
    batch_bytes: int
    sliced_state: int
    compiled: Compiled
    chip: Chip
    inputs: tuple[InputPlan | str, ...] = ()

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
    def missing_bytes(self) -> int:
        """Bytes by which a device's memory is too small; 0 if it is not."""
        return max(0, math.ceil(self.bytes_per_device - self.chip.memory))

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of the results of all exchanges of a step, on each device."""
        return sum(x.num_bytes for x in self.compiled.exchanges)

    @property
    def times(self) -> Times:
        """Estimated seconds of the parts of a step."""
        return times_of(self.chip, **self._work(), num_devices=self.target.num_devices)

    @property
    def seconds(self) -> float:
        """Seconds of a step: measured where the devices are there (a CPU topology), else estimated."""
        return self.times.step if self.compiled.measured is None else self.compiled.measured

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
            "exchanged_bytes": ring_bytes(self.compiled.exchanges) or float(self.weights),
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
                "missing_bytes": self.missing_bytes,
                "optimizer_state_if_sliced": self.sliced_state,
                "input": [x if isinstance(x, str) else x.to_dict() for x in self.inputs],
                "flops_per_device": self.compiled.flops,
                "memory_traffic_per_device": self.compiled.memory_bytes,
                "exchanges": [dataclasses.asdict(x) for x in self.compiled.exchanges],
                "seconds": {**dataclasses.asdict(times), "step": self.seconds},
                "step_is_measured": self.compiled.measured is not None,
                "bound": times.bound,
                "source": self.compiled.source,
                "assumptions": list(ASSUMPTIONS),
                "scaling": [{"devices": n, "seconds": t.step, "efficiency": round(e, 4)} for n, t, e in self.scaling()],
            },
            indent=1,
        )

    def __str__(self) -> str:
        return _tell.as_text(self)

    def __repr__(self) -> str:
        return _tell.in_short(self)

    def _repr_html_(self) -> str:
        return _tell.as_html(self)


def make_plan(program: Callable[[], Any], topology: str, *, quick: bool = False) -> Plan:
    """What the first training step of a program will do on a topology.

    Args:
        program: called without arguments; makes a strategy, a model and data, and trains: by ``model.fit``, or by
            ``strategy.run`` of a function that assigns trainable variables. It gets as many replicas as the topology has devices,
            and is left at its first training step, which is compiled and not computed.
        topology: "cpu:8", "gpu:8xh100", "v5e:16x16", "v6e:16x16*4" (four slices).
        quick: for TPUs, let XLA optimise little. A large model is planned in a tenth of the time; its memory traffic is then only
            roughly that of the program that will run.

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
    with waiting("plan"):
        return plan_of(find_step(program, target), target, quick=quick)


def plan_run(strategy: Any, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], topology: str) -> Plan:
    """What ``strategy.plan`` returns: the plan of ``strategy.run(fn, args, kwargs)``, or of a compiled function called so."""
    target = parse_target(topology)
    args, kwargs = _for_replicas((tuple(args), kwargs), strategy.num_replicas_in_sync, target.num_devices)

    def program() -> None:
        if hasattr(fn, "python_function"):
            with strategy.scope():
                fn(*args, **kwargs)
        else:
            strategy.run(fn, args, kwargs)

    with waiting("plan"):
        return plan_of(find_step(program, target, strategy), target)


def _for_replicas(values: Any, before: int, num_replicas: int) -> Any:
    """`values` with a row for each of `num_replicas` in what had one for each of `before`, all of the first one's shape."""

    def spread(leaf: Any) -> Any:
        if isinstance(leaf, PerReplica):
            first = leaf.values[0]
            shape, dtype = np.shape(first), getattr(first, "dtype", None) or np.asarray(first).dtype
            rows = zeros((num_replicas, *shape), dtype)
            return rows[0] if num_replicas == 1 else PerReplica.from_stacked(rows)
        if before == 1 and num_replicas > 1 and is_array(leaf) and leaf.ndim > 0:  # one replica has its batch bare
            return PerReplica.from_stacked(zeros((num_replicas, *leaf.shape), leaf.dtype))
        return leaf

    return map_replicas(spread, values)


def plan_of(step: Step, target: Target, *, quick: bool = False) -> Plan:
    """The plan of a step that was found."""
    n = target.num_devices
    held, sliced = step.held(target), step.held(target, slices_slots=True)
    compiled = compile_step(step, target, quick=quick)
    return Plan(
        target,
        tuple(_share(x, n) for x in held if x.kind == "batch" and x.shape),
        _bytes(held, "weights", n),
        _bytes(held, "optimizer state", n),
        _bytes(held, "other state", n),
        _bytes(held, "batch", n) * (n if target.kind == "cpu" else 1),
        _bytes(sliced, "optimizer state", n),
        compiled,
        target.chip or measured_cpu(),
        tuple(_shared(explain, target) for explain in step.inputs),
    )


def _shared(explain: Callable[[int, int], InputPlan], target: Target) -> InputPlan | str:
    try:
        return explain(*target.workers)
    except DatasetError as error:
        return str(error)


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
            whole = dataclasses.replace(x, shape=_share(x, num_replicas)).num_bytes
            total += whole // num_replicas if x.layout == "sliced" else whole
    return total
