"""Lists of hosts: ``--hosts`` and ``--hosts-file``."""

import re
from collections.abc import Sequence
from pathlib import Path

from ...errors import ArgumentError


def parse_hosts(hosts: Sequence[str]) -> dict[str, int]:
    """The number of workers on each host.

    Raises:
        ArgumentError: If an item is neither HOST nor HOST:N, or if a host is there twice.

    >>> parse_hosts(["a", "b:2"])
    {'a': 1, 'b': 2}
    >>> parse_hosts(["me@a"])
    {'me@a': 1}
    """
    found: dict[str, int] = {}
    for text in hosts:
        match = re.fullmatch(r"((?:[A-Za-z0-9._-]+@)?[A-Za-z0-9_.][A-Za-z0-9._-]*)(?::([1-9][0-9]{0,3}))?", text)
        if match is None:
            ipv6 = " An IPv6 address is not a HOST: workers reach each other over IPv4." if text.count(":") > 1 else ""
            raise ArgumentError(
                f"--hosts: {text!r} is neither HOST nor HOST:WORKERS, with 1 to 9999 workers.{ipv6} Write it as in node1:4,node2:4."
            )
        if match[1] in found:
            raise ArgumentError(f"--hosts: {match[1]!r} is there twice. Write {match[1]}:N for N workers on it.")
        found[match[1]] = int(match[2] or 1)
    return found


def read_hosts_file(path: Path) -> list[str]:
    """The hosts in a file, each as ``HOST`` or ``HOST:WORKERS``. A line has one host: ``HOST``, ``HOST:N`` or ``HOST slots=N``.

    What follows a ``#`` is a comment.

    Raises:
        ArgumentError: If the file cannot be read, or if a line has another form.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"--hosts-file {str(path)!r} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        match = re.fullmatch(r"([^\s:=,]+)(?:(?::| slots=)([1-9][0-9]{0,3}))?", " ".join(words))
        if match is None:
            raise ArgumentError(
                f"--hosts-file {str(path)!r}, line {number}: {line.strip()!r} is not a host. Write HOST, HOST:N or HOST slots=N, "
                "with N from 1 to 9999."
            )
        found.append(match[1] if match[2] is None else f"{match[1]}:{match[2]}")
    if not found:
        raise ArgumentError(f"--hosts-file {str(path)!r} names no host. Write one host in each line.")
    return found
