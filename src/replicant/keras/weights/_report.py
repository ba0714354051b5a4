"""What was done with a file of weights."""

import dataclasses
from collections.abc import Mapping

from ...checkpoint.weights._stored import listed


@dataclasses.dataclass(frozen=True)
class WeightsReport:
    """What `load_weights` has taken from a file, and what it has not.

    Weights are named by their paths in the model, such as ``"dense/kernel"``, and arrays as ``replicant checkpoint show`` names
    them.

    Attributes:
        path: The file.
        taken: The weights that have got a value, each with the array that it came from.
        left: The arrays of the file that no weight has taken, such as the state of an optimizer.
        missing: The weights for which the file has no array. They keep their values.
        mismatched: The weights whose array has another shape, each with the reason. They keep their values, too.
    """

    path: str
    taken: Mapping[str, str]
    left: tuple[str, ...]
    missing: tuple[str, ...]
    mismatched: Mapping[str, str]

    def __str__(self) -> str:
        """Say in a few lines what was taken, left, missing and mismatched."""
        lines = [f"{self.path}: {len(self.taken)} weight(s) taken"]
        for word, names in (("left in the file", self.left), ("missing in the file", self.missing)):
            lines += [f"  {len(names)} {word}: {listed(list(names))}"] if names else []
        lines += [f"  {name}: {reason}" for name, reason in self.mismatched.items()]
        return "\n".join(lines)
