"""Finds out which expressions are strategies and datasets, as far as the text says so, so that their methods can be checked."""

from collections.abc import Callable

import libcst as cst

STRATEGY, DATASET = "replicant.Strategy", "replicant.data.Dataset"
_DATASETS = ("data.TFRecordDataset", "data.TextLineDataset")


class Kinds:
    """Remembers which kinds of values the names of a program stand for.

    Args:
        name_of: Returns the name in TensorFlow that an expression stands for.
    """

    def __init__(self, name_of: Callable[[cst.CSTNode], str | None]) -> None:
        self._name_of = name_of
        self._kinds: dict[str, str] = {}

    def note(self, node: cst.Assign) -> None:
        """Note that a name gets a value."""
        kind = self.of(node.value)
        for target in node.targets:
            if isinstance(target.target, cst.Name):
                if kind is None:
                    self._kinds.pop(target.target.value, None)
                else:
                    self._kinds[target.target.value] = kind

    def of(self, node: cst.CSTNode) -> str | None:
        """The kind of an expression: `STRATEGY`, `DATASET`, or None if the text does not say."""
        if isinstance(node, cst.Name):
            return self._kinds.get(node.value)
        if not isinstance(node, cst.Call):
            return None
        name = self._name_of(node.func) or ""
        if name.startswith("distribute.") and name.endswith("Strategy"):
            return STRATEGY
        if name.startswith("data.Dataset.") or name in _DATASETS:
            return DATASET
        method = node.func
        if isinstance(method, cst.Attribute) and self.of(method.value) == DATASET:
            return DATASET  # nearly all methods of a dataset return a dataset
        return None
