"""``Plan``: what a training step will do on devices that nobody has paid for yet, as numbers and as text."""

import dataclasses
import json
import math
import re
from typing import Protocol

from .._display import columns, curve, table
from ..input.sharding._plan import InputPlan
from ._chips import Chip, Target
from ._compile import Analysis
from ._estimate import ASSUMPTIONS, Times, scaling, times_of
from ._exchanges import ring_bytes

MOST_DEVICES = 1024  # the table of scaling goes at least this far
_MIB, _GIB = 1 << 20, 1 << 30
_WORKERS_SHOWN = 2  # the first workers that are shown, besides the last one
# Five or more equal shares, and five or more numbers of replicas.
_SHARES = re.compile(r"\b(\d+)((?: \+ \1){4,})\b")
_REPLICAS = re.compile(r"replicas (\d+)(?:, \d+){3,}, (\d+);")


class HeldBytes(Protocol):
    """The bytes of what a device holds in a step."""

    @property
    def weights(self) -> int: ...
    @property
    def untrained_weights(self) -> int: ...
    @property
    def optimizer_state(self) -> int: ...
    @property
    def other_state(self) -> int: ...
    @property
    def gradients(self) -> int: ...


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """What a training step will do.

    Attributes:
        target: The topology.
        batch: The shapes of the arrays in one replica's batch.
        weights: The bytes of the weights on each device.
        optimizer_state: The bytes of the optimizer's state on each device.
        untrained_weights: The bytes of the weights that are not trained, on each device.
        other_state: The bytes of metrics and other state on each device.
        batch_bytes: The bytes of the batch on each device; on a CPU, of the global batch.
        sliced_state: What `optimizer_state` would be with ``shard_optimizer_state=True``.
        compiled: What the compiler counted.
        chip: The figures of one device.
        inputs: For each dataset that is trained on, who reads what, or the reason why the workers cannot share it.
        model_parallel_size: The number of devices of each replica.
    """

    target: Target
    batch: tuple[tuple[int, ...], ...]
    weights: int
    optimizer_state: int
    untrained_weights: int
    other_state: int
    batch_bytes: int
    sliced_state: int
    compiled: Analysis
    chip: Chip
    inputs: tuple[InputPlan | str, ...] = ()
    model_parallel_size: int = 1

    @property
    def bytes_per_device(self) -> int:
        """The bytes that each device must hold at once."""
        held = self.weights + self.untrained_weights + self.optimizer_state + self.other_state + self.batch_bytes
        return held + self.compiled.temporary_bytes + self.compiled.code_bytes

    @property
    def gradients(self) -> int:
        """The bytes of the gradients on each device, which are part of the temporary arrays."""
        return of_which_gradients(self.weights, self.compiled.temporary_bytes)

    @property
    def fits(self) -> bool:
        """Whether this fits into the memory of a device."""
        return self.bytes_per_device <= self.chip.memory

    @property
    def missing_bytes(self) -> int:
        """The bytes by which the memory of a device is too small; 0 if it is large enough."""
        return max(0, math.ceil(self.bytes_per_device - self.chip.memory))

    @property
    def exchanged_bytes(self) -> int:
        """The bytes of the results of all exchanges of a step, on each device."""
        return sum(x.num_bytes for x in self.compiled.exchanges)

    @property
    def times(self) -> Times:
        """The estimated seconds of the parts of a step."""
        return times_of(self.chip, **self._work(), num_devices=self.target.num_devices)

    @property
    def seconds(self) -> float:
        """The seconds of a step: measured on a CPU, otherwise estimated."""
        return self.times.step if self.compiled.measured is None else self.compiled.measured

    @property
    def examples_per_step(self) -> int:
        """The size of the global batch."""
        return (self.batch[0][0] if self.batch and self.batch[0] else 1) * (self.target.num_devices // self.model_parallel_size)

    def scaling(self) -> list[tuple[int, Times, float]]:
        """Return (devices, times, efficiency) for 1, 2, 4, ... devices with the same batch each.

        The list is empty on a CPU, where all replicas share the cores.
        """
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
        """Return the plan as JSON, with counts in bytes, operations and seconds."""
        times = self.times
        return json.dumps(
            {
                "topology": self.target.text,
                "devices": self.target.num_devices,
                "batch_per_replica": [list(shape) for shape in self.batch],
                "bytes_per_device": {
                    "weights": self.weights,
                    "untrained_weights": self.untrained_weights,
                    "optimizer_state": self.optimizer_state,
                    "other_state": self.other_state,
                    "batch": self.batch_bytes,
                    "temporary": self.compiled.temporary_bytes,
                    "gradients": self.gradients,
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
        return _as_text(self)

    def __repr__(self) -> str:
        return _in_short(self)

    def _repr_html_(self) -> str:
        return _as_html(self)


def _as_text(plan: Plan) -> str:
    """Show the plan, its table of scaling, and what was assumed."""
    lines = columns(_rows_of(plan), left=(0, 1))
    return "\n".join([*lines, "", *_scaling(plan), "", *[f"Assumed: {text}." for text in ASSUMPTIONS]])


def _in_short(plan: Plan) -> str:
    """Show the plan in one line."""
    fits = "fits" if plan.fits else f"does not fit, by {size(plan.missing_bytes)}"
    return f"<Plan for {plan.target.text}: {size(plan.bytes_per_device)} per device, {fits}; {time(plan.seconds)} per step>"


def _as_html(plan: Plan) -> str:
    """Show the plan and its scaling as two tables, with a picture of the scaling."""
    found = plan.scaling()
    rows = [(str(n), time(t.step), f"{e:.1%}") for n, t, e in found]
    picture = curve("efficiency by the number of devices", [(n, e) for n, _, e in found])
    return table(_rows_of(plan)) + (table(rows, head=("devices", "step", "efficiency")) + picture if rows else "")


def _rows_of(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of the plan's table, each with a name and a value."""
    return [*_subject(plan), *_memory(plan), *_work(plan), *_times(plan)]


def _subject(plan: Plan) -> list[tuple[str, str]]:
    shapes = ", ".join("x".join(map(str, shape)) for shape in plan.batch)
    rows = [
        ("topology", f"{plan.target.text}: {plan.target.num_devices} x {plan.chip.name}"),
        ("batch per replica", f"{shapes} (global batch {plan.examples_per_step})"),
    ]
    for number, found in enumerate(plan.inputs, 1):
        name = f"who reads what, of dataset {number}" if len(plan.inputs) > 1 else "who reads what"
        texts = [found] if isinstance(found, str) else _input_lines(found)
        rows += [(name if i == 0 else "", text) for i, text in enumerate(texts)]
    return rows


def _input_lines(plan: InputPlan) -> list[str]:
    """Show an input plan in a few lines; of many workers only the first ones and the last."""
    _, policy, *rest = (_short(line.strip()) for line in str(plan).splitlines())
    workers = rest[1:]
    if len(workers) > _WORKERS_SHOWN + 2:
        workers = [*workers[:_WORKERS_SHOWN], f"... {len(workers) - _WORKERS_SHOWN - 1} more ...", workers[-1]]
    return [policy, *workers]


def _short(line: str) -> str:
    """Shorten a line about a worker that says the same about many replicas.

    >>> _short("worker 0: replicas 0, 1, 2, 3, 4, 5; reads everything; rows per batch: 8 + 8 + 8 + 8 + 8 + 8; of the last: 3 + 2")
    'worker 0: replicas 0 to 5; reads everything; rows per batch: 6 times 8; of the last: 3 + 2'
    """
    line = _REPLICAS.sub(r"replicas \1 to \2;", line)
    return _SHARES.sub(lambda match: f"{match[2].count('+') + 1} times {match[1]}", line)


def _memory(plan: Plan) -> list[tuple[str, str]]:
    on_cpu = plan.target.kind == "cpu"
    rows = [
        *memory_rows(plan, plan.batch_bytes, plan.compiled.temporary_bytes),
        ("the machine holds" if on_cpu else "each device holds", f"{size(plan.bytes_per_device)} of {size(plan.chip.memory)}"),
        ("does it fit", _fits(plan.bytes_per_device, plan.chip.memory)),
    ]
    saved = plan.optimizer_state - plan.sliced_state
    if not plan.fits and saved > 0:
        less = plan.bytes_per_device - saved
        # There may be fewer temporaries, too, because the update is then computed in slices.
        rows.append(("with shard_optimizer_state=True", f"at most {size(less)}, optimizer state {size(plan.sliced_state)}"))
        rows.append(("does it fit then", "yes" if less <= plan.chip.memory else "not certain: plan with it"))
    return rows


def memory_rows(held: HeldBytes, batch: int, temporary: int) -> list[tuple[str, str]]:
    """Return the rows that say what a device holds in a step: those of `held`, and the bytes of the batch and of temporaries."""
    return [
        ("weights", size(held.weights)),
        *([("weights that are not trained", size(held.untrained_weights))] if held.untrained_weights else []),
        ("optimizer state", size(held.optimizer_state)),
        ("metrics and other state", size(held.other_state)),
        ("batch", size(batch)),
        ("activations and other temporaries", size(temporary)),
        ("of which gradients", size(held.gradients)),
    ]


def of_which_gradients(weights: int, temporary: int) -> int:
    """Return how many bytes of the temporary arrays are gradients: as many as the trained weights have, if there are so many."""
    return min(weights, temporary)


def _fits(needed: float, there: float) -> str:
    return "yes" if needed <= there else f"NO, by {size(needed - there)}"


def _work(plan: Plan) -> list[tuple[str, str]]:
    kinds: dict[str, list[int]] = {}
    for exchange in plan.compiled.exchanges:
        kinds.setdefault(exchange.kind, []).append(exchange.num_bytes)
    listing = ", ".join(
        f"{len(each)} {kind}" + (f" of {size(sum(each))}" if len(kinds) > 1 else "") for kind, each in kinds.items()
    )
    who = "operations" if plan.target.kind == "cpu" else "operations per device"
    return [
        (
            "exchanged per step" if plan.target.kind == "cpu" else "exchanged per step and device",
            f"{size(plan.exchanged_bytes)} ({listing or 'none'})",
        ),
        (who, operations(plan.compiled.flops)),
        ("memory traffic" if plan.target.kind == "cpu" else "memory traffic per device", size(plan.compiled.memory_bytes)),
    ]


def _times(plan: Plan) -> list[tuple[str, str]]:
    times, measured = plan.times, plan.compiled.measured
    parts = f"compute {time(times.compute)} beside memory {time(times.memory)}, then network {time(times.network)}"
    return [
        ("estimated step", time(times.step)) if measured is None else ("step, measured on zeros", time(measured)),
        ("of which" if measured is None else "by rates", parts),
        ("bound by", times.bound),
        ("examples per second", f"{plan.examples_per_step / plan.seconds:,.0f}" if plan.seconds else "-"),
        ("figures", f"{plan.compiled.source}, in {plan.compiled.seconds:.1f} s"),
    ]


def _scaling(plan: Plan) -> list[str]:
    if plan.target.kind == "cpu":
        return ["All replicas share this machine's cores: more of them do not compute faster."]
    rows = [f"{'devices':>8}  {'step':>10}  efficiency"]
    for n, times, efficiency in plan.scaling():
        rows.append(f"{n:>8}  {time(times.step):>10}  {efficiency:6.1%} {'#' * round(40 * efficiency)}")
    return rows


def operations(number: float) -> str:
    """Format a number of floating-point operations.

    >>> operations(1.5e6), operations(2.25e9), operations(1.4416e12)
    ('1.50 MFLOP', '2.25 GFLOP', '1,441.60 GFLOP')
    """
    return f"{number / 1e6:,.2f} MFLOP" if number < 1e8 else f"{number / 1e9:,.2f} GFLOP"


def size(num_bytes: float) -> str:
    """Format a number of bytes.

    >>> size(20), size(1536), size(3 << 20), size(20 << 30)
    ('20 bytes', '1.5 KiB', '3.0 MiB', '20.0 GiB')
    """
    if num_bytes < 1024:
        return f"{num_bytes:.0f} bytes"
    if num_bytes < _MIB:
        return f"{num_bytes / 1024:,.1f} KiB"
    return f"{num_bytes / _MIB:,.1f} MiB" if num_bytes < _GIB else f"{num_bytes / _GIB:,.1f} GiB"


def time(seconds: float) -> str:
    """Format seconds.

    >>> time(0.0000015), time(0.25), time(3)
    ('1.5 us', '250.00 ms', '3.00 s')
    """
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.2f} ms" if seconds < 1 else f"{seconds:,.2f} s"
