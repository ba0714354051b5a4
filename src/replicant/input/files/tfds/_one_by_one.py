"""Examples that are written in an unusual way, or wrong, which are read one by one to find that out."""

from collections.abc import Mapping

import numpy as np

from ..records._example import BYTES, DTYPES, FLOAT, Values, WireError, decode_example
from ..records._example_values import Stored, objects
from ._columns import WrongExample

_LISTS = {0: "nothing", BYTES: "byte strings", FLOAT: "floats"}
_NOTHING: Values = (0, ())


def stored_one_by_one(records: list[bytes], kinds: Mapping[str, int]) -> dict[str, Stored]:
    """Return the values of these names, which are lists of these kinds.

    Raises:
        WrongExample: If a record is not an Example, or has a list of another kind.
    """
    found: list[dict[str, Values]] = []
    for row, record in enumerate(records):
        try:
            found.append(decode_example(record))
        except WireError as error:
            raise WrongExample(row, "", f"is not a serialized tf.train.Example: {error}") from error
    return {name: _stored([example.get(name, _NOTHING) for example in found], name, kind) for name, kind in kinds.items()}


def _stored(lists: list[Values], name: str, kind: int) -> Stored:
    for row, (its, _) in enumerate(lists):
        if its not in (0, kind):
            raise WrongExample(row, name, f"is a list of {_shown(its)}, and features.json says {_shown(kind)}")
    counts = np.array([len(values) for _, values in lists], np.int64)
    there = np.array([its != 0 for its, _ in lists], bool)
    if kind == BYTES:
        return Stored(objects([text for _, texts in lists for text in texts]), counts, there)
    return Stored(np.concatenate([np.empty(0, DTYPES[kind]), *(values for its, values in lists if its)]), counts, there)


def _shown(kind: int) -> str:
    return _LISTS.get(kind, "whole numbers")
