"""Quotes of CSV files: records of several lines, quotes too many, and the time that they take."""

import csv
import json
import time

import hypothesis
import hypothesis.strategies as st
import pandas as pd
import pytest

from replicant.data import CsvDataset, DistributedDataset, make_csv_dataset
from replicant.errors import ArgumentError, DatasetError, ElementError
from replicant.input.files import _stream
from replicant.replicas._topology import Topology

TEXTS = st.text(st.sampled_from('ab ü",;\t\n\r'), max_size=6)


@st.composite
def files(draw):
    """A valid CSV file, its delimiter and its rows."""
    delimiter = draw(st.sampled_from([",", ";", "\t", "ä"]))
    width = draw(st.integers(2, 4))
    rows = draw(st.lists(st.lists(TEXTS, min_size=width, max_size=width), min_size=1, max_size=12))
    text = ""
    for row in rows:
        written = []
        for field in row:
            needs_quotes = any(each in field for each in (delimiter, '"', "\n", "\r"))
            quoted = '"' + field.replace('"', '""') + '"'
            written.append(quoted if needs_quotes or draw(st.booleans()) else field)
        text += delimiter.join(written) + draw(st.sampled_from(["\n", "\r\n"]))
    if draw(st.booleans()):
        text = text.removesuffix("\n").removesuffix("\r")
    return text, delimiter, [tuple(row) for row in rows]


@hypothesis.settings(deadline=None, max_examples=150)
@hypothesis.given(files(), st.integers(16, 64))
def test_valid_files_have_the_rows_that_pandas_reads(tmp_path_factory, given, piece):
    text, delimiter, rows = given
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_stream, "PIECE", piece)
        dataset = CsvDataset(str(path), [""] * len(rows[0]), field_delim=delimiter)
        iterator, states = iter(dataset), []
        found = []
        for row in iterator:
            found.append(row)
            states.append(json.loads(json.dumps(iterator.state())))
        assert found == rows
        for number, state in enumerate(states):
            iterator.restore(state)
            assert list(iterator) == rows[number + 1 :]
    read = pd.read_csv(path, engine="python", header=None, dtype=str, keep_default_na=False, sep=delimiter, skip_blank_lines=False)
    assert [tuple(row) for row in read.values.tolist()] == rows


ROWS = [  # the file; the rows that can be read; the number that cannot
    ('1,a\n2,5" pipe\n3,c\n', [(1, "a"), (3, "c")], 1),  # a quote inside of a field is an error of its record, and no more
    ('1,a\n2,5"\n3,c\n', [(1, "a"), (3, "c")], 1),
    ('1,5" x 3"\n2,b\n', [(2, "b")], 1),
    ('1,a\n2,"inch\n3,c\n4,d\n', [(1, "a"), (3, "c"), (4, "d")], 1),  # which nothing closes
    ('1,"inch\n2,"b, c"\n3,d\n', [(2, "b, c"), (3, "d")], 1),  # a quote that does not close it
    ('1,"inch\n2,"inch\n3,c\n', [(3, "c")], 2),
    ('1,"inch\n2,"inch\n3,"inch\n4,d', [(4, "d")], 3),
    ('1,"a" b\n2,c\n', [(2, "c")], 1),
    ('"1" ,a\n2,b\n', [(2, "b")], 1),
    ('1,"a\nb" c\n2,d\n', [(2, "d")], 2),  # each of its lines
    ('x"y,"a\nb"\n2,c\n', [(2, "c")], 1),  # one record, as its second field says
    ('1,"a\nb",x"y\n2,c\n', [(2, "c")], 1),
    ('1,"a\n"\n2,"b\n\n"\n3,""\n4,""""\n', [(1, "a\n"), (2, "b\n\n"), (3, ""), (4, '"')], 0),
    ('"1","a""\n""b"\n2,"c\r\nd"\r\n3,e\r4,f', [(1, 'a"\n"b'), (2, "c\r\nd"), (3, "e"), (4, "f")], 0),
    ('1,"a,b\n,",\n2,c\n', [(2, "c")], 1),  # three fields
    ('1,"', [], 1),
    ('1,"\n', [], 1),
    ('"""\n1,a\n', [(1, "a")], 1),
]


@pytest.fixture(params=[8, 1 << 18])
def pieces(request, monkeypatch):
    """Let files be read in small pieces, and in one."""
    monkeypatch.setattr(_stream, "PIECE", request.param)


@pytest.mark.parametrize(("text", "rows", "num_skipped"), ROWS)
@pytest.mark.usefixtures("pieces")
def test_a_quote_too_many_costs_its_line(tmp_path, text, rows, num_skipped):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    iterator = iter(CsvDataset(str(path), [0, ""]).ignore_errors())
    assert list(iterator) == rows
    assert iterator.num_skipped == num_skipped
    if num_skipped:
        with pytest.raises(ElementError, match=r"quotes|fields|no int32"):
            list(CsvDataset(str(path), [0, ""]))
    path.write_bytes(("n,text\n" + text).encode())
    options = {"column_defaults": [0, ""], "shuffle": False, "num_epochs": 1, "ignore_errors": True}
    iterator = iter(make_csv_dataset(str(path), 1, **options))
    assert [(int(batch["n"][0]), batch["text"][0]) for batch in iterator] == rows
    assert iterator.num_skipped == num_skipped


def test_an_inch_mark_costs_one_row_of_what_devices_get(tmp_path):
    path = tmp_path / "inch.csv"
    path.write_text("a,b\n" + "".join(f"{n},{'5' + chr(34) + ' pipe' if n == 5 else 'pipe'}\n" for n in range(100)))
    for defaults in (None, [0, ""]):
        dataset = make_csv_dataset(
            str(path), 10, column_defaults=defaults, shuffle=False, num_epochs=1, ignore_errors=True, num_parallel_reads=2
        )
        with iter(DistributedDataset(dataset, Topology(), lambda rows, sizes: rows.tolist())) as distributed:
            assert [n for step in distributed for n in step["a"]] == [n for n in range(100) if n != 5]
            assert distributed.stats().num_skipped == 1


def test_a_record_that_does_not_end_is_given_up_at_a_bound(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('1,"' + "x\n" * 40 + '"\n2,b\n')
    assert list(CsvDataset(str(path), [0, ""])) == [(1, "x\n" * 40), (2, "b")]
    assert list(CsvDataset(str(path), [0, ""], max_record_bytes=85)) == [(1, "x\n" * 40), (2, "b")]
    bounded = CsvDataset(str(path), [0, ""], max_record_bytes=84)
    with pytest.raises(
        ElementError, match=r"1 are not closed: the file ends, max_record_bytes \(84 bytes\) are over, or .* The record is: '1,\"x'"
    ):
        list(bounded)
    iterator = iter(bounded.ignore_errors())
    assert (list(iterator), iterator.num_skipped) == ([(2, "b")], 41)
    path.write_text('1,"x\n' + "2,b\n" * 3)
    with pytest.raises(ElementError, match=r"the file ends, max_record_bytes \(16,777,216 bytes\) are over, or"):
        list(CsvDataset(str(path), [0, ""]))
    assert list(CsvDataset(str(path), [0, ""], use_quote_delim=False)) == [(1, '"x'), (2, "b"), (2, "b"), (2, "b")]


def test_what_follows_a_record_without_an_end_is_read_before_the_file_is(tmp_path, monkeypatch):
    monkeypatch.setattr(_stream, "PIECE", 64)
    path = tmp_path / "a.csv"
    path.write_text('1,"x\n' + "2,b\n" * 10_000)
    iterator = iter(CsvDataset(str(path), [0, ""], max_record_bytes=1000).ignore_errors())
    assert next(iterator) == (2, "b")
    assert iterator.num_skipped == 1
    assert "'offset': 9" in str(iterator.state())
    assert list(iterator) == [(2, "b")] * 9_999


def test_quoted_records_take_linear_time(tmp_path):
    path = tmp_path / "a.csv"
    cases = {
        "one long record": lambda n: '1,"' + "y\n" * n + '"\n',
        "many records of two lines": lambda n: '1,"y\n"\n' * n,
        "nothing closes": lambda n: '1,"y\n' + '2,"",\n' * n,
        "every line opens": lambda n: '1,"y\n' * n,
        "every line opens and stays open": lambda n: 'x",",y\n' * n,
        "one long line": lambda n: '1,"' + '""' * n + '"\n',
    }
    for name, text in cases.items():
        seconds = []
        for lines in (4_000, 16_000):
            path.write_text(text(lines))
            begin = time.perf_counter()
            for _ in CsvDataset(str(path), [0, ""]).ignore_errors():
                pass
            seconds.append(time.perf_counter() - begin)
        assert seconds[1] < 10 * seconds[0] + 0.5, (name, seconds)  # 16 if it were quadratic


def test_names_and_dtypes_come_from_rows_that_can_be_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('n,"te\nxt"\nx,"y\n2,b\n3\n4.5,d\n')
    options = {"shuffle": False, "num_epochs": 1}
    (batch,) = make_csv_dataset(str(path), 5, ignore_errors=True, **options)
    assert {name: values.tolist() for name, values in batch.items()} == {"n": [2.0, 4.5], "te\nxt": ["b", "d"]}
    with pytest.raises(ElementError, match=r"make_csv_dataset: in .*a.csv', the quotes of field 1 are not closed: .*is: 'x,\"y'"):
        make_csv_dataset(str(path), 5, **options)
    path.write_text("n,text\n1,a\n2\n")
    with pytest.raises(
        DatasetError, match=r"row 1 has 1 fields, but there are 2 columns.* leave such rows out: ignore_errors=True"
    ):
        make_csv_dataset(str(path), 5, **options)
    path.write_text('n,5" pipe\n1,a\n')  # the names are not left out: the first row would stand for them
    with pytest.raises(ElementError, match="there are quotes inside of field 1"):
        make_csv_dataset(str(path), 5, ignore_errors=True, **options)


@pytest.mark.parametrize("delimiter", ["", "ab", "\n", "\r", '"'])
def test_delimiters_that_are_refused(delimiter):
    with pytest.raises(ArgumentError, match=r"field_delim must be one character, no line end, and no double quote unless"):
        CsvDataset("a.csv", [0], field_delim=delimiter)


def test_a_quote_is_a_delimiter_where_there_are_no_quotes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('1"2\n')
    assert list(CsvDataset(str(path), [0, 0], field_delim='"', use_quote_delim=False)) == [(1, 2)]


def test_wide_records(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([range(5000), range(5000)])
    assert list(CsvDataset(str(path), [0] * 5000)) == [tuple(range(5000))] * 2
