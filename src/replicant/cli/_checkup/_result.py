"""The result of a check, which is one line of the table."""

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Result:
    """What a check found.

    Attributes:
        name: The name of the check.
        state: "ok", "warn" for what may become a problem, or "fail" for what does not work.
        detail: What the check found, in one line.
        remedy: What to do, or an empty string if there is nothing to do.
        seconds: How long the check took.
        rows: Further lines about what the check found.
    """

    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""
    seconds: float = 0.0
    rows: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The result as a dictionary, for JSON."""
        return asdict(self)
