"""Reads the machine's energy counters (RAPL), where the kernel lets this user read them."""

from pathlib import Path
from typing import NamedTuple

FOLDER = Path("/sys/class/powercap")


class Counter(NamedTuple):
    """What the counter of one processor package shows, and where it begins again, in microjoules."""

    value: int
    top: int


def energy(folder: Path = FOLDER) -> dict[str, Counter]:
    """Read the counters of all processor packages. The result is empty if there are none, or if they may not be read."""
    found = {}
    for zone in sorted(folder.glob("intel-rapl:*")):
        try:
            if (zone / "name").read_text().startswith("package") and zone.name.count(":") == 1:
                found[zone.name] = Counter(int((zone / "energy_uj").read_text()), int((zone / "max_energy_range_uj").read_text()))
        except OSError:  # since 2020, kernels let only root read them
            return {}
    return found


def used(before: dict[str, Counter], after: dict[str, Counter]) -> float | None:
    """Return the joules between two readings, or None if there are none. A counter may have begun again once.

    >>> used({"0": Counter(2_000_000, 9_000_000)}, {"0": Counter(5_000_000, 9_000_000)})
    3.0
    >>> used({"0": Counter(8_000_000, 9_000_000)}, {"0": Counter(1_000_000, 9_000_000)})
    2.0
    """
    if not before or before.keys() != after.keys():
        return None
    return sum((after[name].value - counter.value) % counter.top for name, counter in before.items()) / 1e6
