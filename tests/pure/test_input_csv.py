"""CSV files and files of records of one size: fields, dtypes, positions, sharding, and what is refused."""

import gzip
import itertools
import json

import numpy as np
import pytest

from replicant.data import AutoShardPolicy, CsvDataset, Dataset, FixedLengthRecordDataset, TensorSpec, make_csv_dataset
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError, ElementError
from replicant.input.files import _stream


@pytest.fixture
def file(tmp_path):
    """file(text): the path of a file that holds it."""
    numbers = itertools.count()

    def make(text):
        path = tmp_path / f"{next(numbers)}.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return make


def positions_hold(dataset):
    iterator = iter(dataset)
    elements, states = [], [iterator.state()]
    for element in iterator:
        elements.append(element)
        states.append(json.loads(json.dumps(iterator.state())))
    for number, state in enumerate(states):
        again = iter(dataset)
        again.restore(state)
        assert list(again) == elements[number:]
    return elements


@pytest.mark.parametrize(
    ("text", "defaults", "options", "expected"),
    [
        ("1,2.5,a\n3,4.5,b\n", [0, 0.0, ""], {}, [(1, 2.5, "a"), (3, 4.5, "b")]),
        ("1,2.5,a\n3,4.5,b", ["int64", np.float32, str], {}, [(1, 2.5, "a"), (3, 4.5, "b")]),
        ("1,,a\n,4.5,\n", [7, 0.5, "none"], {}, [(1, 0.5, "a"), (7, 4.5, "none")]),
        ("x,y\n1,2\n3,4\n", ["int32", "int32"], {"header": True}, [(1, 2), (3, 4)]),
        ("x,y\n", ["int32", "int32"], {"header": True}, []),
        ("", ["int32"], {"header": True}, []),
        ("1;2\n", ["int32", "int32"], {"field_delim": ";"}, [(1, 2)]),
        ('"a,b","c""d"\n"e\nf",g\n', [str, str], {}, [("a,b", 'c"d'), ("e\nf", "g")]),
        ('"a,b\n', [str, str], {"use_quote_delim": False}, [('"a', "b")]),
        ("NA,1\n2,NA\n", [0, 9], {"na_value": "NA"}, [(0, 1), (2, 9)]),
        ("1,2,3\n", ["int32", "int32"], {"select_cols": [0, 2]}, [(1, 3)]),
        ("1,2,3\n", ["int32", "int32"], {"exclude_cols": [1]}, [(1, 3)]),
        ("1,2\r\n3,4\r\n", ["int32", "int32"], {}, [(1, 2), (3, 4)]),
        ("1e3,inf\n-2,.5\n", ["float32", "float64"], {}, [(1000.0, np.inf), (-2.0, 0.5)]),
    ],
)
def test_records_become_tuples(file, text, defaults, options, expected):
    dataset = CsvDataset(file(text), defaults, **options)
    assert positions_hold(dataset) == expected
    assert positions_hold(CsvDataset([file(text), file(text)], defaults, **options)) == expected * 2


def test_records_across_pieces_of_a_file(file, monkeypatch):
    monkeypatch.setattr(_stream, "PIECE", 16)
    rows = [(i, f"text {i}\n" * (i % 3)) for i in range(30)]
    text = "n,text\n" + "".join(f'{n},"{text}"\n' for n, text in rows)
    dataset = CsvDataset(file(text), ["int64", ""], header=True)
    assert positions_hold(dataset) == rows


BOM = "\ufeff"


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("piece", [4, 1 << 18])
def test_a_byte_order_mark_belongs_to_no_record(file, monkeypatch, quote, piece):
    monkeypatch.setattr(_stream, "PIECE", piece)
    text = f"{quote}a,\nb{quote},c\n" if quote else "a,c\n"
    marked = [file(f"{BOM}{text}1,2\n"), file(f"{BOM}3,4")]
    assert positions_hold(CsvDataset(marked[0], ["int32", "int32"], header=True)) == [(1, 2)]
    assert positions_hold(CsvDataset(marked[1], ["int32", "int32"])) == [(3, 4)]
    assert positions_hold(CsvDataset([file(BOM), file(f"1,2\n{BOM}x,4\n")], [str, "int32"])) == [("1", 2), (f"{BOM}x", 4)]
    batch = next(iter(make_csv_dataset(marked[0], 1, shuffle=False)))
    assert batch == {"a,\nb" if quote else "a": [1], "c": [2]}


def test_compressed_files_and_files_of_a_dataset(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"1,2\n3,4\n"))
    assert list(CsvDataset(str(path), [0, 0], "GZIP")) == [(1, 2), (3, 4)]
    names = Dataset.list_files(str(tmp_path / "*.gz"), shuffle=False)
    assert list(CsvDataset(names, [0, 0], "GZIP")) == [(1, 2), (3, 4)]
    assert next(iter(make_csv_dataset(str(path), 2, header=False, column_names=["a", "b"], compression_type="GZIP", shuffle=False)))


def test_bad_records_can_be_left_out(file):
    path = file('1,2\nx,3\n4\n5,6\n"7,8\n')
    assert list(CsvDataset(path, [0, 0]).ignore_errors()) == [(1, 2), (5, 6)]


def test_workers_share_csv_files(file):
    paths = [file("1,2\n3,4\n") for _ in range(4)]
    for dataset in (CsvDataset(paths, [0, 0]).batch(2), make_csv_dataset(paths, 2, shuffle=False)):
        plan = dataset.explain(num_workers=2)
        assert plan.policy is AutoShardPolicy.FILE
        assert plan.workers[1].files == (paths[1], paths[3])
        assert plan.batch_size == 2


def columns(element):
    return {name: (values.dtype.name, values.tolist()) for name, values in element.items()}


def test_make_csv_dataset_infers_names_and_dtypes(file):
    path = file("i,l,f,d,s,e\n1,99999999999,0.5,1e300,x,\n2,3,2,1,1,\n")
    (batch,) = make_csv_dataset(path, 5, num_epochs=1, shuffle=False)
    assert columns(batch) == {
        "i": ("int32", [1, 2]),
        "l": ("int64", [99999999999, 3]),
        "f": ("float32", [0.5, 2.0]),
        "d": ("float64", [1e300, 1.0]),
        "s": ("object", ["x", "1"]),
        "e": ("object", ["", ""]),
    }
    features, label = next(iter(make_csv_dataset(path, 1, label_name="s", select_columns=["i", 4], shuffle=False)))
    assert columns(features) == {"i": ("int32", [1])}
    assert label.tolist() == ["x"]


def test_make_csv_dataset_repeats_shuffles_and_reads_in_turn(file):
    paths = [file("a\n" + "".join(f"{10 * number + i}\n" for i in range(4))) for number in range(3)]
    endless = make_csv_dataset(paths, 5, shuffle=False)
    assert endless.cardinality() < 0
    assert [batch["a"].tolist() for batch in endless.take(3)] == [[0, 1, 2, 3, 10], [11, 12, 13, 20, 21], [22, 23, 0, 1, 2]]
    shuffled = make_csv_dataset(paths, 12, num_epochs=1, shuffle_seed=3)
    (batch,) = shuffled
    assert sorted(batch["a"].tolist()) == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    (batch,) = make_csv_dataset(paths, 12, num_epochs=1, shuffle=False, num_parallel_reads=3)
    assert batch["a"].tolist() == [0, 10, 20, 1, 11, 21, 2, 12, 22, 3, 13, 23]


@pytest.mark.parametrize(
    ("data", "arguments", "expected"),
    [
        (b"aabbcc", (2,), [b"aa", b"bb", b"cc"]),
        (b"", (2,), []),
        (b"HHaabb", (2, 2), [b"aa", b"bb"]),
        (b"HHHaabbF", (2, 3, 1), [b"aa", b"bb"]),
        (b"HHHF", (2, 3, 1), []),
        (b"\x00\n\xff", (1,), [b"\x00", b"\n", b"\xff"]),
    ],
)
def test_records_of_one_size(file, data, arguments, expected, monkeypatch):
    monkeypatch.setattr(_stream, "PIECE", 4)
    dataset = FixedLengthRecordDataset([file(data), file(data)], *arguments)
    assert positions_hold(dataset) == expected * 2
    assert dataset.element_spec == TensorSpec((), object)
    assert sorted(FixedLengthRecordDataset([file(data), file(data)], *arguments, num_parallel_reads=2)) == sorted(expected * 2)


@pytest.mark.parametrize(("data", "header"), [(b"abc", 0), (b"HHa", 2), (b"H", 2), (b"H", 3)])
def test_a_file_that_ends_in_a_record_is_an_error(file, data, header):
    with pytest.raises(DatasetError, match=rf"whole records of 2 bytes between a header of {header} and a footer of 0"):
        list(FixedLengthRecordDataset(file(data), 2, header))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n", r"CsvDataset: there are 3 fields, expected 2. The record is: '1,2,3'"),
        ("1\n", r"there are 1 fields, expected 2"),
        ("\n", r"there are 1 fields, expected 2"),
        ("x,2\n", r"field 0 is 'x', which is not int32"),
        ("1.5,2\n", r"field 0 is '1.5', which is not int32"),
        ("1_0,2\n", r"field 0 is '1_0', which is not int32"),
        ("99999999999,2\n", r"field 0 is '99999999999', which is beyond int32"),
        (",2\n", r"field 0 is empty, but it has no default"),
        ('1"2,3\n', r"there are quotes inside of field 0"),
        ('"1"2,3\n', r"field 0 goes on after its quotes"),
        ('1,"2\n', r"the quotes of field 1 are not closed"),
        (b"1,\xff\n", r"is not UTF-8 text"),
    ],
)
def test_records_that_are_refused(file, text, message):
    with pytest.raises(DatasetError, match=message):
        list(CsvDataset(file(text), ["int32", "int32"]))


def test_a_selected_column_must_be_there(file):
    with pytest.raises(ElementError, match="there are 2 fields, but column 5 is selected"):
        list(CsvDataset(file("1,2\n"), [0], select_cols=[5]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: CsvDataset(p, []), ArgumentError, "record_defaults must name at least one column"),
        (lambda p: CsvDataset(p, [np.int8]), ArgumentTypeError, "each of record_defaults must be a dtype .* Received: .*int8"),
        (lambda p: CsvDataset(p, [[1, 2]]), ArgumentTypeError, r"or one default value. Received: \[1, 2\]"),
        (lambda p: CsvDataset(p, [0], select_cols=[0], exclude_cols=[1]), ArgumentError, "give either select_cols or exclude_cols"),
        (lambda p: CsvDataset(p, [0], select_cols=[0, 1]), ArgumentError, "one entry for each of select_cols. Received 1 and 2"),
        (lambda p: CsvDataset(p, [0, 0], select_cols=[1, 0]), ArgumentError, r"select_cols must be column numbers that grow"),
        (
            lambda p: CsvDataset(p, [0], field_delim=", "),
            ArgumentError,
            "field_delim must be one character, .* ', '",
        ),
        (lambda p: make_csv_dataset(p, 1, encoding="latin-1"), ArgumentError, "encoding must be UTF-8. Received: 'latin-1'"),
        (lambda p: make_csv_dataset(p, 1, header=False), ArgumentError, "without a header, column_names must name the columns"),
        (lambda p: make_csv_dataset(p, 1, column_names=["a", "a"]), ArgumentError, "two columns have the same name"),
        (lambda p: make_csv_dataset(p, 1, label_name="z"), ArgumentError, r"label_name must be one of the columns .*Received: 'z'"),
        (lambda p: make_csv_dataset(p, 1, select_columns=["z"]), ArgumentError, "must be names or numbers of the columns"),
        (lambda p: make_csv_dataset(p, 1, select_columns=["a", 0]), ArgumentError, "select_columns names a column twice"),
        (lambda p: make_csv_dataset(p, 1, column_defaults=[0]), ArgumentError, "column_defaults needs one entry per column"),
        (lambda p: make_csv_dataset(p, 1, column_names=["a"]), DatasetError, "row 0 has 2 fields, but there are 1 columns"),
        (lambda p: make_csv_dataset("/nowhere/*", 1), DatasetError, "no file matches"),
        (lambda p: FixedLengthRecordDataset(p, 0), ArgumentError, "record_bytes must be at least 1. Received: 0"),
        (lambda p: FixedLengthRecordDataset(p, 1, -1), ArgumentError, "header_bytes must be at least 0. Received: -1"),
    ],
)
def test_arguments_that_are_refused(file, call, error, message):
    with pytest.raises(error, match=message):
        call(file("a,b\n1,2\n"))


def test_files_with_other_columns_or_none_are_refused(file):
    with pytest.raises(DatasetError, match=r"has the columns \['a', 'c'\], but .* has \['a', 'b'\]"):
        make_csv_dataset([file("a,b\n1,2\n"), file("a,c\n1,2\n")], 1)
    with pytest.raises(DatasetError, match="is empty, and has no header"):
        make_csv_dataset(file(""), 1)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("1e300", "float32"), ("-1e39", "float32"), ("0x1p200", "float32"), ("1e400", "float64"), ("-0x1p2000", "float64")],
)
def test_numbers_beyond_their_dtype_are_refused(file, text, dtype):
    with pytest.raises(ElementError, match=rf"field 1 is '{text}', which is beyond {dtype}. The record is: '1,{text}'"):
        list(CsvDataset(file(f"1,{text}\n"), ["int32", dtype]))
    for infinite in ("inf", " -Infinity", "INF"):
        assert np.isinf(next(iter(CsvDataset(file(f"1,{infinite}\n"), ["int32", dtype])))[1])


def test_a_number_beyond_the_dtype_that_was_inferred_is_refused(file):
    pattern = str(file("x\n1.5\n1e300\n"))
    assert next(iter(make_csv_dataset(pattern, 2, shuffle=False)))["x"].tolist() == [1.5, 1e300]
    with pytest.raises(ElementError, match="field 0 is '1e300', which is beyond float32"):
        next(iter(make_csv_dataset(pattern, 2, shuffle=False, num_rows_for_inference=1)))
