"""Finds the sockets at which processes listen, from /proc alone."""

import re
import socket
import struct
from pathlib import Path

_LISTENS = "0A"


def listeners(pids: list[int]) -> dict[int, list[tuple[str, int]]]:
    """Return, for each process, the addresses and ports at which it listens."""
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    places = {row[9]: _place(row[1]) for row in rows if row[3] == _LISTENS}
    return {pid: sorted(places[inode] for inode in _inodes(pid) if inode in places) for pid in pids}


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def _inodes(pid: int) -> list[str]:
    found = []
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            match = re.fullmatch(r"socket:\[(\d+)\]", str(path.readlink()))
        except FileNotFoundError:
            continue
        found += [match[1]] if match else []
    return found


def _place(text: str) -> tuple[str, int]:
    host, port = text.split(":")
    words = [struct.pack("=I", int(host[i : i + 8], 16)) for i in range(0, len(host), 8)]
    kind = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(kind, b"".join(words)).removeprefix("::ffff:"), int(port, 16)
