"""What accelerators can do, from their makers' data sheets, and the topologies that are named after them.

The figures of TPUs are from cloud.google.com/tpu/docs. There, the 4,800 Gbit/s between chips of a v5p are 1,200 GB/s in both
directions together, so they count in one direction here. Google gives no network rate for v4, which gets that of v5p. Each GPU is
assumed to have one network card, with 200 Gbit/s for an A100 and 400 for the others.
"""

import dataclasses
import math
import re

from ..errors import ArgumentError

GIB = 1 << 30
_GBIT = 1e9 / 8  # bytes per second


@dataclasses.dataclass(frozen=True)
class Chip:
    """The figures of one device.

    Args:
        name: The name of the device.
        flops: Operations per second of its matrix units, in bfloat16.
        memory: The size of its memory in bytes.
        memory_rate: Bytes per second to and from its memory.
        link_rate: Bytes per second to its neighbours, in one direction, over all links together.
        group: The number of devices that these links join.
        network_rate: Bytes per second and device beyond such a group.
        per_host: The number of devices that one process drives.
    """

    name: str
    flops: float
    memory: float
    memory_rate: float
    link_rate: float
    group: int
    network_rate: float
    per_host: int


CHIPS = {
    # name: bf16 FLOP/s, memory, memory bytes/s, link bytes/s, devices that links join, network bytes/s, devices per host
    "v4": Chip("TPU v4", 275e12, 32 * GIB, 1200e9, 2400 * _GBIT, 4096, 50 * _GBIT, 4),
    "v5e": Chip("TPU v5e", 197e12, 16 * GIB, 800e9, 1600 * _GBIT, 256, 25 * _GBIT, 4),
    "v5p": Chip("TPU v5p", 459e12, 95 * GIB, 2765e9, 4800 * _GBIT, 8960, 50 * _GBIT, 4),
    "v6e": Chip("TPU v6e", 918e12, 32 * GIB, 1600e9, 3200 * _GBIT, 256, 100 * _GBIT, 4),
    "a100": Chip("NVIDIA A100 80 GB", 312e12, 80e9, 2039e9, 300e9, 8, 200 * _GBIT, 8),
    "h100": Chip("NVIDIA H100 SXM", 989e12, 80e9, 3350e9, 450e9, 8, 400 * _GBIT, 8),
    "h200": Chip("NVIDIA H200 SXM", 989e12, 141e9, 4800e9, 450e9, 8, 400 * _GBIT, 8),
}


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices that a plan is for.

    Args:
        text: The name of the topology.
        kind: "tpu", "gpu" or "cpu".
        num_devices: The number of devices.
        chip: The figures of one device; None for this machine's CPU.
        shape: The shape of a TPU slice, such as "16x16".
        num_slices: The number of TPU slices.
    """

    text: str
    kind: str
    num_devices: int
    chip: Chip | None
    shape: str | None = None
    num_slices: int = 1

    @property
    def workers(self) -> tuple[int, int]:
        """The number of processes that drive the devices, and the number of devices of each."""
        # A slice of up to eight of the small chips is one host.
        small = self.kind == "tpu" and self.chip in (CHIPS["v5e"], CHIPS["v6e"]) and self.num_devices <= 8
        per_host = self.chip.per_host if self.chip is not None and not small else self.num_devices
        return (self.num_devices // per_host, per_host) if self.num_devices % per_host == 0 else (1, self.num_devices)


_EXAMPLES = "'cpu:8', 'gpu:8xh100', 'v5e:16x16', or 'v5e:16x16*2' for two slices"


def parse_target(text: str) -> Target:
    """Return the devices that the name of a topology means.

    Raises:
        ArgumentError: If it is not such a name.

    >>> parse_target("v5e:16x16").num_devices, parse_target("v6e:16x16*4").num_devices, parse_target("gpu:8xh100").chip.name
    (256, 1024, 'NVIDIA H100 SXM')
    """
    kind, _, rest = text.strip().lower().partition(":")
    if kind == "cpu" and re.fullmatch(r"[1-9]\d*", rest):
        return Target(text, "cpu", int(rest), None)
    if kind == "gpu" and (match := re.fullmatch(r"([1-9]\d*)x(\w+)", rest)) and match[2] in ("a100", "h100", "h200"):
        return Target(text, "gpu", int(match[1]), CHIPS[match[2]])
    if kind.startswith("v") and kind in CHIPS and (match := re.fullmatch(r"([1-9]\d*(?:x[1-9]\d*){1,2})(?:\*([1-9]\d*))?", rest)):
        slices = int(match[2] or 1)
        per_slice = math.prod(map(int, match[1].split("x")))
        return Target(text, "tpu", per_slice * slices, CHIPS[kind], match[1], slices)
    raise ArgumentError(f"{text!r} is not a topology. Write {_EXAMPLES}. Accelerators: {', '.join(sorted(CHIPS))}.")
