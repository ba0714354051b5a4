"""Who writes: the identity of a process, by which others can tell whether it still runs."""

import dataclasses
import functools
import os
import platform
import zlib
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Owner:
    """A process.

    host: name of its computer. boot: which start of that computer, and which namespace of process numbers there (containers may
    share a name and a disk, but see none of each other's processes); empty where it does not say. pid: its number. started: when it
    started, in ticks since the boot, 0 where that cannot be known; a number is given again some day, both together are not.
    """

    host: str
    boot: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> "Owner":
        """This process."""
        return cls(platform.node(), _boot(), os.getpid(), _started(os.getpid()) or 0)

    @property
    def machine(self) -> str:
        """Eight digits that differ between computers and their starts."""
        return f"{zlib.crc32(f'{self.host} {self.boot}'.encode()):08x}"

    @property
    def is_here(self) -> bool:
        """Whether it runs, or ran, on this computer since its last start."""
        return (self.host, self.boot) == (platform.node(), _boot())

    @property
    def shares_locks(self) -> bool:
        """Whether it runs, or ran, under this computer's kernel, in whatever container: that knows what either has locked."""
        return self.is_here or (bool(self.boot) and self.boot.split()[0] == _boot().partition(" ")[0])

    @property
    def is_gone(self) -> bool:
        """Whether it certainly does not run any more; nobody can tell for another computer."""
        return self.is_here and not is_running(self.pid, self.started)


def is_running(pid: int, started: int) -> bool:
    """Whether the process `pid` of this computer is the one that started at `started`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    except OverflowError:
        return False
    now = _started(pid)
    return now is None or started in (0, now)


@functools.cache
def _boot() -> str:
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Field 22 of /proc/pid/stat; None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])  # the second field, a name, may hold anything
