"""Where the weights of a model are in a file."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...checkpoint.weights import WeightsFile

Change = Callable[[np.ndarray], Any]


@dataclasses.dataclass(frozen=True)
class Source:
    """The array for one weight.

    Attributes:
        name: Its name in the file.
        change: What makes the weight's value of it, if the user has given a function.
        value: The value, if it had to be read already.
    """

    name: str
    change: Change | None = None
    value: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Sources:
    """What was found out about a file, without changing the model.

    Attributes:
        found: The array for each weight, by the weight's name.
        why: What to add to a message about missing weights.
    """

    found: Mapping[str, Source]
    why: str = ""


class Model:
    """The weights of a Keras model by name.

    Attributes:
        keras: The model.
        weights: Its weights by their paths in it. If several have the same path, the later ones are numbered: ``kernel (2)``.
    """

    def __init__(self, model: Any) -> None:
        self.keras = model
        self.weights: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        for weight in model.weights:
            path = weight.path.removeprefix(f"{model.name}/")
            name, count = path, 1
            while name in self.weights:
                count += 1
                name = f"{path} ({count})"
            self.weights[name] = weight
            self._names[id(weight)] = name

    def name_of(self, variable: Any) -> str | None:
        """Return the name of a weight; None for other variables, such as seeds."""
        return self._names.get(id(variable))

    def named(self, name: str) -> str | None:
        """Return the name of the weight that is called so, with or without the name of the model before it."""
        for each in (name, name.removeprefix(f"{self.keras.name}/")):
            if each in self.weights:
                return each
        return None


def all_of(file: WeightsFile) -> list[str]:
    """The names of all arrays that a weight could take."""
    return [name for name, entry in file.entries.items() if entry.dtype != object]


def called_in(file: WeightsFile, name: str) -> str:
    """What the program called an array, or else its name in the file."""
    return (file.entries[name].label or name).removesuffix(":0")
