"""What ``_generations`` orders, to be carried out in turn."""

import dataclasses

from ._policy import Failure


@dataclasses.dataclass(frozen=True)
class Start:
    """Start a replacement."""

    rank: int


@dataclasses.dataclass(frozen=True)
class End:
    """Kill a worker. Nothing that it still does counts."""

    rank: int


@dataclasses.dataclass(frozen=True)
class Form:
    """Begin a generation: start its coordination service. The place of each member is its index in `members`."""

    generation: int
    members: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Tell:
    """Send an order of the current generation: "form", "go", "connect", or "none" if nobody is lost."""

    rank: int
    kind: str


@dataclasses.dataclass(frozen=True)
class Say:
    """Tell the user what has happened and what comes of it. A failure stands for its description."""

    what: tuple[Failure | str, ...]
    then: str = ""
    in_logs: bool = False


@dataclasses.dataclass(frozen=True)
class GiveUp:
    """End this start of the job: too few workers are left."""

    failures: tuple[Failure, ...]


Order = Start | End | Form | Tell | Say | GiveUp
