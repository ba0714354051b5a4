"""Arguments that tf.data has, what they do here, and what is refused."""

import numpy as np
import pytest

from replicant.data import CsvDataset, Dataset, TensorSpec, TextLineDataset, TFRecordDataset, make_csv_dataset
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError, ElementError


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n")
    return str(path)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: Dataset.range(3, output_type="text"),
            ArgumentTypeError,
            r"range: output_type must be a dtype of numbers, .*'text'",
        ),
        (lambda: Dataset.range(3, output_type=bool), ArgumentTypeError, "range: output_type must be a dtype of numbers"),
        (
            lambda: Dataset.zip(Dataset.range(2), datasets=(Dataset.range(2),)),
            ArgumentError,
            r"zip: give the datasets in one way: `zip\(a, b\)` or `zip\(datasets=\(a, b\)\)`\.",
        ),
        (
            lambda: Dataset.range(3).map(abs, num_parallel_calls=2, synchronous=True),
            ArgumentError,
            "map: num_parallel_calls asks for threads, and synchronous for none. Received: 2.",
        ),
        (
            lambda: Dataset.from_generator(list, "int32"),
            ArgumentError,
            r"output_types need output_shapes\. Give output_signature instead, .*Received: output_types='int32'",
        ),
        (
            lambda: Dataset.from_generator(list, "int32", (), output_signature=TensorSpec((), "int32")),
            ArgumentError,
            "from_generator: give either output_signature, or output_types together with output_shapes",
        ),
        (
            lambda: Dataset.from_generator(list, output_shapes=()),
            ArgumentError,
            "from_generator: give either output_signature, or output_types together with output_shapes",
        ),
        (
            lambda: Dataset.from_generator(list, ("int32", "int32"), ()),
            ArgumentTypeError,
            r"of dtypes, and output_shapes a shape for each of them\. Received: \('int32', 'int32'\)",
        ),
        (lambda: Dataset.from_generator(list, "nothing", ()), ArgumentTypeError, "output_types must be a structure"),
        (lambda: TFRecordDataset("a", None, -1), ArgumentError, "TFRecordDataset: buffer_size must be at least 0. Received: -1"),
        (
            lambda: TextLineDataset("a", None, 0.5),
            ArgumentTypeError,
            "TextLineDataset: buffer_size must be an integer. Received: 0.5",
        ),
        (lambda: CsvDataset("a", [0.0], buffer_size=-1), ArgumentError, "CsvDataset: buffer_size must be at least 0. Received: -1"),
        (
            lambda: Dataset.range(3).batch(2, num_parallel_calls=0),
            ArgumentError,
            "batch: num_parallel_calls must be None, AUTOTUNE",
        ),
        (
            lambda: Dataset.from_tensor_slices([1, "a"]),
            DatasetError,
            r"the element is an array of Python objects, and not all are strings: 1 is of type int",
        ),
        (lambda: Dataset.from_tensors({"x": ["a", 2.5]}), DatasetError, r"component \['x'\] is an array of Python objects.*2\.5"),
        (
            lambda: Dataset.from_tensor_slices(np.array([1], "datetime64[s]")),
            DatasetError,
            r"the element holds dates or times, of dtype datetime64\[s\]\. Pass numbers: `dates\.astype\('int64'\)`\.",
        ),
        (
            lambda: Dataset.from_tensor_slices([1.5, -1e300]),
            DatasetError,
            r"the element holds a number that is beyond float32\. Pass `np\.array\(values, np\.float64\)`\.",
        ),
    ],
)
def test_what_is_refused_and_what_the_message_says(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_what_make_csv_dataset_refuses(table):
    with pytest.raises(
        ArgumentError, match=r"select_columns must name at least one of the columns \['a', 'b'\]\. None reads all\."
    ):
        make_csv_dataset(table, 1, select_columns=[])
    with pytest.raises(ArgumentError, match=r"num_rows_for_inference must be at least 0\. Received: -1"):
        make_csv_dataset(table, 1, num_rows_for_inference=-1)


def test_the_signature_of_a_generator_may_come_in_every_form_of_tensorflow():
    def rows():
        yield 1, {"x": [2.0]}

    types, shapes = ("int64", {"x": np.float32}), ((), {"x": (None,)})
    signature = (TensorSpec((), np.int64), {"x": TensorSpec((None,), np.float32)})
    for dataset in (
        Dataset.from_generator(rows, types, shapes),
        Dataset.from_generator(rows, output_types=types, output_shapes=shapes),
        Dataset.from_generator(rows, signature),
        Dataset.from_generator(generator=rows, output_signature=signature, name="rows"),
    ):
        assert dataset.element_spec == signature
        assert [(n.tolist(), each["x"].tolist()) for n, each in dataset] == [(1, [2.0])]


def test_a_generator_keeps_numbers_beyond_float32_where_its_signature_has_room():
    for value in (1e300, [0.1, 1e300]):
        [element] = Dataset.from_generator(
            lambda value=value: iter([value]), output_signature=TensorSpec(np.shape(value), np.float64)
        )
        assert element.dtype == np.float64
        assert element.tolist() == value
    with pytest.raises(DatasetError, match=r"the element of element 0 holds a number that is beyond float32"):
        list(Dataset.from_generator(lambda: iter([1e300]), output_signature=TensorSpec((), np.float32)))


def test_ranges_of_another_dtype():
    for dtype in (np.int32, np.uint8, np.float32):
        dataset = Dataset.range(250, 0, -100, output_type=dtype)
        assert dataset.element_spec == TensorSpec((), dtype)
        assert list(dataset) == [250, 150, 50]
        assert {element.dtype for element in dataset} == {np.dtype(dtype)}
    assert repr(Dataset.range(3)) == "<Dataset: range(0, 3, 1)>"
    assert repr(Dataset.range(3, output_type=np.int32)) == "<Dataset: range(0, 3, 1, int32)>"
    assert Dataset.range(3).fingerprint() != Dataset.range(3, output_type=np.int32).fingerprint()


def test_a_number_alone_is_the_padded_shape_of_a_vector():
    rows = Dataset.range(1, 3).map(lambda n: np.full(n, n))
    assert [batch.tolist() for batch in rows.padded_batch(2, 3)] == [[[1, 0, 0], [2, 2, 0]]]
    with pytest.raises(ElementError, match="Padding never cuts"):
        list(rows.padded_batch(2, padded_shapes=1))


def test_lists_of_numpy_strings_are_strings():
    texts = Dataset.from_tensor_slices([np.str_("a"), "b"])
    assert list(texts) == ["a", "b"]
    assert list(Dataset.from_tensor_slices([np.array(["a", "b"]), np.array(["c", "d"])]).unbatch()) == ["a", "b", "c", "d"]
    assert list(Dataset.from_tensor_slices([b"a", "b"])) == [b"a", "b"]


def test_one_bucket_needs_no_boundary():
    rows = Dataset.range(1, 4).map(lambda n: np.full(n, n))
    assert [batch.tolist() for batch in rows.bucket_by_sequence_length(len, [], [2])] == [[[1, 0], [2, 2]], [[3, 3, 3]]]
    with pytest.raises(ArgumentError, match="bucket_boundaries must be numbers that grow"):
        rows.bucket_by_sequence_length(len, [2, 2], [1, 1, 1])


def test_a_sample_with_an_endless_dataset_is_endless():
    endless, short = Dataset.range(2).repeat(), Dataset.range(3)
    assert Dataset.sample_from_datasets([endless, short]).cardinality() == Dataset.INFINITE
    assert Dataset.sample_from_datasets([endless, short], [0.0, 1.0]).cardinality() == 3
    assert Dataset.sample_from_datasets([endless, short], stop_on_empty_dataset=True).cardinality() == Dataset.UNKNOWN
