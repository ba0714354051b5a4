"""Slurm's short forms: ``node[01-03,07],gpu5`` for lists of hosts, ``2(x3),1`` for tasks on each."""

import itertools
import re
from collections.abc import Iterator

from ...errors import ClusterError
from .._spec import MOST_TASKS

MAX_HOSTS = MOST_TASKS  # each has a task at least


def expand_hosts(hostlist: str) -> list[str]:
    """The hosts of a list in Slurm's short form, in the order of the list.

    A host is a text with any number of bracketed ranges, of which the last one varies fastest. A number has as many digits as the
    first one of its range.

    Raises:
        ClusterError: If a bracket or a range is malformed, or if there are no hosts or more than 65,536.

    >>> expand_hosts("node[01-03,07],gpu5")
    ['node01', 'node02', 'node03', 'node07', 'gpu5']
    >>> expand_hosts("r[1-2]n[9-10]-ib")
    ['r1n9-ib', 'r1n10-ib', 'r2n9-ib', 'r2n10-ib']
    """
    hosts: list[str] = []
    for item, column in _split(hostlist):
        parts = [_choices(part, hostlist, column) for part in re.findall(r"\[[^\[\]]*\]|[^\[\]]+", item)]
        for choice in itertools.product(*parts):
            hosts.append("".join(choice))
            if len(hosts) > MAX_HOSTS:
                raise ClusterError(f"Host list {hostlist!r} is longer than {MAX_HOSTS} hosts: is a range mistyped?")
    return hosts


def expand_counts(counts: str) -> list[int]:
    """The number of tasks on each host, from Slurm's short form.

    Raises:
        ClusterError: If the text has another form.

    >>> expand_counts("2(x3),1")
    [2, 2, 2, 1]
    """
    expanded: list[int] = []
    for part in counts.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:\(x([0-9]{1,9})\))?\s*", part)
        if match is None:
            raise ClusterError(f"Tasks per node {counts!r}: {part!r} is neither a number nor 'number(xtimes)', as in '2(x3),1'.")
        tasks, times = int(match[1]), int(match[2] or 1)
        if len(expanded) + times > MAX_HOSTS:
            raise ClusterError(f"Tasks per node {counts!r} is longer than {MAX_HOSTS} hosts.")
        expanded += [tasks] * times
    return expanded


def _split(hostlist: str) -> Iterator[tuple[str, int]]:
    """The items between commas outside brackets, each with its column, from 1."""
    if not hostlist.strip():
        raise ClusterError("The host list is empty.")
    start, depth = 0, 0
    for at, char in enumerate(hostlist + ","):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        if depth not in (0, 1):
            raise _error(
                hostlist, at + 1, "a bracket opens inside a bracket" if depth > 1 else "a bracket is closed that was not opened"
            )
        if char == "," and depth == 0:
            item = hostlist[start:at]
            if not item.strip():
                raise _error(hostlist, start + 1, "there is no host between two commas")
            yield item.strip(), start + 1 + len(item) - len(item.lstrip())
            start = at + 1
    if depth:
        raise _error(hostlist, hostlist.rindex("[") + 1, "a bracket is not closed")


def _choices(part: str, hostlist: str, column: int) -> list[str]:
    """The texts that one part of a host stands for."""
    if not part.startswith("["):
        if re.search(r"\s", part):
            raise _error(hostlist, column, f"{part!r} contains a blank")
        return [part]
    texts: list[str] = []
    for piece in part[1:-1].split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", piece.strip())
        if match is None:
            raise _error(hostlist, column, f"{piece!r} in {part!r} is neither a number nor a range")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise _error(hostlist, column, f"the range {piece!r} runs backwards")
        if high - low >= MAX_HOSTS:
            raise ClusterError(f"Host list {hostlist!r} is longer than {MAX_HOSTS} hosts: is a range mistyped?")
        texts += [str(value).zfill(len(match[1])) for value in range(low, high + 1)]
    return texts


def _error(hostlist: str, column: int, rule: str) -> ClusterError:
    return ClusterError(f"Host list {hostlist!r}, column {column}: {rule}. Write it as in 'node[01-03,07],gpu5'.")
