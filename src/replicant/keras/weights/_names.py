"""Finds weights by their names: those of the file, or those that the user makes of them."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from ...checkpoint.weights import WeightsFile
from ...errors import ArgumentError, CheckpointError
from ._sources import Change, Model, Source, Sources, all_of, called_in

_OPTIMIZER = "optimizer/"  # what the names of its state begin with

Renamed: TypeAlias = str | tuple[str, Change] | None
Rename: TypeAlias = Mapping[str, Renamed] | Callable[[str], Renamed]


def by_rename(model: Model, file: WeightsFile, rename: Rename) -> Sources:
    """Give each array to the weight that the user's dict or function names.

    Raises:
        ArgumentError: If it names a weight that the model lacks, or the same weight twice, or makes no name at all.
        CheckpointError: If a dict names an array that the file lacks, or if a kernel of torch is to be taken as it is.
    """
    if isinstance(rename, Mapping):
        for name in rename:
            file.entry(name)
    found: dict[str, Source] = {}
    for name in all_of(file):
        made = rename.get(name) if isinstance(rename, Mapping) else rename(name)
        if made is None:
            continue
        target, change = _target(name, made)
        weight = model.named(target)
        if weight is None:
            raise ArgumentError(
                f"load_weights: rename makes {target!r} of {name!r}, but the model {model.keras.name!r} has no such weight."
                f"{_close(target, model)}"
            )
        if weight in found:
            raise ArgumentError(f"load_weights: rename makes {weight!r} of both {found[weight].name!r} and {name!r}.")
        if change is None:
            _require_layout(file, name, weight, model.weights[weight])
        found[weight] = Source(name, change)
    return Sources(found, " Look at the names that rename makes.")


def by_name(model: Model, file: WeightsFile) -> Sources:
    """Give each array to the weight of its name, as its program called it or as the file does.

    If the program called all of them by the name of its model first, as Keras 3 does, that is left out.

    Raises:
        CheckpointError: If several arrays have the name of the same weight, and differ.
    """
    called = {name: called_in(file, name) for name in all_of(file)}
    firsts = {text.partition("/")[0] for name, text in called.items() if not name.startswith(_OPTIMIZER)}
    prefix = f"{firsts.pop()}/" if len(firsts) == 1 else ""
    found: dict[str, Source] = {}
    for name, text in called.items():
        weight = model.named(text) or (model.named(text.removeprefix(prefix)) if text.startswith(prefix) else None)
        if weight is not None and weight not in found:
            found[weight] = Source(name)
        elif weight is not None and not _are_same(file, found[weight].name, name):
            raise CheckpointError(
                f"{file.path}: the name {weight!r} belongs to both {found[weight].name!r} and {name!r}. Load the file without "
                "by_name, or say with rename= which one is meant."
            )
    return Sources(
        found,
        " Keras numbers the names of layers as they are made in a process (dense, dense_1, ...). Name the layers, load the file "
        "without by_name, or pass rename=.",
    )


def _are_same(file: WeightsFile, one: str, other: str) -> bool:
    """Whether two arrays of a file are the same, as in the two lists that `model.export` of Keras 3 writes."""
    a, b = file.entries[one], file.entries[other]
    return (a.shape, a.dtype) == (b.shape, b.dtype) and np.array_equal(file.read(one), file.read(other))


def _target(name: str, made: Any) -> tuple[str, Change | None]:
    if isinstance(made, str):
        return made, None
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], str) and callable(made[1]):
        return made
    raise ArgumentError(
        f"load_weights: rename makes {made!r} of {name!r}. It makes a name, a pair of a name and a function of the array, or None."
    )


def _require_layout(file: WeightsFile, name: str, weight: str, variable: Any) -> None:
    """Refuse a kernel of torch without a function: a square one would fit, with its axes in the wrong order."""
    if name.endswith(".weight") and variable.name.endswith("kernel") and len(variable.shape) > 1:
        raise CheckpointError(
            f"{file.path}: torch keeps {name!r} in another order of axes than Keras keeps {weight!r}, which no shape can prove. "
            f"Say what to do: rename makes ({weight!r}, np.transpose) of it for a Linear layer, or ({weight!r}, lambda w: w) if "
            "its axes are those of Keras."
        )


def _close(name: str, model: Model) -> str:
    close = difflib.get_close_matches(name, list(model.weights), n=3, cutoff=0.4) or list(model.weights)[:3]
    return f" It has {', '.join(map(repr, close))}, among {len(model.weights)}."
