"""What a host tells about itself, and in what it must agree with the launcher's."""

import importlib.metadata
import os
import platform
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PACKAGES = ("replicant-jax", "jax", "jaxlib", "keras")  # of these, all hosts need the same version

Facts = Mapping[str, Any]


def facts_here() -> dict[str, Any]:
    """What this host tells."""
    return {
        "host": socket.gethostname()[:255],
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: _version(name) for name in PACKAGES},
        "machine": _machine(),
        "clock": time.time(),
        "seen": os.environ.get("SSH_CONNECTION", "").partition(" ")[0],  # the launcher's address, as this host sees it
    }


def received(facts: Facts) -> dict[str, Any]:
    """The facts of another host, with by how much its clock is ahead of this one's. Call this when they arrive."""
    return {**facts, "ahead": float(facts.get("clock") or 0.0) - time.time()}


def differences(here: Facts, there: Facts, max_clock_skew: float) -> list[str]:
    """What must be changed on another host before it can take part, one sentence or two each.

    Args:
        here: The facts of the launcher's host.
        there: Those of the other host, as `received`.
        max_clock_skew: By how many seconds their clocks may differ.

    >>> here = {"host": "a", "python": "3.13.1", "executable": "python", "packages": {"jax": "0.12.1"}, "ahead": 0.0}
    >>> differences(here, here | {"host": "b", "python": "3.13.0"}, 60.0)
    []
    >>> print(*differences(here, here | {"host": "b", "packages": {"jax": "0.11.0"}}, 60.0))
    b has jax 0.11.0, but a has jax 0.12.1. Install the same on b: python -m pip install jax==0.12.1
    """
    mine, other, executable = here["host"], there.get("host"), there.get("executable")
    python = str(there.get("python"))
    if python.split(".")[:2] != here["python"].split(".")[:2]:
        return [
            (
                f"{other} runs Python {python} ({executable}), but {mine} runs Python {here['python']}. All hosts need the same "
                "minor version: install it there, and Replicant with it."
            )
        ]
    theirs = there.get("packages") or {}
    found = [
        f"{other} has {_named(name, theirs.get(name))}, but {mine} has {_named(name, version)}. "
        + (f"Install the same on {other}: {executable} -m pip install {name}=={version}" if version else f"Install it on {mine}.")
        for name, version in here["packages"].items()
        if theirs.get(name) != version
    ]
    ahead = there["ahead"]
    if abs(ahead) > max_clock_skew:
        found.append(
            f"The clock of {other} is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} that of {mine}. At most "
            f"{max_clock_skew:g} s are allowed (--max-clock-skew), because files on shared folders and lines of logs carry times. "
            "Let both hosts take their time from the network: timedatectl set-ntp true"
        )
    return found


def same_machines(named: Iterable[tuple[str, Facts]]) -> list[str]:
    """What must be changed because hosts with different names are one and the same, one sentence or two each.

    Each would start its workers as if it had all devices of the host.

    >>> same_machines([("a", {"machine": "1"}), ("10.0.0.1", {"machine": "1"}), ("b", {"machine": "2"}), ("c", {"machine": ""})])
    ['a and 10.0.0.1 are the same host. Write it once, with the number of all its workers, as in a:2.']
    """
    found: dict[str, list[str]] = {}
    for name, facts in named:
        if facts.get("machine"):
            found.setdefault(facts["machine"], []).append(name)
    return [
        f"{' and '.join(names)} are the same host. Write it once, with the number of all its workers, as in "
        f"{names[0]}:{len(names)}."
        for names in found.values()
        if len(names) > 1
    ]


def _machine() -> str:
    """What only this host is: its boot, its network and its name. It is "" where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()} {socket.gethostname()}"
    except OSError:
        return ""


def _named(name: str, version: str | None) -> str:
    return f"no {name}" if version is None else f"{name} {version}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
