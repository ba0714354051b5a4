"""One line of the table."""

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Result:
    """What a check found.

    Attributes:
        name: of the check.
        state: "ok"; "warn" for what may become a problem; "fail" for what does not work.
        detail: what was found, in one line.
        remedy: what to do; empty if nothing.
        seconds: how long it took.
    """

    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
