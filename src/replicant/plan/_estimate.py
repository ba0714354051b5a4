"""Estimates seconds from counts, with a roofline for the device and a ring for the exchanges. Pure arithmetic."""

import dataclasses

from ._chips import Chip

ASSUMPTIONS = (
    "matrix units work at 50 % of their data sheet's rate, memory at 80 %, links at 80 %",
    "computing and memory traffic overlap; exchanges come after both",
    "an all-reduce is a ring: each device sends and receives 2 (n - 1) / n times its bytes",
    "nothing waits: starting a step, and each hop of an exchange, take no time, which is far off for steps of microseconds",
    "input arrives in time; the rate that it needs is given",
)
_MATRIX_SHARE, _MEMORY_SHARE, _LINK_SHARE = 0.5, 0.8, 0.8


@dataclasses.dataclass(frozen=True)
class Times:
    """The seconds of the parts of one step."""

    compute: float
    memory: float
    network: float

    @property
    def step(self) -> float:
        """The seconds of the whole step."""
        return max(self.compute, self.memory) + self.network

    @property
    def bound(self) -> str:
        """The part that takes longest: "compute", "memory" or "network"."""
        parts = {"compute": self.compute, "memory": self.memory, "network": self.network}
        return max(parts, key=lambda name: parts[name])


def times_of(chip: Chip, *, flops: float, memory_bytes: float, exchanged_bytes: float, num_devices: int) -> Times:
    """Estimate the times of a step.

    Args:
        chip: The figures of one device.
        flops: The operations of one device.
        memory_bytes: The bytes that one device reads and writes.
        exchanged_bytes: The bytes of each device that are all-reduced.
        num_devices: The number of devices.
    """
    return Times(
        flops / (chip.flops * _MATRIX_SHARE),
        memory_bytes / (chip.memory_rate * _MEMORY_SHARE),
        all_reduce_seconds(chip, exchanged_bytes, num_devices),
    )


def all_reduce_seconds(chip: Chip, num_bytes: float, num_devices: int) -> float:
    """Estimate the seconds to all-reduce `num_bytes` of each device, over the links within groups and then over the network."""
    within = min(num_devices, chip.group)
    between = -(-num_devices // chip.group)
    seconds = 2 * (within - 1) / within * num_bytes / (chip.link_rate * _LINK_SHARE)
    # Each device sends its share of its group's sum to the devices of the other groups.
    return seconds + 2 * (between - 1) / between * (num_bytes / within) / (chip.network_rate * _LINK_SHARE)


def scaling(chip: Chip, *, flops: float, memory_bytes: float, exchanged_bytes: float, most: int) -> list[tuple[int, Times, float]]:
    """Return (devices, times, efficiency) for 1, 2, 4, ... devices with the same work each. One device has efficiency 1."""
    rows = []
    num_devices = 1
    while num_devices <= most:
        times = times_of(chip, flops=flops, memory_bytes=memory_bytes, exchanged_bytes=exchanged_bytes, num_devices=num_devices)
        rows.append((num_devices, times))
        num_devices *= 2
    alone = rows[0][1].step
    return [(n, times, alone / times.step if times.step else 1.0) for n, times in rows]
