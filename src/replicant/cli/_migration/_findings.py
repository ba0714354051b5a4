"""What the user has to look at."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, order=True)
class Finding:
    """One construct that the user has to look at.

    Attributes:
        line: The line where it is, from 1.
        kind: "left" if it could not be translated and was left as it is, or "check" if its translation rests on an assumption.
        construct: The construct as it is written in the program.
        advice: What to write, or what was assumed.
    """

    line: int
    kind: Literal["left", "check"]
    construct: str
    advice: str
