"""The identity of a process that writes, from which others can tell whether it is still running."""

import dataclasses
import functools
import os
import platform
import zlib
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Owner:
    """A process.

    host: the name of its computer. boot: the boot of that computer, and the namespace of process numbers there (containers may
    share a name and a disk, but do not see each other's processes); empty if the system does not say. pid: its number. started:
    when it started, in ticks since the boot, or 0 if unknown. A number is used again some day, but not with the same start time.
    """

    host: str
    boot: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> "Owner":
        """Return the identity of this process."""
        return cls(platform.node(), _boot(), os.getpid(), _started(os.getpid()) or 0)

    @property
    def machine(self) -> str:
        """Eight digits that differ between computers and between boots, where the system tells boots apart."""
        return f"{zlib.crc32(f'{self.host} {self.boot}'.encode()):08x}"

    @property
    def is_here(self) -> bool:
        """Whether it runs, or ran, on this computer since the last boot."""
        return (self.host, self.boot) == (platform.node(), _boot())

    @property
    def shares_locks(self) -> bool:
        """Whether it runs, or ran, under this computer's kernel, in any container. That kernel knows the locks of both."""
        return self.is_here or (bool(self.boot) and self.boot.split()[0] == _boot().partition(" ")[0])

    @property
    def is_gone(self) -> bool:
        """Whether it is certainly not running any more. That cannot be known for another computer."""
        return self.is_here and not is_running(self.pid, self.started)


def is_this_machine(digits: str) -> bool:
    """Return whether these are surely the digits of this computer. Without a boot, others with its name have them too."""
    owner = Owner.current()
    return bool(owner.boot) and digits == owner.machine


def is_running(pid: int, started: int) -> bool:
    """Return whether the process `pid` of this computer is the one that started at `started`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it belongs to another user
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
    """Field 22 of /proc/pid/stat, or None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])  # the second field, a name, may contain anything
