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
from replicant.input.files.shards._tar import Tar, _Pax
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
        {"__key__": "v1.0/s", "c": b"3"},
    ]


def of_macos():
    """What tar writes on macOS: beside each file one of its attributes."""
    members = [("./.DS_Store", b"junk"), ("./README", b"read me")]
    for i in range(3):
        for ending in ("JPG", "cls"):
            members += [(f"./._{i:04}.{ending}", b"\0\5\x16\7" * 50), (f"./{i:04}.{ending}", f"{ending}{i}".encode())]
    return [*members, ("__MACOSX/._0002.cls", b"\0"), ("__meta__/0.json", b"{}")]


OF_MACOS = [{"__key__": f"./{i:04}", "jpg": b"JPG%d" % i, "cls": b"cls%d" % i} for i in range(3)]


@pytest.mark.usefixtures("any_piece")
@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_members_that_belong_to_no_sample_are_left_out_and_counted(tmp_path, compress):
    """They had been samples, and had split others. WebDataset leaves them out, too."""
    path = write(tmp_path / "a", of_macos())
    path.write_bytes(compress(path.read_bytes()))
    iterator = iter(TarDataset(path, "" if compress is bytes else "GZIP"))
    assert list(iterator) == OF_MACOS
    assert iterator.num_skipped == 10


def test_a_shuffle_leaves_out_the_same_members(tmp_path):
    path = write(tmp_path / "a", of_macos())
    iterator = iter(TarDataset(path).global_shuffle(seed=1))
    assert sorted(iterator, key=lambda each: each["__key__"]) == OF_MACOS
    assert iterator.num_skipped == 10


@pytest.mark.usefixtures("any_piece")
def test_a_position_among_members_that_are_left_out(tmp_path):
    path = write(tmp_path / "a", of_macos())
    for cut in range(4):
        with iter(TarDataset(path)) as iterator:
            _ = list(itertools.islice(iterator, cut))
            state = iterator.state()
        again = iter(TarDataset(path))
        again.restore(state)
        assert list(again) == OF_MACOS[cut:]


@pytest.mark.usefixtures("any_piece")
@pytest.mark.parametrize("order", ["first", "last"])
def test_members_of_an_archive_behind_another_are_counted(tmp_path, order):
    junk, whole = write(tmp_path / "junk", [("README", b"")] * 3), write(tmp_path / "whole", samples(0, 2))
    parts = [junk.read_bytes(), whole.read_bytes()]
    (tmp_path / "a").write_bytes(b"".join(parts if order == "first" else parts[::-1]))
    iterator = iter(TarDataset(tmp_path / "a"))
    assert (keys(iterator), iterator.num_skipped) == (["d/0", "d/1"], 3)


def test_hidden_members_of_folders_and_names_that_are_the_same_in_lower_case(tmp_path):
    """WebDataset takes "d/._0.jpg" for a member of a sample "d/"; its attributes belong to no sample there either."""
    path = write(tmp_path / "a", [("d/._0.jpg", b"x"), ("d/0.Seg.PNG", b"1"), ("d/0.", b"2"), ("d/__a__.x", b"3")])
    iterator = iter(TarDataset(path))
    assert list(iterator) == [{"__key__": "d/0", "seg.png": b"1", "": b"2"}, {"__key__": "d/__a__", "x": b"3"}]
    assert iterator.num_skipped == 1
    twice = write(tmp_path / "twice", [("0.jpg", b"1"), ("0.JPG", b"2")])
    with pytest.raises(
        DatasetError, match=r"has a second member '0\.JPG' in one sample, at byte 1024\..*capitals are the same as in"
    ):
        list(TarDataset(twice))


@pytest.mark.usefixtures("any_piece")
def test_a_file_without_any_sample_is_refused(tmp_path):
    path = write(tmp_path / "a", [("README", b"1" * 2000), (".hidden", b"2")])
    message = r"TarDataset: none of the 2 members of '.*a' belongs to a sample, because.*Name them by their sample.*\"0001\.jpg\""
    for dataset in (TarDataset(path), TarDataset(path).global_shuffle):
        with pytest.raises(DatasetError, match=message):
            list(dataset() if callable(dataset) else dataset)
    lenient = iter(TarDataset([path, write(tmp_path / "b", samples(0, 1))], on_error="skip"))
    assert (keys(lenient), lenient.num_skipped) == (["d/0"], 3)


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


def headers():
    """Headers as several programs write them, and each with damage at random places."""
    rng = np.random.default_rng(0)
    member = tarfile.TarInfo("folder/name.jpg")
    member.size, member.mtime, member.uid = 5_000, 1_700_000_000, 1000
    long = tarfile.TarInfo(f"{'folder/' * 20}name.jpg")
    device = tarfile.TarInfo("device")
    device.type, device.devmajor = tarfile.CHRTYPE, 3
    large = tarfile.TarInfo("large")
    large.size = 1 << 40
    forms = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT]
    whole = [each.tobuf(form)[-512:] for each in (member, long, device) for form in forms] + [large.tobuf(tarfile.GNU_FORMAT)]
    whole += [sealed(whole[0][:100] + b"   644 \0" + whole[0][108:]), sealed(whole[0][:156] + b"\0" + whole[0][157:])]
    for head in whole:
        yield head
        for _ in range(200):
            damaged = bytearray(head)
            for place in rng.integers(0, 512, rng.integers(1, 4)):
                damaged[place] = rng.choice([0, 32, 48, 55, 56, 200])
            yield bytes(damaged)
            yield sealed(damaged)


def sealed(head):
    """The same header with its checksum."""
    return bytes(head[:148]) + b"%06o\0 " % (sum(head[:148]) + sum(head[156:]) + 8 * 32) + bytes(head[156:])


def test_headers_are_read_as_tarfile_reads_them():
    same = failed = 0
    for head in headers():
        try:
            expected = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            with pytest.raises(DatasetError, match="is damaged at byte 0, where a member should begin"):
                Tar()._header("a", 0, head, _Pax())
            failed += 1
        else:
            if expected.size >= 0:
                found = Tar()._header("a", 0, head, _Pax())
                assert (found.name, found.size, found.type) == (expected.name, expected.size, expected.type), head
                same += 1
    assert min(same, failed) > 500


# Sizes in extended headers


def with_pax_size(name, data, size, told=0):
    """A member whose size is in an extended header, as of 8 GiB on. Its own header says something else."""
    length = len(b" size=%s\n" % size)
    content = b"%d size=%s\n" % (length + (1 if length < 9 else 2 if length < 98 else 4), size)
    extended = tarfile.TarInfo("././@PaxHeader")
    extended.type, extended.size = tarfile.XHDTYPE, len(content)
    content += bytes(-len(content) % 512)
    head = tarfile.TarInfo(name)
    head.size = told
    padding = bytes(-len(data) % 512)
    return extended.tobuf() + content + head.tobuf(format=tarfile.USTAR_FORMAT) + data + padding


@pytest.mark.usefixtures("any_piece")
@pytest.mark.parametrize("told", [0, 1, 5000])
def test_the_size_of_an_extended_header_counts(tmp_path, told):
    """It had been ignored: the content was taken for members, or, where it begins with zeros, for the end of the archive."""
    data = bytes(600) + b"content"
    plain = tarfile.TarInfo("c.x").tobuf()
    (tmp_path / "a").write_bytes(with_pax_size("b.x", data, b"607", told) + plain + bytes(1024))
    assert list(TarDataset(tmp_path / "a")) == [{"__key__": "b", "x": data}, {"__key__": "c", "x": b""}]


@pytest.mark.parametrize("size", [b"-5", b"1e3", b"", b"1x", b"9" * 5000])
def test_a_size_that_is_no_number_is_damage(tmp_path, size):
    (tmp_path / "a").write_bytes(with_pax_size("b.x", b"", size) + bytes(1024))
    with pytest.raises(
        DatasetError,
        match=rf"'.*a' is damaged at byte {1024 + len(size) // 512 * 512}, .*: a size of '{size.decode()}' bytes in its extended",
    ):
        list(TarDataset(tmp_path / "a"))


def test_a_member_of_more_than_8_gib(tmp_path):
    """It lies in a sparse file. Its content is not read for the samples behind it, but their headers are found."""
    size = (8 << 30) + 5
    with (tmp_path / "a").open("wb") as file:
        with tarfile.open(fileobj=io.BytesIO(), mode="w") as tar:
            member = tarfile.TarInfo("0.x")
            member.size = size
            head = member.tobuf(tar.format)
        assert tarfile.TarInfo.frombuf(head[-512:], "utf-8", "strict").size == 0
        file.write(head)
        file.seek(len(head) + (8 << 30) + 512)
        for i in range(1, 4):
            file.write(tarfile.TarInfo(f"{i}.x").tobuf())
        file.write(bytes(1024))
    dataset = TarDataset(tmp_path / "a").skip(1).global_shuffle(seed=1)
    assert len(dataset) == 3
    assert sorted(keys(dataset)) == ["1", "2", "3"]


# Samples by their numbers


@pytest.fixture
def shards(tmp_path):
    """Four archives: one is empty, one has members of other names, and one is two archives in one file."""
    some = write(tmp_path / "a", samples(0, 4))
    empty = write(tmp_path / "b", [])
    others = write(tmp_path / "c", [("x" * 150 + "/4.jpg", b"4"), ("5.jpg", b"5"), ("d/6.jpg", b"6"), ("d/6.txt", b"")])
    (tmp_path / "d").write_bytes(write(tmp_path / "e", samples(7, 9)).read_bytes() * 2)
    return [some, empty, others, tmp_path / "d"]


def test_every_sample_comes_once_in_another_order(shards):
    whole = list(TarDataset(shards))
    dataset = TarDataset(shards).global_shuffle(seed=1)
    assert len(dataset) == len(whole) == 11
    for _ in range(3):
        found = list(dataset)
        assert keys(found) != keys(whole)
        assert sorted(found, key=str) == sorted(whole, key=str)
    numbered = list(TarDataset(shards).enumerate().global_shuffle(seed=1))
    assert [sample for _, sample in sorted(numbered, key=lambda each: each[0])] == whole
    both = TarDataset(shards[:3]).concatenate(TarDataset(shards)).global_shuffle(seed=1)
    assert sorted(keys(both)) == sorted(keys(TarDataset(shards[:3])) + keys(whole))
    pairs = list(Dataset.zip(TarDataset(shards), Dataset.range(11)).global_shuffle(seed=1))
    assert [sample for sample, _ in sorted(pairs, key=lambda each: each[1])] == whole
    assert dataset.element_spec == TarDataset(shards).element_spec
    first = TarDataset(shards).take(4).map(lambda sample: int(sample["cls.txt"])).global_shuffle(seed=1)
    assert sorted(int(x) for x in first) == [0, 1, 2, 3]


def test_a_position_in_a_shuffle_is_exact_and_tells_other_files(shards):
    def make():
        return TarDataset(shards).global_shuffle(seed=1).repeat(2)

    with iter(make()) as iterator:
        states, whole = [], []
        for sample in iterator:
            whole.append(sample["__key__"])
            states.append(json.loads(json.dumps(iterator.state())))
    assert len(whole) == 22
    for cut, state in enumerate(states, 1):
        again = iter(make())
        again.restore(state)
        assert keys(again) == whole[cut:]
    write(shards[1], samples(0, 1))
    with pytest.raises(DatasetError, match="global_shuffle: the files have changed since the position was saved"):
        iter(make()).restore(states[0])


def test_files_that_change_while_they_are_read(shards):
    dataset = TarDataset(shards).global_shuffle(seed=1)
    assert len(dataset) == 11
    write(shards[0], samples(0, 3))
    with pytest.raises(DatasetError, match=r"TarDataset: '.*a' has changed since its index was made\. Put the file back"):
        list(dataset)
    shards[0].unlink()
    with pytest.raises(DatasetError, match=r"cannot open '.*a'"):
        list(TarDataset(shards).global_shuffle(seed=1))
    assert len(list(TarDataset(shards[2:]).global_shuffle())) == 7


def test_damage_in_a_shuffle(tmp_path):
    whole = write(tmp_path / "a", samples(0, 4)).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:6000])
    paths = [tmp_path / "cut", tmp_path / "a"]
    with pytest.raises(DatasetError, match=r"'.*cut' is cut off at byte 6000"):
        list(TarDataset(paths).global_shuffle(seed=1))
    before = keys(TarDataset(tmp_path / "cut", on_error="skip"))
    lenient = iter(TarDataset(paths, on_error="skip").global_shuffle(seed=1))
    assert sorted(keys(lenient)) == sorted([*before, *keys(TarDataset(tmp_path / "a"))])
    assert 0 < len(before) < 4
    assert lenient.num_skipped == 1
    (tmp_path / "twice").write_bytes(write(tmp_path / "t", [("a.x", b"1"), ("a.x", b"2")]).read_bytes())
    with pytest.raises(DatasetError, match=r"has a second member 'a\.x' in one sample, at byte 1024"):
        list(TarDataset(tmp_path / "twice").global_shuffle())


def test_what_has_no_index_asks_for_a_window(tmp_path):
    path = write(tmp_path / "a", samples(0, 3))
    (tmp_path / "z").write_bytes(gzip.compress(path.read_bytes()))
    fsspec.filesystem("memory").pipe("/indexed/a.tar", path.read_bytes())
    for dataset in (TarDataset(tmp_path / "z", "GZIP"), TarDataset(["memory://indexed/a.tar"])):
        with pytest.raises(DatasetError, match=r"`TarDataset.*can only give them in order\. Call `global_shuffle\(window=8\)`"):
            dataset.global_shuffle()
        assert sorted(keys(dataset.global_shuffle(window=1))) == ["d/0", "d/1", "d/2"]


@pytest.mark.parametrize("num_workers", [1, 2, 5, 20])
def test_workers_share_the_samples_of_a_shuffle(shards, num_workers):
    dataset = TarDataset(shards).global_shuffle(seed=1).map(lambda sample: sample["__key__"])
    plan = dataset.batch(3).explain(num_workers)
    assert plan.policy is AutoShardPolicy.DATA
    assert plan.is_elastic
    if num_workers <= 4:
        shares = [Dataset(autoshard(dataset.node, num_workers, i, AutoShardPolicy.FILE)[0]) for i in range(num_workers)]
        own = [keys(TarDataset(shards[i::num_workers])) for i in range(num_workers)]
        assert [sorted(share) for share in shares] == [sorted(each) for each in own]
