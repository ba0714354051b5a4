"""JSON Lines: values, compressions, positions, lines that are wrong, and what is skipped."""

import gzip
import itertools
import json
import re
import zlib

import jax
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from replicant.data import Dataset, DistributedDataset, JsonLinesDataset, TensorSpec
from replicant.errors import ArgumentError, ArgumentTypeError, ConfigurationError, DatasetError, ElementError
from replicant.input.files import _stream
from replicant.input.files._zstd import ZstdStream
from replicant.replicas._topology import Topology

COMPRESS = {"": lambda data: data, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}


def write(path, rows, suffix=""):
    data = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows).encode()
    path = path.with_name(path.name + suffix)
    path.write_bytes(COMPRESS[suffix](data))
    return path


def decompressed(path):
    """What can be had of a file that is cut off."""
    inflate = zlib.decompressobj(31) if path.suffix == ".gz" else zstandard.ZstdDecompressor().decompressobj()
    return inflate.decompress(path.read_bytes())


def xs(elements):
    return [int(element["x"]) for element in elements]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_values(tmp_path, suffix):
    rows = [{"x": 1, "f": 0.5, "t": "é", "l": [1, 2], "d": {"a": True}}, {"t": "", "x": -2, "f": 2, "l": [], "d": {"a": False}}]
    path = write(tmp_path / "a", rows, suffix)
    dataset = JsonLinesDataset(path)
    assert dataset.element_spec == {
        "x": TensorSpec((), np.int32),
        "f": TensorSpec((), np.float32),
        "t": TensorSpec((), object),
        "l": TensorSpec((None,), np.int32),
        "d": {"a": TensorSpec((), np.bool_)},
    }
    one, other = dataset
    assert (one["x"], one["f"], one["t"], one["l"].tolist(), one["d"]) == (1, 0.5, "é", [1, 2], {"a": True})
    assert (other["x"], other["f"], other["l"].tolist(), other["l"].dtype) == (-2, 2, [], np.int32)
    (batch,) = JsonLinesDataset(path, columns=["l"]).padded_batch(2)
    assert batch["l"].tolist() == [[1, 2], [0, 0]]
    assert repr(JsonLinesDataset(path, columns=["l"])) == "<Dataset: files(1 files) > JsonLinesDataset(columns=['l'])>"
    assert xs(
        JsonLinesDataset(
            path,
            output_signature={n: TensorSpec(s.shape, s.dtype) for n, s in dataset.element_spec.items() if n != "d"}
            | {"d": dataset.element_spec["d"], "x": TensorSpec((), np.int64)},
        )
    ) == [1, -2]


def test_empty_files_and_blank_lines(tmp_path):
    empty, blank = write(tmp_path / "e", []), write(tmp_path / "b", ["\n", " \r\n", {"x": 1}, "\n", '{"x": 2}'])
    assert list(JsonLinesDataset(empty)) == []
    assert xs(JsonLinesDataset([empty, blank, empty])) == [1, 2]
    assert xs(JsonLinesDataset([empty, blank]).skip(1)) == [2]
    assert JsonLinesDataset(empty).element_spec is None


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("reads", [None, 2])
def test_a_position_leads_to_the_same_rest_from_every_point(tmp_path, suffix, reads, monkeypatch):
    monkeypatch.setattr(_stream, "PIECE", 16)
    rows = [[{"x": i} for i in range(5)], ["bad\n", {"x": 5}, "{}\n", {"x": 6}]]
    paths = [write(tmp_path / str(i), each, suffix) for i, each in enumerate(rows)]

    def dataset():
        return JsonLinesDataset(paths, on_error="skip", num_parallel_reads=reads)

    whole = xs(dataset())
    assert sorted(whole) == list(range(7))
    for cut in range(8):
        with iter(dataset()) as iterator:
            assert xs(itertools.islice(iterator, cut)) == whole[:cut]
            state = json.loads(json.dumps(iterator.state()))
        again = iter(dataset())
        again.restore(state)
        assert xs(again) == whole[cut:]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_position_in_a_file_that_has_become_shorter(tmp_path, suffix, on_error):
    """It had been the end of the file, so that the rest of the pass had no lines."""
    dataset = JsonLinesDataset(write(tmp_path / "a", [{"x": i} for i in range(100)], suffix), on_error=on_error)
    with iter(dataset) as iterator:
        assert xs(itertools.islice(iterator, 90)) == list(range(90))
        state = json.loads(json.dumps(iterator.state()))
    path = write(tmp_path / "a", [{"x": i} for i in range(10)], suffix)
    again = iter(dataset)
    again.restore(state)
    message = rf"JsonLinesDataset: the position is at byte 890 of '{path}', which has only 90 bytes now.*put it back as it was, or"
    with pytest.raises(DatasetError, match=message):
        list(again)
    write(tmp_path / "a", [{"x": i} for i in range(90)], suffix)
    again = iter(dataset)
    again.restore(state)
    assert xs(again) == []  # the position is at the end of the file


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(1, 40), st.integers(0, 12))
@settings(max_examples=60)
def test_every_good_line_once_whatever_the_pieces(tmp_path_factory, kinds, piece, cut):
    """Of each line, ``kinds`` says whether it is good, bad, blank or long."""
    lines = {1: "[1]\n", 2: "\n"}
    rows = [lines.get(kind, {"x": i, "s": "y" * 10 * kind}) for i, kind in enumerate(kinds)]
    path = write(tmp_path_factory.mktemp("lines") / "a", rows)
    good = [i for i, kind in enumerate(kinds) if kind in (0, 3)]
    before, _stream.PIECE = _stream.PIECE, piece
    try:
        iterator = iter(JsonLinesDataset(path, on_error="skip"))
        begun = xs(itertools.islice(iterator, cut))
        again = iter(JsonLinesDataset(path, on_error="skip"))
        again.restore(iterator.state())
        assert begun + xs(iterator) == begun + xs(again) == good
        assert iterator.num_skipped == kinds.count(1)
        assert xs(JsonLinesDataset(path).ignore_errors()) == good
    finally:
        _stream.PIECE = before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"x": 1\n', "it is not JSON: Expecting ',' delimiter"),
        ("3\n", "it is not an object but int"),
        ('{"x": "a"}\n', r"\['x'\] is TensorSpec\(shape=\(\), dtype=string\), expected .*int32.*`output_signature`"),
        ('{"x": 3000000000}\n', ".*dtype=int64.*expected .*int32"),
        ('{"x": 1.5}\n', ".*dtype=float32.*expected .*int32"),
        ('{"x": [1, [2]]}\n', r"\['x'\] is not a tensor: its lists have unequal lengths"),
        ('{"x": null}\n', r"column 'x' has no value; give a value to use instead: fill_null=\{'x': 0\}\."),
        ("{}\n", r"it has no values, so it has no columns\."),
        ('{"d": {}}\n', r"it has no values, so it has no columns\."),
        (
            '{"y": 1}\n',
            "it has the columns .*'y'.*, but .*'x'.* are expected, as in the first line; name those to read in `columns`",
        ),
        ('{"x": 1, "y": 1}\n', "it has the columns"),
        ("[" * 100_000 + "\n", "it is not JSON"),
    ],
)
def test_a_line_that_is_wrong_is_named_after_those_before_it(tmp_path, line, message):
    path = write(tmp_path / "a", [{"x": 0}, "\n", {"x": 1}, line, {"x": 2}])
    iterator = iter(JsonLinesDataset(path))
    assert xs(itertools.islice(iterator, 2)) == [0, 1]
    with pytest.raises(ElementError, match=rf"JsonLinesDataset: {path}:4 \(byte 19\): {message}.*The line is.*on_error=\"skip\""):
        next(iterator)
    with pytest.raises(ElementError, match=":4 "):
        next(iterator)
    assert xs(JsonLinesDataset(path).ignore_errors()) == [0, 1, 2]
    lenient = JsonLinesDataset(path, on_error="skip").batch(2)
    with iter(DistributedDataset(lenient, Topology(), lambda rows, sizes: rows.tolist())) as distributed:
        assert [step["x"] for step in distributed] == [[0, 1], [2]]
        assert distributed.stats().num_skipped == 1


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ('{"c": "a"}\n', '{"c": null}\n', {"c": ""}),
        ('{"c": true}\n', '{"c": null}\n', {"c": False}),
        ('{"c": 1.5}\n', "{}\n", {"c": 0}),
        ('{"c": [1]}\n', '{"c": null}\n', {"c": []}),
        ('{"c": {"d": 1, "e": "a"}}\n', '{"c": null}\n', {"c": {"d": 0, "e": ""}}),
    ],
)
def test_the_error_about_a_missing_value_says_what_may_stand_for_it(tmp_path, first, second, expected):
    """It had been 0 for every column, which a column of texts refuses."""
    path = write(tmp_path / "a", [first, second])
    with pytest.raises(
        ElementError, match=rf"column 'c' has no value; give a value to use instead: fill_null={re.escape(repr(expected))}\."
    ):
        list(JsonLinesDataset(path, columns=["c"]))
    found = list(JsonLinesDataset(path, columns=["c"], fill_null=expected))[1]
    assert jax.tree.map(lambda leaf: leaf if isinstance(leaf, str) else leaf.tolist(), found) == expected


def test_a_first_line_without_values(tmp_path):
    """It had been an error about a PyTreeDef."""
    path = write(tmp_path / "a", ["{}\n", {"x": 1}])
    with pytest.raises(ElementError, match=r":1 .byte 0.: it has no values, so it has no columns\. The line is '{}'\. Correct it"):
        list(JsonLinesDataset(path))
    lenient = iter(JsonLinesDataset(path, on_error="skip"))
    assert (xs(lenient), lenient.num_skipped) == ([1], 1)
    with pytest.raises(ElementError, match=r"fill_null=\{'x': 0\}, or '' for a text\. The line is"):
        list(JsonLinesDataset(write(tmp_path / "b", ['{"x": null}\n'])))


@pytest.mark.parametrize("line", ['{"x": 1e400}', '{"x": -1e400}', '{"x": [1.0, 1e400]}', '{"x": {"y": "a", "z": 1e400}}'])
def test_a_number_beyond_float64_is_no_infinity(tmp_path, line):
    path = write(tmp_path / "a", [line + "\n", line + "\n"])
    with pytest.raises(
        ElementError, match=r":1 .byte 0.: it holds the number -?1e400, which is beyond float64; write null, a text"
    ):
        list(JsonLinesDataset(path))
    lenient = iter(JsonLinesDataset(path, on_error="skip"))
    assert (list(lenient), lenient.num_skipped) == ([], 2)
    wide = JsonLinesDataset(path, output_signature=JsonLinesDataset(path).element_spec)
    with pytest.raises(ElementError, match="beyond float64"):
        list(wide)


def test_infinity_as_it_is_written(tmp_path):
    path = write(tmp_path / "a", ['{"x": 1.0, "y": 1}\n', '{"x": -Infinity, "y": 1e400}\n', '{"x": NaN, "y": 1}\n'])
    values = [float(row["x"]) for row in JsonLinesDataset(path, columns=["x"])]
    assert values[:2] == [1, -np.inf]
    assert np.isnan(values[2])


def test_the_first_line_is_wrong(tmp_path):
    path = write(tmp_path / "a", ["no\n", {"x": 1}])
    iterator = iter(JsonLinesDataset(path))
    with pytest.raises(ElementError, match=r":1 .byte 0.: it is not JSON"):
        next(iterator)
    assert xs(JsonLinesDataset(path).ignore_errors()) == [1]


def test_values_that_are_missing(tmp_path):
    path = write(tmp_path / "a", [{"x": 1, "s": None}, {"x": None, "s": "a"}, {"s": "b", "z": 0}])
    dataset = JsonLinesDataset(path, columns=["x", "s"], fill_null={"x": -1, "s": "?"})
    assert [(int(row["x"]), row["s"]) for row in dataset] == [(1, "?"), (-1, "a"), (-1, "b")]


@pytest.mark.parametrize(("suffix", "kind"), [(".gz", "GZIP"), (".zst", "ZSTD")])
def test_compressed_files_that_are_cut_off_or_damaged(tmp_path, suffix, kind):
    rng = np.random.default_rng(0)
    path = write(tmp_path / "a", [{"x": int(x)} for x in rng.integers(0, 1 << 30, 300)], suffix)
    data = path.read_bytes()
    for damaged in (data[:-9], data[:200] + bytes(20) + data[220:]):
        path.write_bytes(damaged)
        with pytest.raises(DatasetError, match=f"JsonLinesDataset: '{path}' is not a complete {kind} file"):
            list(JsonLinesDataset(path))
    path.write_bytes(data + COMPRESS[suffix](b'{"x": 7}\n'))
    assert xs(JsonLinesDataset(path))[-1] == 7


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: JsonLinesDataset("a", compression_type="XZ"), ArgumentError, "compression_type must be \"AUTO\", None.*'XZ'"),
        (lambda: JsonLinesDataset("a", output_signature=[1]), ArgumentTypeError, "output_signature must be a dict of TensorSpec"),
        (lambda: JsonLinesDataset("a", columns="x"), ArgumentTypeError, "columns must be a list of names"),
        (lambda: JsonLinesDataset("a", on_error="no"), ArgumentError, 'on_error must be "raise" or "skip"'),
        (lambda: list(JsonLinesDataset("nowhere")), DatasetError, "cannot open 'nowhere'"),
        (lambda: list(JsonLinesDataset(Dataset.range(1))), DatasetError, "reads a dataset of file names"),
    ],
)
def test_refused(make, error, message):
    with pytest.raises(error, match=f"JsonLinesDataset.*{message}"):
        make()


def test_without_zstandard(tmp_path, monkeypatch):
    path = write(tmp_path / "a", [{"x": 1}], ".zst")
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(ConfigurationError, match=r"JsonLinesDataset reads .zst files with zstandard.*'replicant-jax\[zstd\]'"):
        list(JsonLinesDataset(path))


def test_whole_numbers_that_a_float_would_round_are_refused(tmp_path):
    rows = iter(JsonLinesDataset(write(tmp_path / "a", [{"x": 1.5}, {"x": 16777216}, {"x": 16777217}])))
    assert xs(itertools.islice(rows, 2)) == [1, 16777216]
    with pytest.raises(ElementError, match=r"a:3 .*\['x'\] is TensorSpec.*int32\), expected .*float32"):
        next(rows)
    signature = {"x": TensorSpec((None,), np.float64)}
    with pytest.raises(ElementError, match=r"\['x'\] is .*int64\), expected .*float64"):
        list(JsonLinesDataset(write(tmp_path / "b", [{"x": [2**53 + 1, 1]}]), output_signature=signature))


def test_settings_count_for_files_that_are_read_at_once(tmp_path):
    path = write(tmp_path / "a", [{"x": 1, "y": 2}, {"x": None, "y": 3}])

    def filled(value, columns=("x",)):
        return JsonLinesDataset(path, columns=columns, fill_null={"x": value}, num_parallel_reads=2)

    assert repr(filled(0)) == repr(filled(0))
    assert len({repr(filled(0)), repr(filled(7)), repr(filled(0, ("x", "y")))}) == 3
    assert xs(filled(0).cache(str(tmp_path / "cache"))) == [1, 0]
    with pytest.raises(DatasetError, match="was written by another pipeline"):
        list(filled(7).cache(str(tmp_path / "cache")))


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize(
    "change",
    [lambda rows: rows, lambda rows: rows.prefetch(16), lambda rows: rows.batch(7).unbatch()],
    ids=["", "prefetch", "batch"],
)
@pytest.mark.long_cases("prefetch-.gz", "prefetch-.zst")
def test_rows_before_the_end_of_a_file_that_is_cut_off_come_first(tmp_path, suffix, change):
    numbers = np.random.default_rng(0).integers(0, 1 << 30, 30_000).tolist()
    path = write(tmp_path / "a", [{"x": x} for x in numbers], suffix)
    path.write_bytes(path.read_bytes()[:-20_000])
    whole = decompressed(path).count(b"\n")
    whole -= 0 if "batch" not in repr(change(JsonLinesDataset(path))) else whole % 7
    assert 10_000 < whole < 30_000
    iterator = iter(change(JsonLinesDataset(path)))
    assert xs(itertools.islice(iterator, whole)) == numbers[:whole]
    for _ in range(2):
        with pytest.raises(DatasetError, match=r"is not a complete (GZIP|ZSTD) file: it ends in the middle"):
            next(iterator)


class Copied(bytes):
    """Bytes that count how many of them are copied."""

    count = 0

    def __getitem__(self, place):
        piece = Copied(super().__getitem__(place))
        Copied.count += len(piece)
        return piece


def test_a_zstd_file_that_grows_much_is_decompressed_block_by_block(tmp_path):
    """A few bytes of it become many MiB, of which 128 KiB are in memory."""
    size, piece = 8 << 20, memoryview(bytearray(1 << 16))
    (tmp_path / "a").write_bytes(zstandard.compress(bytes(size)))
    stream = ZstdStream("JsonLinesDataset", str(tmp_path / "a"))
    given = most = 0
    while count := stream.read_into(piece):
        given, most = given + count, max(most, len(stream.made))
    assert (given, most) == (size, 128 << 10)
    stream.close()


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_position_after_the_end_of_a_file_is_told(tmp_path, suffix):
    path = write(tmp_path / "a", [{"x": i} for i in range(9)], suffix)
    iterator = iter(JsonLinesDataset(path))
    assert xs(itertools.islice(iterator, 5)) == [0, 1, 2, 3, 4]
    write(tmp_path / "a", [{"x": 0}], suffix)
    again = iter(JsonLinesDataset(path))
    again.restore(iterator.state())
    with pytest.raises(
        DatasetError, match=r"JsonLinesDataset: the position is at byte 45 of .*a.*, which has only 9 bytes now\. The"
    ):
        next(again)


def test_fill_null_of_a_column_that_is_not_read(tmp_path):
    path = write(tmp_path / "a", [{"x": 1}])
    with pytest.raises(ArgumentError, match=r"fill_null names \['y'\], but the columns that are read are \['x'\]"):
        JsonLinesDataset(path, columns=["x"], fill_null={"y": 0})


def test_numbers_beyond_their_dtype_are_named(tmp_path):
    for value in ("1e300", "-1e39", "3000000000000"):
        path = write(tmp_path / "a", [{"x": 1.5} if "e" in value else {"x": 1}, f'{{"x": {value}}}\n'])
        iterator = iter(JsonLinesDataset(path))
        next(iterator)
        with pytest.raises(
            ElementError, match=rf"{path}:2 .*\['x'\] .*(beyond float32|expected .*int32).* The line is '{{\"x\": {value}}}'"
        ):
            next(iterator)
