"""Tar files of samples: names, positions, damage."""

import gzip
import io
import itertools
import json
import tarfile

import pytest

from replicant.data import AutoShardPolicy, Dataset, TarDataset, TensorSpec
from replicant.errors import ArgumentError, DatasetError
from replicant.input.files import _stream
from replicant.input.sharding._autoshard import autoshard


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
