"""Tar files of samples: names, positions, damage."""

import gzip
import io
import itertools
import json
import tarfile

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from replicant.data import AutoShardPolicy, Dataset, TarDataset, TensorSpec
from replicant.errors import ArgumentError, DatasetError
from replicant.input.files import _stream
from replicant.input.sharding._autoshard import autoshard
from replicant.storage._retry import RemoteError


def write(path, members, form=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def samples(start, stop):
    return [
        (f"d/{i}.{kind}", data)
        for i in range(start, stop)
        for kind, data in (("jpg", bytes([i]) * 600 * i), ("cls.txt", b"%d" % i))
    ]


def keys(elements):
    return [element["__key__"] for element in elements]


@pytest.fixture(params=[100, 1 << 18])
def any_piece(request, monkeypatch):
    monkeypatch.setattr(_stream, "PIECE", request.param)


@pytest.mark.usefixtures("any_piece")
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_samples(tmp_path, form):
    path = write(tmp_path / "a", samples(0, 4), form)
    dataset = TarDataset(path)
    assert list(dataset) == [{"__key__": f"d/{i}", "cls.txt": b"%d" % i, "jpg": bytes([i]) * 600 * i} for i in range(4)]
    assert dataset.element_spec == dict.fromkeys(["__key__", "jpg", "cls.txt"], TensorSpec((), object))
    assert next(iter(dataset.batch(2)))["cls.txt"].tolist() == [b"0", b"1"]
    (tmp_path / "z").write_bytes(gzip.compress(path.read_bytes()))
    assert keys(TarDataset(tmp_path / "z", "GZIP")) == keys(dataset)
    (tmp_path / "two").write_bytes(path.read_bytes() * 2)
    assert keys(TarDataset(tmp_path / "two")) == keys(dataset) * 2


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names(tmp_path, form):
    long = "d" * 120 + "/é" + "x" * 30
    path = write(tmp_path / "a", [(f"{long}.a.b", b"1"), ("v1.0/s", b"2"), ("v1.0/s.c", b"3"), (".hidden", b"4")], form)
    with tarfile.open(path, "a", format=form) as tar:
        folder = tarfile.TarInfo("folder.x")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    assert list(TarDataset(path)) == [
        {"__key__": long, "a.b": b"1"},
        {"__key__": "v1.0/s", "": b"2", "c": b"3"},
        {"__key__": "", "hidden": b"4"},
    ]


@pytest.mark.usefixtures("any_piece")
def test_a_position_leads_to_the_same_rest_from_every_point(tmp_path):
    paths = [write(tmp_path / "a", samples(0, 3)), write(tmp_path / "b", []), write(tmp_path / "c", samples(3, 5))]
    whole = keys(TarDataset(paths))
    assert whole == [f"d/{i}" for i in range(5)]
    for cut in range(6):
        with iter(TarDataset(paths)) as iterator:
            _ = list(itertools.islice(iterator, cut))
            state = json.loads(json.dumps(iterator.state()))
        again = iter(TarDataset(paths))
        again.restore(state)
        assert keys(again) == whole[cut:]
    shares = [keys(Dataset(autoshard(TarDataset(paths).node, 2, i, AutoShardPolicy.FILE)[0])) for i in range(2)]
    assert shares == [whole, []]


@pytest.mark.usefixtures("any_piece")
def test_files_that_are_cut_off_anywhere(tmp_path):
    whole = write(tmp_path / "a", samples(0, 3)).read_bytes()
    contents = len(whole.rstrip(b"\0"))
    end = -(-contents // 512) * 512
    for keep in [0, 1, 511, 512, 700, *range(1024, end + 1, 512)]:
        (tmp_path / "cut").write_bytes(whole[:keep])
        with pytest.raises(DatasetError, match=rf"TarDataset: '.*cut' is cut off at byte {keep}: .*end mark.*Copy or write"):
            list(TarDataset(tmp_path / "cut"))
        lenient = iter(TarDataset([tmp_path / "cut", tmp_path / "a"], on_error="skip"))
        found = keys(lenient)
        assert found[-3:] == ["d/0", "d/1", "d/2"]
        assert found[:-3] == ["d/0", "d/1", "d/2"][: len(found) - 3]
        assert lenient.num_skipped == 1
    (tmp_path / "cut").write_bytes(whole[: end + 512])
    assert keys(TarDataset(tmp_path / "cut")) == ["d/0", "d/1", "d/2"]


def test_damage(tmp_path):
    data = bytearray(write(tmp_path / "a", samples(0, 3)).read_bytes())
    begin = data.index(b"d/2.jpg")
    data[begin + 3] ^= 1
    (tmp_path / "bad").write_bytes(data)
    iterator = iter(TarDataset(tmp_path / "bad"))
    assert next(iterator)["__key__"] == "d/0"
    with pytest.raises(DatasetError, match=rf"'.*bad' is damaged at byte {begin}, where a member should begin: bad checksum"):
        list(iterator)
    twice = write(tmp_path / "twice", [("a.x", b"1"), ("a.x", b"2")])
    with pytest.raises(DatasetError, match=r"'.*twice' has a second member 'a.x' in one sample, at byte 1024. Give samples names"):
        list(TarDataset(twice))
    other = write(tmp_path / "other", [("a.x", b"1"), ("b.y", b"2")])
    assert len(list(TarDataset(other))) == 2
    with pytest.raises(DatasetError, match="must have the same structure"):
        list(TarDataset(other).batch(2))
    with pytest.raises(DatasetError, match=r"cannot open '.*none'"):
        list(TarDataset(tmp_path / "none"))
    with pytest.raises(ArgumentError, match="TarDataset: compression_type must be"):
        TarDataset(other, "ZSTD")


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a.x", "GNU.sparse.realsize": "9999"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("sparse file", {"type": tarfile.GNUTYPE_SPARSE}),
        ("sparse file", {"pax_headers": SPARSE}),
        ("hard link", {"type": tarfile.LNKTYPE, "linkname": "0.x"}),
        ("symbolic link", {"type": tarfile.SYMTYPE, "linkname": "0.x"}),
    ],
    ids=["sparse of GNU", "sparse of pax", "hard link", "symbolic link"],
)
def test_members_whose_content_is_elsewhere_are_refused(tmp_path, kind, fields):
    """They had been left out, or read as the list of their parts."""
    form = tarfile.PAX_FORMAT if "pax_headers" in fields else tarfile.GNU_FORMAT
    path = write(tmp_path / "a", [("0.x", b"1")], form)
    with tarfile.open(path, "a", format=form) as tar:
        member = tarfile.TarInfo("1.x")
        for name, value in fields.items():
            setattr(member, name, value)
        tar.addfile(member)
    begin = 1024 if form is tarfile.GNU_FORMAT else 2048  # behind an extended header
    with pytest.raises(
        DatasetError, match=rf"'.*a' holds '1\.x' as a {kind}, at byte {begin}, so its content is not in.*--hard-dereference"
    ):
        list(TarDataset(path))


@pytest.mark.parametrize("size", [-1, -512, -1024, -5000])
def test_a_negative_size_is_damage(tmp_path, size):
    """It had led back to a member before, without an end."""
    head = bytearray(tarfile.TarInfo("b.x").tobuf(format=tarfile.USTAR_FORMAT))
    head[124:136] = (256**12 + size).to_bytes(12, "big")
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    (tmp_path / "a").write_bytes(tarfile.TarInfo("a.x").tobuf() + head + bytes(1024))
    with pytest.raises(DatasetError, match=rf"'.*a' is damaged at byte 512, where a member should begin: a size of {size} bytes"):
        list(TarDataset(tmp_path / "a"))
    lenient = iter(TarDataset(tmp_path / "a", on_error="skip"))
    assert (len(list(lenient)), lenient.num_skipped) == (0, 1)


@pytest.mark.usefixtures("any_piece")
@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_what_is_cut_off_counts_once(tmp_path, compress):
    rng = np.random.default_rng(0)
    data = write(tmp_path / "whole", [(f"{i}.x", rng.bytes(1000)) for i in range(10)]).read_bytes()
    compressed = compress(data)
    (tmp_path / "a").write_bytes(compressed[: len(compressed) // 2])
    kind = "" if compress is bytes else "GZIP"
    iterator = iter(TarDataset(tmp_path / "a", kind, on_error="skip"))
    assert 3 <= len(list(iterator)) <= 5
    assert iterator.num_skipped == 1


def test_a_store_that_fails_is_not_left_out():
    """What it does not answer now is not damage: it is there at the next attempt."""

    class Fails(MemoryFileSystem):
        protocol = "fails"
        reads = 0

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(path.replace("fails://", "memory://"))

        def cat_file(self, path, start=None, end=None, **options):
            Fails.reads += 1
            if Fails.reads > 1:
                raise PermissionError("403")
            return super().cat_file(path, start, end, **options)

    fsspec.register_implementation("fails", Fails, clobber=True)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for i in range(12):
            member = tarfile.TarInfo(f"{i}.x")
            member.size = 1 << 20
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    fsspec.filesystem("memory").pipe("/tar/a", data.getvalue())
    iterator = iter(TarDataset("fails://tar/a", on_error="skip"))
    with pytest.raises(DatasetError, match=r"TarDataset.*403") as caught:
        list(iterator)
    assert isinstance(caught.value.__cause__, RemoteError)
    assert iterator.num_skipped == 0
