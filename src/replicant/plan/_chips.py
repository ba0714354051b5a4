"""What accelerators can do, from their makers' data sheets, and the topologies that are named after them."""

import dataclasses
import math
import re

from ..errors import ArgumentError

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device.

    flops: operations per second of its matrix units, in bfloat16. memory: bytes. memory_rate, link_rate: bytes per second, to its
    memory, and to its neighbours in one direction over all links together. group: devices joined by those links; beyond,
    `network_rate` bytes per second per device.
    """

    name: str
    flops: float
    memory: float
    memory_rate: float
    link_rate: float
    group: int
    network_rate: float


_NETWORK = 12.5e9  # bytes per second per device between slices or hosts: 100 Gbit/s
CHIPS = {
    # name: bf16 FLOP/s, memory, memory bytes/s, link bytes/s, devices that links join, network bytes/s
    "v4": Chip("TPU v4", 275e12, 32 * GIB, 1228e9, 150e9, 4096, _NETWORK),
    "v5e": Chip("TPU v5e", 197e12, 16 * GIB, 819e9, 100e9, 256, _NETWORK),
    "v5p": Chip("TPU v5p", 459e12, 95 * GIB, 2765e9, 300e9, 8960, _NETWORK),
    "v6e": Chip("TPU v6e", 918e12, 32 * GIB, 1640e9, 224e9, 256, _NETWORK),
    "a100": Chip("NVIDIA A100 80 GB", 312e12, 80 * GIB, 2039e9, 300e9, 8, 25e9),
    "h100": Chip("NVIDIA H100 SXM", 989e12, 80 * GIB, 3350e9, 450e9, 8, 50e9),
    "h200": Chip("NVIDIA H200 SXM", 989e12, 141 * GIB, 4800e9, 450e9, 8, 50e9),
}


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices that a plan is for.

    kind: "tpu", "gpu" or "cpu". shape: of a slice, such as "16x16"; None where there is none.
    """

    text: str
    kind: str
    num_devices: int
    chip: Chip | None
    shape: str | None = None
    num_slices: int = 1


_EXAMPLES = "'cpu:8', 'gpu:8xh100', 'v5e:16x16', or 'v5e:16x16*2' for two slices"


def parse_target(text: str) -> Target:
    """The devices that a topology's name means. Raises ArgumentError for other names.

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
    raise ArgumentError(f"plan: {text!r} is no topology. Write {_EXAMPLES}. Accelerators: {', '.join(sorted(CHIPS))}.")
