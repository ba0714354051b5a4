"""padded_batch: values, shapes, and what does not fit."""

import numpy as np
import pytest

from replicant.data import Dataset, TensorSpec
from replicant.errors import ArgumentError, ElementError


def counts(*sizes):
    """Vectors 1, 1, ...; 2, 2, ...; of these sizes."""
    return Dataset.from_tensor_slices(list(sizes)).enumerate(1).map(lambda i, n: np.full(n, i))


def values(dataset):
    return [tuple(leaf.tolist() for leaf in element) if isinstance(element, tuple) else element.tolist() for element in dataset]


def texts():
    return Dataset.range(2).map(lambda n: (["a"] * int(n + 1), n))


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (counts(1, 2, 3).padded_batch(2), [[[1, 0], [2, 2]], [[3, 3, 3]]]),
        (counts(1, 2, 3).padded_batch(2, drop_remainder=True), [[[1, 0], [2, 2]]]),
        (counts(1, 2).padded_batch(2, [3]), [[[1, 0, 0], [2, 2, 0]]]),
        (counts(1, 2).padded_batch(2, (3,), -1), [[[1, -1, -1], [2, 2, -1]]]),
        (counts(1, 2).padded_batch(2, [None]), [[[1, 0], [2, 2]]]),
        (counts(1, 2).padded_batch(2, [-1]), [[[1, 0], [2, 2]]]),
        (counts(0, 0).padded_batch(2), [[[], []]]),
        (counts(0, 1).padded_batch(2), [[[0], [2]]]),
        (Dataset.range(3).padded_batch(2), [[0, 1], [2]]),
        (Dataset.range(2).map(lambda n: np.ones((n + 1, 2 - n))).padded_batch(2), [[[[1, 1], [0, 0]], [[1, 0], [1, 0]]]]),
        (Dataset.range(2).map(lambda n: [True] * int(n + 1)).padded_batch(2), [[[True, False], [True, True]]]),
        (texts().padded_batch(2), [([["a", ""], ["a", "a"]], [0, 1])]),
        (texts().padded_batch(2, ([3], ()), ("?", None)), [([["a", "?", "?"], ["a", "a", "?"]], [0, 1])]),
        (texts().padded_batch(2, ([None], []), ("?", 9)), [([["a", "?"], ["a", "a"]], [0, 1])]),
        (Dataset.range(2).map(lambda n: [b"a"] * int(n)).padded_batch(2), [[[b""], [b"a"]]]),
        (
            Dataset.from_tensor_slices(np.ones((3, 2))).padded_batch(2, [3], np.nan).map(np.nan_to_num),
            [[[1, 1, 0]] * 2, [[1, 1, 0]]],
        ),
        (counts(1, 2, 3, 4).padded_batch(2).skip(1), [[[3, 3, 3, 0], [4, 4, 4, 4]]]),
    ],
    ids=repr,
)
def test_values(dataset, expected):
    assert values(dataset) == values(dataset) == expected


def test_dtypes_are_kept():
    (batch,) = Dataset.range(2).map(lambda n: np.ones(n, np.float16)).padded_batch(2, padding_values=0.5)
    assert batch.dtype == np.float16
    assert batch.tolist() == [[0.5], [1.0]]


@pytest.mark.parametrize(
    ("dataset", "spec"),
    [
        (counts(1, 2).padded_batch(2), TensorSpec((None, None), "int64")),
        (counts(1, 2).padded_batch(2, [4], drop_remainder=True), TensorSpec((2, 4), "int64")),
        (texts().padded_batch(2, ([-1], ())), (TensorSpec((None, None), object), TensorSpec((None,), "int64"))),
        (counts(1).take(0).padded_batch(2), TensorSpec((None, None), "int64")),
        (Dataset.range(0).map(np.zeros).padded_batch(2), None),
    ],
    ids=repr,
)
def test_element_spec(dataset, spec):
    assert dataset.element_spec == spec


def test_facts():
    dataset = counts(1, 2, 3).padded_batch(2, [5])
    assert len(dataset) == 2
    assert repr(dataset).endswith("padded_batch(2, padded_shapes=[5])>")
    iterator = iter(dataset)
    next(iterator)
    again = iter(dataset)
    again.restore(iterator.state())
    assert values(again) == [[[3, 3, 3, 0, 0]]]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: counts(1).padded_batch(0), ArgumentError, "padded_batch: batch_size must be at least 1. Received: 0"),
        (
            lambda: counts(1).padded_batch(2, [-3]),
            ArgumentError,
            r"padded_shapes must be a shape such as \[None, 3\].*Received: \[-3\]",
        ),
        (lambda: counts(1).padded_batch(2, "x"), ArgumentError, "padded_shapes must be a shape.*Received: 'x'"),
        (
            lambda: list(counts(1, 3).padded_batch(2, [2])),
            ElementError,
            r"the element has an element of size \[3\], which is larger than the padded shape \[2\].*never cuts",
        ),
        (lambda: list(counts(1).padded_batch(2, [2, 2])), ElementError, r"has 1 dimensions, but its padded shape \[2, 2\] has 2"),
        (lambda: list(texts().padded_batch(2, [2])), ElementError, r"padded_shapes has the structure \*, but .* have \(\*, \*\)"),
        (lambda: list(texts().padded_batch(2, None, ("",))), ElementError, r"padding_values has the structure \(\*,\), but"),
        (lambda: list(counts(1, 2).padded_batch(2, None, 0.5)), ElementError, "value 0.5 does not fit the element, which is int64"),
        (lambda: list(counts(1, 2).padded_batch(2, None, "x")), ElementError, "padding value 'x' does not fit the element"),
        (
            lambda: list(counts(1, 2).map(lambda x: x.astype(np.float32)).padded_batch(2, None, 1e300)),
            ElementError,
            r"padding value 1e\+300 does not fit the element, which is float32",
        ),
        (
            lambda: list(Dataset.range(2).map(lambda n: np.ones((1,) * int(n + 1))).padded_batch(2)),
            ElementError,
            "the element has elements with 1 and 2 dimensions",
        ),
        (
            lambda: list(Dataset.range(2).map(lambda n: np.ones(2, ["f4", "f8"][n])).padded_batch(2)),
            ElementError,
            "the element has elements of dtypes float32, float64",
        ),
    ],
)
def test_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
