"""Files of token ids: windows of a stream, and Megatron's sequences."""

import struct

import numpy as np
import pytest

from replicant.data import MegatronDataset, TensorSpec, TokenDataset
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError
from replicant.input.files.arrays import _megatron, _rows

from .test_input_numbered import megatron


def stream(path, count, dtype=np.uint16):
    np.arange(count, dtype=dtype).tofile(path)
    return path


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "int64"])
@pytest.mark.parametrize(("length", "stride"), [(4, None), (4, 3), (4, 1), (4, 7), (1, 1), (20, 20), (21, 1)])
def test_windows(tmp_path, dtype, length, stride):
    path = stream(tmp_path / "a.bin", 20, dtype)
    dataset = TokenDataset(path, length, stride=stride, dtype=dtype)
    wanted = [[*range(at, at + length)] for at in range(0, 20 - length + 1, stride or length)]
    assert [row.tolist() for row in dataset] == wanted
    assert len(dataset) == len(wanted)
    assert dataset.element_spec == TensorSpec((length,), dtype)
    assert {row.dtype for row in dataset} <= {np.dtype(dtype)}
    assert sorted(row.tolist() for row in dataset.global_shuffle(seed=1)) == wanted
    assert [row for batch in dataset.batch(3) for row in batch.tolist()] == wanted


@pytest.mark.parametrize("stride", [1, 3, 4, 9])
def test_windows_of_many_pieces(tmp_path, monkeypatch, stride):
    monkeypatch.setattr(_rows, "PIECE", 40)
    monkeypatch.setattr(_rows, "_MOST_AT_ONCE", 100)
    path = stream(tmp_path / "a.bin", 200)
    wanted = [[*range(at, at + 4)] for at in range(0, 197, stride)]
    dataset = TokenDataset(path, 4, stride=stride, dtype="uint16")
    assert [row.tolist() for row in dataset] == wanted
    assert [row for batch in dataset.batch(64) for row in batch.tolist()] == wanted


def test_windows_that_overlap_share_no_memory(tmp_path):
    first, second = TokenDataset(stream(tmp_path / "a.bin", 6), 4, stride=2, dtype="uint16")
    first[:] = 99
    assert second.tolist() == [2, 3, 4, 5]


def test_a_window_does_not_reach_into_the_next_file(tmp_path):
    files = [stream(tmp_path / f"{i}.bin", count) for i, count in enumerate([5, 0, 3, 9])]
    assert [row.tolist() for row in TokenDataset(files, 4, dtype="uint16")] == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]]


def llm_c(path, ids, magic=20240520, version=1, *, count=None, dtype="<u2"):
    head = np.zeros(256, "<i4")
    head[:3] = magic, version, len(ids) if count is None else count
    path.write_bytes(head.tobytes() + np.array(ids, dtype).tobytes())
    return path


def test_the_head_of_llm_c(tmp_path):
    small = TokenDataset(llm_c(tmp_path / "gpt2.bin", range(50_000, 50_009)), 4)
    assert [row.tolist() for row in small] == [[*range(50_000, 50_004)], [*range(50_004, 50_008)]]
    assert small.element_spec == TensorSpec((4,), np.uint16)
    large = TokenDataset(llm_c(tmp_path / "llama3.bin", [128_000, 1, 2, 3], 20240801, 7, dtype="<u4"), 2)
    assert [row.tolist() for row in large] == [[128_000, 1], [2, 3]]
    assert large.element_spec == TensorSpec((2,), np.uint32)
    assert len(TokenDataset(tmp_path / "gpt2.bin", 4, dtype="uint16")) == 2
    with pytest.raises(
        DatasetError,
        match=r"TokenDataset: '.*llama3\.bin' has token ids of uint32, as its head says, which is that of llm\.c\. Received: "
        r"dtype=uint16\. Leave dtype out\.",
    ):
        list(TokenDataset(tmp_path / "llama3.bin", 2, dtype="uint16"))
    for count in (8, 10, -1):
        with pytest.raises(
            DatasetError, match=rf"has 1042 bytes, and its head, which is that of llm\.c, says {count} token ids of"
        ):
            list(TokenDataset(llm_c(tmp_path / "bad.bin", range(9), count=count), 4))
    with pytest.raises(DatasetError, match=r"the elements of '.*llama3\.bin' are .*uint32.*, and those of the first file .*uint16"):
        list(TokenDataset([tmp_path / "gpt2.bin", tmp_path / "llama3.bin"], 2))


def test_files_that_are_no_tokens(tmp_path):
    path = stream(tmp_path / "a.bin", 5, np.uint8)
    with pytest.raises(
        DatasetError, match=r"a\.bin' does not begin with llm\.c's head, so nothing in it says how many bytes a tok"
    ):
        list(TokenDataset(path, 2))
    with pytest.raises(
        DatasetError, match=r"a\.bin' has 5 bytes, which are not a whole number of token ids of uint16\. Pass the dtype"
    ):
        list(TokenDataset(path, 2, dtype="uint16"))
    assert list(TokenDataset(stream(tmp_path / "b.bin", 0), 2, dtype="uint16")) == []
    llm_c(tmp_path / "short.bin", [])
    (tmp_path / "short.bin").write_bytes((tmp_path / "short.bin").read_bytes()[:512])  # too short for the head, so it is none
    assert len(TokenDataset(tmp_path / "short.bin", 256, dtype="uint16")) == 1


def test_arguments():
    for dtype in ("float32", "int16", "words", object()):
        with pytest.raises(ArgumentError, match=r"TokenDataset: dtype must be one of 'uint8', 'uint16', .*, or None\. Received: "):
            TokenDataset("a", 4, dtype=dtype)
    for name in ("length", "stride"):
        with pytest.raises(ArgumentError, match=rf"TokenDataset: {name} must be at least 1\. Received: 0\."):
            TokenDataset("a", **{"length": 4, name: 0})
        with pytest.raises(ArgumentTypeError, match=rf"TokenDataset: {name} must be an integer\. Received: 1\.5\."):
            TokenDataset("a", **{"length": 4, name: 1.5})
    assert TokenDataset("a", 4, dtype=np.uint16).node.label == "TokenDataset(length=4, dtype=uint16)"
    assert TokenDataset("a", 4, stride=3, on_error="skip").node.label == 'TokenDataset(length=4, stride=3, on_error="skip")'
    with pytest.raises(ArgumentError, match="MegatronDataset: max_record_bytes must be at least 1"):
        MegatronDataset("a", max_record_bytes=0)


# Megatron


SEQUENCES = [[1, 2, 3], [], [4], [5, 6, 7, 8, 9], [10]]


def test_sequences(tmp_path):
    bin_file = megatron(tmp_path / "text_document", SEQUENCES)
    for name in (bin_file, tmp_path / "text_document", tmp_path / "text_document.idx"):
        dataset = MegatronDataset(name)
        assert [row.tolist() for row in dataset] == SEQUENCES
        assert dataset.element_spec == TensorSpec((None,), np.uint16)
    packs = list(dataset.pack_sequences(5))
    assert [pack["tokens"].tolist() for pack in packs] == [[5, 6, 7, 8, 9], [1, 2, 3, 4, 10]]
    assert sorted(row.tolist() for row in dataset.global_shuffle(seed=1)) == sorted(SEQUENCES)
    negative = megatron(tmp_path / "b", [[-1, 2]], code=4)
    assert [row.tolist() for row in MegatronDataset(negative)] == [[-1, 2]]
    assert list(MegatronDataset(megatron(tmp_path / "none", []))) == []


def test_sequences_of_many_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(_megatron, "_AHEAD", 7)
    monkeypatch.setattr(_megatron, "_MOST_AT_ONCE", 20)
    sequences = [[i] * (i % 9) for i in range(50)]
    dataset = MegatronDataset(megatron(tmp_path / "a", sequences))
    assert [row.tolist() for row in dataset] == sequences
    assert [row.tolist() for row in dataset.shuffle(1)] == sequences


def test_sequences_in_another_order_than_in_the_file(tmp_path):
    path = megatron(tmp_path / "a", [[1, 2], [3], [4, 5]])
    index = path.with_suffix(".idx")
    data = index.read_bytes()
    index.write_bytes(data[:34] + struct.pack("<3i3q", 2, 2, 1, 6, 0, 4) + data[34 + 36 :])
    assert [row.tolist() for row in MegatronDataset(path)] == [[4, 5], [1, 2], [3]]


def test_modes_are_left_out(tmp_path):
    path = megatron(tmp_path / "a", SEQUENCES)
    index = path.with_suffix(".idx")
    index.write_bytes(index.read_bytes() + bytes([0, 1, 0, 1, 0]))
    assert [row.tolist() for row in MegatronDataset(path)] == SEQUENCES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda data: b"TNTIDX\0\0" + data[8:],
            r"begins with b'TNTIDX.*instead of b'MMIDIDX.*Pass the prefix of a \.bin and an \.idx",
        ),
        (lambda data: data[:20], r"begins with b'MMIDIDX"),
        (lambda data: data[:9] + b"\2" + data[10:], "has the version 2 of the format, and 1 is read"),
        (lambda data: data[:17] + b"\6" + data[18:], "has the dtype number 6, a floating-point one, of which versions of Megatron"),
        (lambda data: data[:17] + b"\7" + data[18:], "has the dtype number 7, a floating-point one"),
        (lambda data: data[:17] + b"\0" + data[18:], r"has the dtype number 0, and \[1, 2, 3, 4, 5, 8, 9, 10\] are read"),
        (
            lambda data: data[:18] + b"\6" + data[19:],
            "has 142 bytes, and its head says 6 sequences and 6 limits of documents, which",
        ),
        (lambda data: data[:18] + b"\xff" * 8 + data[26:], "has 142 bytes, and its head says 18446744073709551615 sequences"),
        (lambda data: data[:-1], "has 141 bytes, and its head says 5 sequences and 6 limits of documents, which take 142"),
    ],
)
def test_an_index_that_is_damaged(tmp_path, change, message):
    path = megatron(tmp_path / "a", SEQUENCES)
    index = path.with_suffix(".idx")
    index.write_bytes(change(index.read_bytes()))
    for dataset in (MegatronDataset(path), MegatronDataset(path).global_shuffle()):
        with pytest.raises(DatasetError, match=rf"MegatronDataset: '.*a\.idx' {message}"):
            list(dataset)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (34 + 4 * 2, struct.pack("<i", -1), "says that sequence 2 has -2 from byte 6 on"),
        (34 + 4 * 2, struct.pack("<i", 1 << 30), "says that sequence 2 has 2147483648 from byte 6 on"),
        (34 + 20 + 8 * 2, struct.pack("<q", -2), "says that sequence 2 has 2 from byte -2 on"),
        (34 + 20 + 8 * 2, struct.pack("<q", 20), "says that sequence 2 has 2 from byte 20 on"),
        (34 + 20 + 8 * 2, struct.pack("<q", (1 << 63) - 1), "says that sequence 2 has 2 from byte 9223372036854775807 on"),
    ],
)
def test_places_that_are_not_in_the_file(tmp_path, at, value, message):
    path = megatron(tmp_path / "a", SEQUENCES)
    index = path.with_suffix(".idx")
    data = index.read_bytes()
    index.write_bytes(data[:at] + value + data[at + len(value) :])
    for dataset in (MegatronDataset(path), MegatronDataset(path).global_shuffle()):
        with pytest.raises(DatasetError, match=rf"MegatronDataset: '.*a\.bin' has 20 bytes, and its \.idx file {message}"):
            list(dataset)
    lenient = iter(MegatronDataset(path, on_error="skip"))
    assert [row.tolist() for row in lenient] == SEQUENCES[:2]
    assert lenient.num_skipped == 3


def test_a_missing_half(tmp_path):
    path = megatron(tmp_path / "a", SEQUENCES)
    path.unlink()
    with pytest.raises(DatasetError, match=r"MegatronDataset: cannot open '.*a\.bin': No such file"):
        list(MegatronDataset(tmp_path / "a"))
    path.write_bytes(b"")
    path.with_suffix(".idx").unlink()
    with pytest.raises(DatasetError, match=r"MegatronDataset: cannot open '.*a\.idx': No such file"):
        list(MegatronDataset(tmp_path / "a"))


def test_a_sequence_that_is_too_long(tmp_path):
    path = megatron(tmp_path / "a", SEQUENCES)
    assert len(list(MegatronDataset(path, max_record_bytes=10))) == 5
    limited = MegatronDataset(path, max_record_bytes=9)
    for dataset in (limited, limited.global_shuffle()):
        with pytest.raises(
            DatasetError, match=r"the sequence at byte 8 of '.*a\.bin' has 10 bytes, more than 9, the most that max_"
        ):
            list(dataset)
