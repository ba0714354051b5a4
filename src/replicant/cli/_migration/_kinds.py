"""Finds out which expressions are strategies, datasets and the like, as far as the text says so, to check their methods."""

from collections.abc import Callable

import libcst as cst

from .tables._exists import exists
from .tables._tfds import BUILDER, PACKAGE

STRATEGY, DATASET, TAPE, OPTIONS = (
    "replicant.Strategy",
    "replicant.data.Dataset",
    "replicant.GradientTape",
    "replicant.data.Options",
)
ARRAYS = "tensorflow.TensorArray"  # which has no counterpart
_ONE_BY_NAME = {
    "GradientTape": TAPE,
    "TensorArray": ARRAYS,
    "data.Options": OPTIONS,
    "data.experimental.make_csv_dataset": DATASET,
    **{f"{PACKAGE}.{name}": BUILDER for name in ("builder", "builder_from_directory", "core.builder_from_directory")},
}
# The methods of a TensorArray that return one.
_ARRAYS = {"scatter", "split", "unstack", "write"}
# The methods of a dataset that return something else. All others return a dataset.
_NO_DATASET = {
    "as_numpy_iterator",
    "cardinality",
    "element_spec",
    "explain",
    "fingerprint",
    "get_single_element",
    "options",
    "reduce",
    "save",
}


class Kinds:
    """Remembers which kinds of values the names of a program stand for.

    Args:
        name_of: Returns the name in TensorFlow that an expression stands for.
    """

    def __init__(self, name_of: Callable[[cst.CSTNode], str | None]) -> None:
        self._name_of = name_of
        self._kinds: dict[str, str] = {}

    def note(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        """Note that a name gets a value."""
        kind = self.of(value)
        if not isinstance(target, cst.Name):
            return
        if kind is None:
            self._kinds.pop(target.value, None)
        else:
            self._kinds[target.value] = kind

    def of(self, node: cst.CSTNode) -> str | None:
        """The kind of an expression: one of the names above, or None if the text does not say."""
        if isinstance(node, cst.Name):
            return self._kinds.get(node.value)
        if not isinstance(node, cst.Call):
            return None
        name = self._name_of(node.func) or ""
        if name.startswith("distribute.") and name.endswith("Strategy"):
            return STRATEGY
        if name in _ONE_BY_NAME:
            return _ONE_BY_NAME[name]
        if name.startswith("data.") and (name.startswith("data.Dataset.") or name.endswith("Dataset")):
            return DATASET
        method = node.func
        if isinstance(method, cst.Attribute) and self.of(method.value) == ARRAYS:
            return ARRAYS if method.attr.value in _ARRAYS else None
        if isinstance(method, cst.Attribute) and self.of(method.value) == DATASET:
            known = exists(f"{DATASET}.{method.attr.value}")
            return DATASET if known and method.attr.value not in _NO_DATASET else None
        return None


def lacks(owner: str, name: str) -> bool:
    """Whether a value of a kind has no attribute of this name."""
    if owner == OPTIONS:
        return name != "experimental_distribute"
    return not exists(f"{owner}.{name}")
