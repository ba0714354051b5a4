"""Files of NumPy: what each kind of array becomes, what is refused, and everything in a head that can be wrong."""

import ast
import contextlib
import io
import itertools
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicant.data import NumpyDataset, TensorSpec
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError
from replicant.input.files.arrays import _rows
from replicant.input.files.arrays._npy import NotArrayError, read_head


def saved(path, array, **settings):
    with path.open("wb") as file:
        np.save(file, array, **settings)
    return path


def with_head(path, text, data=b"", version=(1, 0)):
    """A file with a head of its own, padded as NumPy does it."""
    head = text.encode("latin-1")
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    width = "<H" if version == (1, 0) else "<I"
    path.write_bytes(b"\x93NUMPY" + bytes(version) + struct.pack(width, len(head)) + head + data)
    return path


DTYPES = ["?", "i1", "<i2", ">i2", "<i4", ">i4", "<i8", ">i8", "u1", ">u2", "<u4", ">u8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8"]


@pytest.mark.parametrize("dtype", [*DTYPES, "<c8", ">c16"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 3), (1, 4), (5, 1)])
def test_rows_are_those_of_the_array(tmp_path, dtype, order, shape):
    values = np.random.default_rng(0).integers(0, 100, shape)
    array = np.asarray(values, np.dtype(dtype), order=order)
    path = saved(tmp_path / "a.npy", array)
    dataset = NumpyDataset(path)
    native = np.dtype(dtype).newbyteorder("=")
    assert dataset.element_spec == TensorSpec(shape[1:], native)
    for rows in (list(dataset), [*np.concatenate(list(dataset.batch(3)))]):
        assert len(rows) == shape[0]
        for row, wanted in zip(rows, np.load(path), strict=True):
            assert row.dtype == native
            assert row.dtype.isnative
            np.testing.assert_array_equal(row, wanted)


def test_texts(tmp_path):
    words = np.array(["a", "héé", "", "日本"])
    assert list(NumpyDataset(saved(tmp_path / "u.npy", words))) == ["a", "héé", "", "日本"]
    assert list(NumpyDataset(saved(tmp_path / "big.npy", words.astype(">U3")))) == ["a", "héé", "", "日本"]
    assert list(NumpyDataset(saved(tmp_path / "s.npy", np.array([b"a", b"bc"])))) == [b"a", b"bc"]
    grid = NumpyDataset(saved(tmp_path / "g.npy", words.reshape(2, 2)))
    assert [row.tolist() for row in grid] == [["a", "héé"], ["", "日本"]]
    assert grid.element_spec == TensorSpec((2,), object)
    assert sorted(row.tolist() for row in grid.global_shuffle(seed=1)) == [["", "日本"], ["a", "héé"]]


@pytest.mark.parametrize("code", [0xFFFFFFFF, 0x110000, 0xD800, 0xDFFF])
def test_texts_that_are_none(tmp_path, code):
    path = saved(tmp_path / "u.npy", np.array(["a", "b"]))
    path.write_bytes(path.read_bytes()[:-4] + struct.pack("<I", code))
    for dataset in (NumpyDataset(path), NumpyDataset(path).global_shuffle()):
        with pytest.raises(
            DatasetError, match=rf"the rows from [01] on of '.*u\.npy' are not texts: {code:#x} is not a character\. Copy or"
        ):
            list(dataset)
    head = npy_bytes(np.array(["a", "b"]))[:-4]
    with pytest.raises(
        DatasetError, match=rf"the rows from [01] on of '.*u\.npz' are not texts: {code:#x} is not a character\. Copy or"
    ):
        list(NumpyDataset(archive(tmp_path / "u.npz", [("x.npy", head + struct.pack("<I", code))])))


def test_memory_maps(tmp_path):
    made = np.lib.format.open_memmap(tmp_path / "m.npy", "w+", np.float32, (4, 2))
    made[:] = np.arange(8).reshape(4, 2)
    made.flush()
    assert [row.tolist() for row in NumpyDataset(tmp_path / "m.npy")] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives(tmp_path, save):
    path = tmp_path / "a.npz"
    arrays = {
        "x": np.arange(6, dtype=">i4").reshape(3, 2),
        "in columns": np.asfortranarray(np.arange(12.0).reshape(3, 2, 2)),
        "name": np.array(["a", "b", "c"]),
        "flag": np.array([True, False, True]),
        "scalar": np.float32(3),
        "more": np.arange(7),
    }
    save(path, **arrays)
    dataset = NumpyDataset(path, columns=["flag", "in columns", "name", "x"])
    with np.load(path) as wanted:
        for number, row in enumerate(dataset):
            assert row.keys() == {"flag", "in columns", "name", "x"}
            for name, value in row.items():
                np.testing.assert_array_equal(value, wanted[name][number])
    assert dataset.element_spec == {
        "flag": TensorSpec((), bool),
        "in columns": TensorSpec((2, 2), np.float64),
        "name": TensorSpec((), object),
        "x": TensorSpec((2,), np.int32),
    }
    assert next(iter(dataset.batch(2)))["x"].tolist() == [[0, 1], [2, 3]]
    with pytest.raises(
        DatasetError, match=r"'.*a\.npz' has the member 'scalar\.npy', which is a scalar and has no rows\. Leave it"
    ):
        list(NumpyDataset(path))
    with pytest.raises(
        DatasetError, match=r"have different numbers of rows: 'x' has 3, 'more' has 7\. Leave some out: name others"
    ):
        list(NumpyDataset(path, columns=["x", "more"]))
    with pytest.raises(DatasetError, match=r"there is no array 'y' in '.*a\.npz'\. Its arrays are \['x', 'in columns', 'name'"):
        list(NumpyDataset(path, columns=["x", "y"]))
    with pytest.raises(
        DatasetError, match=r"the file at byte 0 of '.*' has \d+ bytes, more than 100, the most that max_file_bytes"
    ):
        list(NumpyDataset(path, columns=["x"], max_file_bytes=100))


def archive(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in members:
            file.writestr(name, data)
    return path


def npy_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("members", "compression", "message"),
    [
        (
            [("a.txt", b"text")],
            0,
            r"has the member 'a\.txt', which is not an array, because its name does not end in \.npy\. Leave it",
        ),
        ([("a.npy", b"text")], 0, r"has the member 'a\.npy', which begins with b'text' instead of b'\\x93NUMPY'"),
        ([("a.npy", npy_bytes(np.arange(3))[:-1])], 0, r"has the member 'a\.npy', which has 151 bytes, and its head says 152"),
        ([("a.npy", npy_bytes(np.arange(3)) + b"x")], 0, r"has the member 'a\.npy', which has 153 bytes, and its head says 152"),
        (
            [("a.npy", npy_bytes(np.empty((3, 0))))],
            0,
            r"has the member 'a\.npy', which has the shape \(3, 0\), so its rows are empty",
        ),
        (
            [("a.npy", npy_bytes(np.arange(3)))],
            zipfile.ZIP_LZMA,
            "has the member .*, which is compressed or encrypted in a way that NumPy does not write",
        ),
        ([("a", npy_bytes(np.arange(3))), ("a.npy", npy_bytes(np.arange(3)))], 0, "has two arrays of one name"),
        ([], 0, r"has no arrays\. Leave it out, or write it again"),
    ],
)
def test_archives_that_numpy_does_not_write(tmp_path, members, compression, message):
    with pytest.raises(DatasetError, match=rf"NumpyDataset: '.*a\.npz' {message}"):
        list(NumpyDataset(archive(tmp_path / "a.npz", members, compression)))


def test_archives_that_are_damaged(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(1000))
    whole = path.read_bytes()
    for data in (whole[:-10], whole[:500], whole[:4] + whole[10:], whole.replace(struct.pack("<q", 500), struct.pack("<q", 501))):
        path.write_bytes(data)
        with pytest.raises(DatasetError, match=r"NumpyDataset: '.*a\.npz' (is not a complete archive of arrays \(|has)"):
            list(NumpyDataset(path))
        lenient = iter(NumpyDataset([path, saved(tmp_path / "b.npz", np.arange(2))], on_error="skip"))
        assert [int(row) for row in lenient] == [0, 1]
        assert lenient.num_skipped == 1


def test_a_small_archive_takes_no_more_memory_than_is_allowed(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros(10_000_000, np.uint8))
    assert path.stat().st_size < 20_000
    with pytest.raises(DatasetError, match=r"has 10,000,128 bytes, more than 5,000,000, the most that max_file_bytes allows"):
        list(NumpyDataset(path, max_file_bytes=5_000_000))


OBJECTS = np.array([{"a": 1}, None], object)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (
            np.zeros(3, [("a", "<i4"), ("b", "<f4")]),
            r"holds records, which no device computes with\. Write one array for each field",
        ),
        (np.zeros((), np.float32), "is a scalar and has no rows"),
        (OBJECTS, "holds Python objects, which are pickled: to read them would run whatever code the file contains"),
        (np.array(["2020-01-01"], "M8[D]"), r"holds dates or times, of dtype datetime64\[D\]\. Write numbers: .*astype\('int64'\)"),
        (np.array([1], "m8[s]"), r"holds dates or times, of dtype timedelta64\[s\]"),
        (np.zeros(3, ml_dtypes.bfloat16), r"holds raw bytes, of dtype \|V2, as np\.save makes of bfloat16 and the like\. Write"),
        (np.zeros(3, np.longdouble), r"is of dtype float128, which no device computes with\. Write another: `array\.astype"),
        (np.zeros((3, 0), np.float32), r"has the shape \(3, 0\), so its rows are empty"),
    ],
)
def test_arrays_that_no_device_takes(tmp_path, array, message):
    path = saved(tmp_path / "a.npy", array)
    with pytest.raises(DatasetError, match=rf"NumpyDataset: '.*a\.npy' {message}"):
        list(NumpyDataset(path))
    np.savez(tmp_path / "b.npz", x=array)
    with pytest.raises(DatasetError, match=rf"NumpyDataset: '.*b\.npz' has the member 'x\.npy', which {message}"):
        list(NumpyDataset(tmp_path / "b.npz"))


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    path = saved(tmp_path / "a.npy", np.array([Trap()], object), allow_pickle=True)
    with pytest.raises(DatasetError, match="holds Python objects, which are pickled"):
        list(NumpyDataset(path))
    assert not (tmp_path / "sprung").exists()


FOUR = struct.pack("<4i", 1, 2, 3, 4)


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<i4', 'fortran_order': False, 'shape': (4,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (4L,), }",  # Python 2
        "{'shape': (4,), 'fortran_order': False, 'descr': '<i4'}",
        '{"descr": "<i4", "fortran_order": False, "shape": (4,)}',
        "{ 'descr' : 'i4', 'fortran_order' : True, 'shape' : ( 4 , ) , }",
    ],
)
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_heads_of_other_writers(tmp_path, text, version):
    path = with_head(tmp_path / "a.npy", text, FOUR, version)
    assert [int(each) for each in NumpyDataset(path)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has a head that NumPy does not write: ''"),
        ("{}", "has a head that NumPy does not write: '{}'"),
        ("{'descr': '<i4', 'fortran_order': False}", "has a head that NumPy does not write"),
        ("{'descr': '<i4', 'fortran_order': 0, 'shape': (4,)}", "has a head that NumPy does not write"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (4,)} x", "has a head that NumPy does not write"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (4,), x}", "has a head that NumPy does not write"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (-4,)}", "has a head that NumPy does not write"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (4, , 1)}", r"has the shape \(4, , 1\), which is none"),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (4 4)}", r"has the shape \(4 4\), which is none"),
        ("{'descr': 'q9', 'fortran_order': False, 'shape': (4,)}", "has the dtype 'q9', which NumPy does not know"),
        (
            "{'descr': '<i4', 'fortran_order': False, 'shape': (5,)}",
            r"has 144 bytes, and its head says 148: an array of shape \(5,\)",
        ),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (3,)}", "has 144 bytes, and its head says 140: .*, or write one array"),
        (
            "{'descr': '<i4', 'fortran_order': False, 'shape': (9999999999999999999, 9999999999999999999)}",
            r"has 144 bytes, and its head says 3\d{38}:",
        ),
        ("{'descr': '|S0', 'fortran_order': False, 'shape': (9999,)}", r"is of dtype \|S0, which no device computes with"),
    ],
)
def test_heads_that_are_wrong(tmp_path, text, message):
    path = with_head(tmp_path / "a.npy", text, FOUR)
    with pytest.raises(DatasetError, match=rf"NumpyDataset: '.*a\.npy' {message}"):
        list(NumpyDataset(path))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"begins with b'' instead of b'\\x93NUMPY'\. Pass files of np\.save or np\.savez, or copy or write the file again\."),
        (b"\x93NUMPY", r"has the version b'' of the format, and 1\.0, 2\.0 and 3\.0 are read"),
        (b"\x93NUMPY\x04\x00aa", r"has the version b'\\x04\\x00' of the format"),
        (b"\x93NUMPY\x01\x00\xff\xff", "has a head of 65545 bytes, and 10 at most can be there"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100_000), "has a head of 4294967307 bytes, and 65536 at most can be there"),
    ],
)
def test_files_that_are_no_arrays(tmp_path, data, message):
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(DatasetError, match=rf"NumpyDataset: '.*a\.npy' {message}"):
        list(NumpyDataset(tmp_path / "a.npy"))
    assert list(NumpyDataset(saved(tmp_path / "b.npy", np.empty(0, np.int32)))) == []


@given(
    st.sampled_from(["<i4", ">f8", "|b1", "<c8", "|u1"]),
    st.booleans(),
    st.lists(st.integers(0, 1 << 40), max_size=5),
    st.sampled_from([(1, 0), (2, 0)]),
)
def test_a_head_says_what_python_says(descr, in_columns, shape, version):
    """Whatever NumPy writes, it is what evaluating the text gives."""
    file = io.BytesIO()
    write = np.lib.format.write_array_header_1_0 if version == (1, 0) else np.lib.format.write_array_header_2_0
    write(file, {"descr": descr, "fortran_order": in_columns, "shape": tuple(shape)})
    head = read_head(file.getvalue())
    text = file.getvalue()[10 if version == (1, 0) else 12 :].decode()
    wanted = ast.literal_eval(text)
    assert (head.dtype, head.shape, head.size) == (np.dtype(wanted["descr"]), wanted["shape"], len(file.getvalue()))
    assert head.in_columns == (wanted["fortran_order"] and len(shape) > 1)


@given(st.binary(max_size=200), st.integers(0, 127), st.integers(0, 255))
def test_no_head_is_an_error_of_another_kind(tail, at, byte):
    file = io.BytesIO()
    np.save(file, np.arange(4))
    for data in (file.getvalue()[:8] + tail, file.getvalue()[:at] + bytes([byte]) + file.getvalue()[at + 1 :]):
        with contextlib.suppress(NotArrayError):
            read_head(data)


def test_rows_of_many_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(_rows, "PIECE", 64)
    monkeypatch.setattr(_rows, "_MOST_AT_ONCE", 160)
    array = np.arange(300, dtype=np.int16).reshape(100, 3)
    dataset = NumpyDataset(saved(tmp_path / "a.npy", array))
    assert [row.tolist() for row in dataset] == array.tolist()
    assert np.concatenate(list(dataset.batch(33))).tolist() == array.tolist()
    assert next(iter(dataset.batch(100))).tolist() == array.tolist()
    iterator = iter(dataset)
    assert len(list(itertools.islice(iterator, 37))) == 37
    again = iter(dataset)
    again.restore(iterator.state())
    assert [row.tolist() for row in again] == array[37:].tolist()


def test_files_of_other_rows(tmp_path):
    files = [saved(tmp_path / "a.npy", np.zeros((2, 3), np.float32)), saved(tmp_path / "b.npy", np.zeros((2, 4), np.float32))]
    for dataset in (NumpyDataset(files), NumpyDataset(files).global_shuffle(), NumpyDataset(files).global_shuffle(window=2)):
        with pytest.raises(
            DatasetError,
            match=r"NumpyDataset: the elements of '.*b\.npy' are TensorSpec\(shape=\(4,\), dtype=float32\), and those of the first "
            r"file TensorSpec\(shape=\(3,\), dtype=float32\)\. Write the files again with one shape and dtype, or make a dataset",
        ):
            list(dataset)


def test_limits(tmp_path):
    path = saved(tmp_path / "a.npy", np.zeros((2, 100), np.float64))
    assert len(list(NumpyDataset(path, max_record_bytes=800))) == 2
    for dataset in (NumpyDataset(path, max_record_bytes=799), NumpyDataset(path, max_record_bytes=799).global_shuffle()):
        with pytest.raises(
            DatasetError, match=r"the row at byte 128 of '.*' has 800 bytes, more than 799, the most that max_record"
        ):
            list(dataset)
    path = saved(tmp_path / "b.npy", np.asfortranarray(np.zeros((2, 100), np.float64)))
    assert len(list(NumpyDataset(path, max_file_bytes=1600))) == 2
    with pytest.raises(
        DatasetError, match=r"is in Fortran's order, so it has to be in memory as a whole, and has 1,600 bytes, more"
    ):
        list(NumpyDataset(path, max_file_bytes=1599))


def test_arguments(tmp_path):
    with pytest.raises(ArgumentTypeError, match="NumpyDataset: columns must be a list of names, or None for all"):
        NumpyDataset("a", columns="x")
    with pytest.raises(ArgumentError, match='NumpyDataset: on_error must be "raise" or "skip"'):
        NumpyDataset("a", on_error="ignore")
    with pytest.raises(ArgumentTypeError, match="NumpyDataset takes a file name or a list of them"):
        NumpyDataset(3)
    with pytest.raises(ArgumentError, match="NumpyDataset: max_file_bytes must be at least 1"):
        NumpyDataset("a", max_file_bytes=0)
    assert NumpyDataset("a", ["x"], on_error="skip").node.label == "NumpyDataset(columns=['x'], on_error=\"skip\")"
