"""Datasets of generators: what they yield, what is refused, and where a position leads."""

import itertools
import traceback

import numpy as np
import pytest

from replicant.data import Dataset, TensorSpec
from replicant.errors import ArgumentTypeError, DatasetError, ElementError

SECOND = r"element 1"


def test_a_spec_without_a_dtype_is_float32():
    assert TensorSpec((None, 3)) == TensorSpec([None, 3], np.float32, name="x") == TensorSpec(shape=(None, 3), dtype="float32")
    assert hash(TensorSpec((3,))) == hash(TensorSpec((3,), name="x"))
    assert (TensorSpec((), name="x").name, TensorSpec(()).name) == ("x", None)
    assert repr(TensorSpec((3,), "int32", "x")) == "TensorSpec(shape=(3,), dtype=int32, name='x')"


@pytest.mark.parametrize("shape", [None, 3, "34"])
def test_the_shape_of_a_spec_has_sizes(shape):
    with pytest.raises(
        ArgumentTypeError, match=r"such as \(None, 3\), or \(\) for a scalar; got .*number of dimensions must be known"
    ):
        TensorSpec(shape)


def yielding(*elements):
    return Dataset.from_generator(lambda: iter(elements))


def values(dataset):
    return [np.asarray(element).tolist() for element in dataset]


def test_every_pass_runs_the_function_again():
    begun = []

    def generate():
        begun.append(1)
        yield from range(3)

    dataset = Dataset.from_generator(generate, TensorSpec((), "int64"))
    assert values(dataset) == values(dataset) == [0, 1, 2]
    assert values(dataset.repeat(2)) == [0, 1, 2, 0, 1, 2]
    assert len(begun) == 4


def test_arguments_go_to_the_function():
    dataset = Dataset.from_generator(range, args=(2, 5))
    assert values(dataset.batch(2)) == [[2, 3], [4]]


def test_yielded_vectors_of_any_length_are_elements():
    dataset = yielding([0, 1, 2, 3], [0], [], [5, 6]).map(np.int64)
    assert values(dataset) == [[0, 1, 2, 3], [0], [], [5, 6]]


@pytest.mark.parametrize(
    ("dataset", "spec"),
    [
        (yielding(1, 2), TensorSpec((), "int32")),
        (yielding([1.0, 2.0], [3.0]), TensorSpec((None,), "float32")),
        (yielding({"x": np.zeros((2, 3)), "s": "a"}), {"x": TensorSpec((None, None), "float64"), "s": TensorSpec((), object)}),
        (yielding(), None),
        (Dataset.from_generator(lambda: [[1, 2]], TensorSpec((2,), "float16")), TensorSpec((2,), "float16")),
    ],
    ids=repr,
)
def test_element_spec(dataset, spec):
    assert dataset.element_spec == spec
    assert dataset.cardinality() == Dataset.UNKNOWN


def test_python_numbers_take_the_dtypes_of_the_signature_without_a_detour():
    (element,) = Dataset.from_generator(
        lambda: [(1, 0.1, [1, 2], np.int32(7))],
        (TensorSpec((), "uint8"), TensorSpec((), "float64"), TensorSpec((None,), "float32"), TensorSpec((), "int64")),
    )
    assert [np.asarray(leaf).dtype.name for leaf in element] == ["uint8", "float64", "float32", "int64"]
    assert element[1] == 0.1  # not float32(0.1)


@pytest.mark.parametrize(
    ("elements", "signature", "message"),
    [
        ([1, (2, 3)], None, rf"{SECOND} has the structure \(\*, \*\), expected \* of TensorSpec\(shape=\(\), dtype=int32\)"),
        ([{"a": 1}, {"b": 1}], None, rf"{SECOND} has the structure \{{'b': \*\}}, expected \{{'a': \*\}}"),
        ([[1], [[2]]], None, rf"the element of {SECOND} is TensorSpec\(shape=\(1, 1\), dtype=int32\), expected .*\(None,\)"),
        ([1, 2.5], None, rf"the element of {SECOND} is TensorSpec\(shape=\(\), dtype=float32\), expected .*int32.*output_sign"),
        ([("a", 1), (1, 1)], None, rf"component \[0\] of {SECOND} is .*int32\), expected TensorSpec\(shape=\(\), dtype=string"),
        ([1, "a"], None, rf"{SECOND} is TensorSpec\(shape=\(\), dtype=string\), expected .*int32"),
        ([[1, 2], [1]], TensorSpec((2,), "int32"), rf"{SECOND} is TensorSpec\(shape=\(1,\).*expected .*\(2,\)"),
        ([1, 300], TensorSpec((), "uint8"), rf"{SECOND} is .*int32\), expected .*uint8"),
        ([np.int64(1), np.float64(1)], TensorSpec((), "int64"), rf"{SECOND} is .*float64\), expected .*int64"),
        ([1.5, 16777217], None, rf"{SECOND} is .*int32\), expected .*float32"),
        ([[0.5], [1, 16777217]], None, rf"{SECOND} is .*int32\), expected .*float32"),
        ([1, 2**53 + 1], TensorSpec((), "float64"), rf"{SECOND} is .*int64\), expected .*float64"),
        ([1, object()], None, rf"from_generator: the element of {SECOND} is a object, which is not a tensor"),
    ],
)
def test_an_element_that_differs_is_refused_with_its_number(elements, signature, message):
    iterator = iter(Dataset.from_generator(lambda: iter(elements), signature))
    next(iterator)
    with pytest.raises(DatasetError, match=message):
        next(iterator)


def test_whole_numbers_that_a_float_holds_exactly_are_taken():
    assert values(yielding(1.5, 16777216, -3)) == [1.5, 16777216, -3]
    assert values(Dataset.from_generator(lambda: [[2**53, 2**60]], TensorSpec((None,), "float64"))) == [[2**53, 2**60]]


def fails_after(count):
    def generate():
        yield from range(count)
        raise KeyError("no more rows")

    return generate


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_what_a_generator_raises_keeps_its_type_and_gets_a_note(batch):
    iterator = iter(Dataset.from_generator(fails_after(2)).prefetch(8).batch(batch))
    with pytest.raises(KeyError, match="no more rows") as info:
        list(iterator)
    assert info.value.__notes__ == ["The generator of `from_generator` raised this instead of yielding element 2."]
    assert traceback.extract_tb(info.value.__traceback__)[-1].name == "generate"


def test_elements_before_the_failure_are_given_whatever_is_asked_for():
    iterator = iter(Dataset.from_generator(fails_after(5)).prefetch(16))
    assert [next(iterator).item() for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError):
        next(iterator)


def test_a_position_is_reached_by_skipping():
    taken = []

    def generate():
        for i in range(6):
            taken.append(i)
            yield [i] * (i + 1)

    dataset = Dataset.from_generator(generate).repeat(2)
    whole = values(dataset)
    for cut in range(13):
        iterator = iter(dataset)
        assert values(itertools.islice(iterator, cut)) == whole[:cut]
        again = iter(dataset)
        again.restore(iterator.state())
        assert values(again) == whole[cut:]
    with iter(dataset) as iterator:
        next(iterator)
        taken.clear()
        again = iter(dataset)
        again.restore(iterator.state())
        assert taken == []  # nothing is run before it is asked for
        next(again)
        assert taken[-1] == 1


def test_the_expected_form_is_that_of_the_first_element_also_after_a_restore():
    dataset = yielding(1, 2.5)
    first = iter(dataset)
    next(first)
    again = iter(yielding(1, 2.5))
    again.restore(first.state())
    with pytest.raises(ElementError, match=r"element 1 is .*float32\), expected .*int32"):
        next(again)


def test_a_generator_is_closed_with_its_iterator():
    closed = []

    def generate():
        try:
            yield from range(100)
        finally:
            closed.append(1)

    with iter(Dataset.from_generator(generate, TensorSpec((), "int32"))) as iterator:
        next(iterator)
        assert closed == []
    assert closed == [1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Dataset.from_generator(iter([1])), "takes a function that returns a new iterator each time.*list_iterator"),
        (
            lambda: Dataset.from_generator(list, output_signature="int32"),
            "output_signature must be a structure .* of TensorSpec. Received: 'int32'",
        ),
        (lambda: Dataset.from_generator(list, [TensorSpec((), int)]), r"must be a structure.*Received: \[TensorSpec"),
    ],
)
def test_refused_at_once(call, message):
    with pytest.raises(ArgumentTypeError, match=message):
        call()
