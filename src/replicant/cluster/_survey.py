"""What the variables of an environment say about a cluster, launcher by launcher, for people to read. It agrees with `detect`."""

import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Literal

from .._display import hanging, printable, short
from ..errors import ClusterError
from .resolvers._detect import SOURCES, Detection, detect
from .resolvers._environ import Environ, facts
from .resolvers._signs import launchers_seen, signs_of_several

Role = Literal["counts", "wrong", "also", "several", "seen"]
_NAME = re.compile(r"[A-Z_][A-Z0-9_]{2,}")


@dataclasses.dataclass(frozen=True)
class Seen:
    """A launcher that has left variables.

    Args:
        launcher: The name of the launcher, or of the source that reads its variables.
        role: "counts" if this is the answer, "wrong" for a source that cannot be used, "also" for another source, "several" for
            what speaks against a job of one, and "seen" for variables that do not say how many processes there are.
        says: What they say.
        variables: The variables, as ``NAME=value``.
    """

    launcher: str
    role: Role
    says: str
    variables: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Survey:
    """What an environment says about the cluster. It prints as a table.

    Args:
        seen: A line for each launcher, the one that counts before the others.
        detection: What `detect` concludes, or None if it raises an error.
        refusal: Why strategies over workers refuse to start, or None if they do not.
    """

    seen: tuple[Seen, ...]
    detection: Detection | None
    refusal: str | None

    def lines(self, width: int = 100) -> list[str]:
        """The table: a line for each launcher, which goes on in the next ones if it is too long."""
        names = max((len(each.launcher) for each in self.seen), default=0)
        found = []
        for each in self.seen:
            said = "cannot be used" if each.says == self.refusal else each.says  # the refusal itself is printed elsewhere
            if each.variables:
                said += f" ({', '.join(short(variable) for variable in each.variables)})"
            found += hanging(f"{each.role:<7}  {each.launcher:<{names}}  ", printable(said), width)
        return found

    def __str__(self) -> str:
        lines = self.lines() or ["no variable describes a cluster"]
        return "\n".join([*lines, *(hanging("refused  ", printable(self.refusal)) if self.refusal else [])])


def survey(environ: Environ | None = None) -> Survey:
    """Ask all sources, and look for the variables of all launchers that Replicant knows by name.

    Args:
        environ: The environment to read. By default the process's own.

    >>> print(survey({"RANK": "0", "WORLD_SIZE": "1", "HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"}))
    counts   torchrun  process 0 of 1 (RANK=0, WORLD_SIZE=1)
    several  Horovod   one of several (HOROVOD_SIZE=4, HOROVOD_RANK=1)
    refused  RANK=0 and WORLD_SIZE=1 say that this process is the only one, but by HOROVOD_SIZE=4 and
             ...
    """
    environ = os.environ if environ is None else environ
    detection, refusal = None, None
    try:
        detection = detect(environ)
        refusal = detection.doubt
    except ClusterError as error:
        refusal = str(error)
    rows = list(_of_sources(environ))
    if detection is not None and detection.doubt:
        rows = _against_one(environ, rows, detection)
    known = {row.launcher for row in rows}
    rows += [
        Seen(name, "seen", "no number of processes", variables)
        for name, source, variables in launchers_seen(environ)
        if not {name, source} & known
    ]
    return Survey(tuple(rows), detection, refusal)


def _of_sources(environ: Environ) -> Iterator[Seen]:
    """A line for each source that is present, in their order."""
    counts = True
    for source, find in SOURCES:
        try:
            resolver = find(environ)
            if resolver is None:
                continue
            said, variables = repr(resolver.membership()), resolver.because
        except ClusterError as error:
            names = dict.fromkeys(_NAME.findall(str(error)))
            yield Seen(source, "wrong", str(error), facts(environ, *names))
        else:
            yield Seen(source, "counts" if counts else "also", said.removeprefix("Membership(").removesuffix(")"), variables)
        counts = False


def _against_one(environ: Environ, rows: list[Seen], detection: Detection) -> list[Seen]:
    """The lines, with those that speak against a job of one marked, and with the launchers that no source reads."""
    found = [
        dataclasses.replace(row, role="several") if row.role == "also" and not row.says.endswith(" of 1") else row for row in rows
    ]
    for name, source, signs in signs_of_several(environ, detection.resolver.because):
        at = next((i for i, row in enumerate(found) if row.launcher in (name, source) and row.role != "counts"), None)
        if at is None:
            found.append(Seen(name, "several", "one of several", signs))
        else:
            both = dict.fromkeys((*found[at].variables, *signs))
            found[at] = dataclasses.replace(found[at], role="several", variables=tuple(both))
    return found
