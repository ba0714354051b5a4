"""What a person has to look at."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, order=True)
class Finding:
    """One construct.

    Attributes:
        line: where it is, from 1.
        kind: "left" if it could not be translated and stands as it was; "check" if it was translated on an assumption.
        construct: as it is written in the program.
        advice: what to write, or what was assumed.
    """

    line: int
    kind: Literal["left", "check"]
    construct: str
    advice: str
