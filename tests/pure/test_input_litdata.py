"""LitData's chunks: folders that LitData has written, positions, shares and shuffles, and everything that can be damaged."""

import itertools
import json
import pathlib
import pickle
import shutil
import struct

import fsspec
import numpy as np
import pytest
import zstandard

from replicant.data import AutoShardPolicy, Dataset, LitDataDataset, TensorSpec
from replicant.errors import ArgumentError, ArgumentTypeError, ConfigurationError, DatasetError, ElementError
from replicant.input.files import _zstd
from replicant.input.files.shards import _litdata
from replicant.storage._retry import RemoteError
from replicant.storage._store import Store

from ._division import autoshard

GOLDEN = pathlib.Path(__file__).parent / "litdata"
LEAF = {"type": None, "context": None, "children_spec": []}


def item(*values):
    """The bytes of an item of these encoded values."""
    return struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values)


def chunk(items):
    """The bytes of a chunk."""
    offsets = itertools.accumulate(map(len, items), initial=4 * (len(items) + 2))
    return struct.pack(f"<{len(items) + 2}I", len(items), *offsets) + b"".join(items)


def write(folder, chunks, formats, names=None, **config):
    """A folder of chunks of items."""
    folder.mkdir(exist_ok=True)
    node = {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [LEAF] * len(formats)} if names else LEAF
    found = []
    for number, items in enumerate(chunks):
        data = chunk(items)
        (folder / f"{number}.bin").write_bytes(data)
        found.append({"filename": f"{number}.bin", "chunk_size": len(items), "chunk_bytes": len(data), "dim": None})
    its = {"data_format": formats, "data_spec": json.dumps([1, node]), "item_loader": "PyTreeLoader", "compression": None}
    (folder / "index.json").write_text(json.dumps({"chunks": found, "config": {**its, **config}}))
    return folder


def numbers(folder, *sizes):
    """A folder of chunks of so many items, which have their number and a text."""
    ends = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    items = [[item(struct.pack("<q", i), b"%d" % i) for i in range(*each)] for each in ends]
    return write(folder, items, ["int", "str"], ["n", "s"])


def ns(elements):
    return [int(element["n"]) for element in elements]


def change(folder, fn):
    """Change the index of a folder."""
    index = json.loads((folder / "index.json").read_text())
    changed = fn(index)
    (folder / "index.json").write_text(json.dumps(index if changed is None else changed))
    return folder


@pytest.fixture
def folder(tmp_path):
    """Chunks of 5, 0, 1 and 7 items."""
    return numbers(tmp_path / "a", 5, 0, 1, 7)


# What LitData has written


def expected(i):
    return {
        "array": np.float32([[i, -i]]),
        "b": bytes([i]) * i,
        "f": np.float64(i / 3),
        "jpg": b"\xff\xd8" + bytes([i]),
        "n": np.int64(i - 5 * 10**12),
        "name": f"é{i}",
        "nested": (np.int64(i), {"ok": np.bool_(i % 2 == 0)}),
        "row": np.arange(i + 1, dtype=np.int16),
        "tensor": np.array([[i, 2 * i]] * (i % 3 + 1)),
        "vector": np.arange(3, dtype=np.float16) * np.float16(i),
    }


def assert_same(found, wanted):
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
    if isinstance(wanted, dict | tuple):
        for key in wanted if isinstance(wanted, dict) else range(len(wanted)):
            assert_same(found[key], wanted[key])
        return
    assert np.asarray(found).dtype == np.asarray(wanted).dtype
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("form", ["plain", "chunk", "batch", "sample"])
@pytest.mark.parametrize("ahead", [1, 2, 64])
def test_what_litdata_has_written(form, ahead, monkeypatch):
    monkeypatch.setattr(_litdata, "_AHEAD", ahead)
    dataset = LitDataDataset(GOLDEN / form)
    found = list(dataset)
    assert len(found) == len(dataset) == 8
    for i, element in enumerate(found):
        assert_same(element, expected(i))
    spec = dataset.element_spec
    assert (spec["n"], spec["f"], spec["name"]) == (TensorSpec((), np.int64), TensorSpec((), np.float64), TensorSpec((), object))
    assert (spec["row"], spec["vector"]) == (TensorSpec((None,), np.int16), TensorSpec((None,), np.float16))
    assert (spec["array"], spec["tensor"]) == (TensorSpec((None, None), np.float32), TensorSpec((None, None), np.int64))
    assert spec["nested"] == (TensorSpec((), np.int64), {"ok": TensorSpec((), bool)})
    few = list(LitDataDataset([GOLDEN / form, GOLDEN / "plain"], columns=["name", "n"]).batch(16))
    assert few[0].keys() == {"n", "name"}
    assert few[0]["name"].tolist() == [f"é{i}" for i in range(8)] * 2
    assert [name.rpartition("/")[2] for name in dataset.explain(3).workers[1].files] == [
        f"chunk-0-1.{'zstd.' if form == 'chunk' else ''}bin"
    ]


def test_windows_of_token_ids():
    dataset = LitDataDataset(GOLDEN / "tokens", block_size=8)
    wanted = [[*range(at, at + 8)] for at in (0, 8, 16, 30, 38, 46, 60, 68)]
    assert [row.tolist() for row in dataset] == wanted
    assert dataset.element_spec == TensorSpec((8,), np.int32)
    assert len(dataset) == 8
    assert sorted(row.tolist() for row in dataset.global_shuffle(seed=1)) == wanted
    assert [row.tolist() for row in LitDataDataset(GOLDEN / "tokens", block_size=30)] == [[*range(30)], [*range(30, 60)]]
    with pytest.raises(ArgumentError, match=r"'.*index\.json' holds token ids, one behind the other\. Give block_size, the length"):
        LitDataDataset(GOLDEN / "tokens")
    with pytest.raises(ArgumentError, match=r"holds token ids, one behind the other\. Give block_size, .*, and no columns"):
        LitDataDataset(GOLDEN / "tokens", columns=["x"], block_size=8)
    with pytest.raises(
        ArgumentError, match=r"'.*index\.json' holds items, and block_size is for chunks of TokensLoader\. Leave it"
    ):
        LitDataDataset(GOLDEN / "plain", block_size=8)


def test_token_ids_that_are_damaged(tmp_path):
    folder = shutil.copytree(GOLDEN / "tokens", tmp_path / "a")
    change(folder, lambda index: index["chunks"][1].update(dim=31))
    with pytest.raises(
        DatasetError, match=r"1\.bin' is damaged: it has 140 bytes, and index\.json says 140, and 31 token ids of int"
    ):
        list(LitDataDataset(folder, block_size=8))
    change(folder, lambda index: index["config"].update(data_format=["str"]))
    with pytest.raises(
        DatasetError, match=r"holds token ids as \['str'\], compressed or not, and arrays and tensors of one dimension"
    ):
        LitDataDataset(folder, block_size=8)


def test_what_is_refused_of_what_litdata_has_written():
    with pytest.raises(
        DatasetError, match=r"0\.bin' holds its items as an Arrow table, as LitData writes dicts of texts .*Parquet"
    ):
        list(LitDataDataset(GOLDEN / "arrow"))
    with pytest.raises(DatasetError, match=r"'list' in '.*index\.json' has the format 'json', which is not read: .*json\.dumps"):
        LitDataDataset(GOLDEN / "lists")


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("pickle", "to read it would run whatever code the file contains"),
        ("graph:pickle", "to read it would run whatever code the file contains"),
        ("pil", "it holds pixels of many layouts"),
        ("json", "LitData lays out lists and dicts of any length in a way of its own"),
        ("video:mp4", "Formats that are read are int, float, bool, str, bytes, jpeg, numpy and tensor"),
        ("no_header_numpy:14", "Formats that are read are"),
        ("no_header_tensor:10", "Formats that are read are"),
        ("no_header_tensor:99", "Formats that are read are"),
        ("no_header_tensor", "Formats that are read are"),
        ("int:4", "Formats that are read are"),
    ],
)
def test_formats_that_are_refused(tmp_path, form, message):
    folder = write(tmp_path / "a", [[item(b"x", b"y")]], [form, "str"], ["x", "y"])
    with pytest.raises(
        DatasetError, match=rf"'x' in '.*' has the format '{form}', which is not read: {message}.*, or leave it out: "
    ):
        LitDataDataset(folder)
    assert list(LitDataDataset(folder, columns=["y"])) == [{"y": "y"}]
    alone = write(tmp_path / "b", [[item(b"x")]], [form])
    with pytest.raises(DatasetError, match=rf"'the item' in '.*' has the format '{form}'"):
        LitDataDataset(alone)


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    folder = write(tmp_path / "a", [[item(pickle.dumps(Trap()), b"y")]], ["pickle", "str"], ["x", "y"])
    with pytest.raises(DatasetError, match="to read it would run whatever code"):
        LitDataDataset(folder)
    assert list(LitDataDataset(folder, columns=["y"])) == [{"y": "y"}]
    assert not (tmp_path / "sprung").exists()


SHAPED = np.arange(6, dtype=np.int16).reshape(2, 3)


@pytest.mark.parametrize(
    ("form", "data", "value"),
    [
        ("int", struct.pack("<q", -3), np.int64(-3)),
        ("float", struct.pack("<d", 0.1), np.float64(0.1)),
        ("bool", b"\1", np.True_),
        ("bool", b"\0", np.False_),
        ("str", "日本".encode(), "日本"),
        ("text", b"", ""),
        ("bytes", b"\0\xff", b"\0\xff"),
        ("image:png", b"\x89PNG", b"\x89PNG"),
        ("file:txt", b"abc", b"abc"),
        ("no_header_numpy:13", b"\0\1\1", np.array([False, True, True])),
        ("no_header_numpy:8", np.float16([1, 2]).tobytes(), np.float16([1, 2])),
        ("no_header_tensor:20", np.uint16([1, 2]).tobytes(), np.uint16([1, 2])),
        ("no_header_tensor:17", b"", np.empty(0, np.int64)),
        ("numpy", struct.pack("<4I", 1, 2, 2, 3) + SHAPED.tobytes(), SHAPED),
        ("numpy", struct.pack("<2I", 9, 0) + np.float32(2).tobytes(), np.float32(2)),
        ("tensor", struct.pack(">4I", 13, 2, 2, 3) + SHAPED.tobytes(), SHAPED),
        ("tensor", struct.pack(">4I", 0, 2, 0, 3), np.empty((0, 3), np.float32)),
    ],
)
def test_formats(tmp_path, form, data, value):
    dataset = LitDataDataset(write(tmp_path / "a", [[item(data)] * 3], [form], ["x"]))
    for element in [*dataset, *dataset.global_shuffle(), *dataset.batch(2).unbatch()]:
        assert_same(element, {"x": value})


# Positions, shares and shuffles


@pytest.mark.parametrize("kind", ["in order", "shuffled", "in windows", "two at a time"])
def test_a_position_leads_to_the_same_rest_from_every_point(folder, kind):
    def make():
        dataset = LitDataDataset(folder, num_parallel_reads=2 if kind == "two at a time" else None)
        if kind in ("shuffled", "in windows"):
            dataset = dataset.global_shuffle(seed=1, window=2 if kind == "in windows" else None)
        return dataset.repeat(2)

    with iter(make()) as iterator:
        states, whole = [json.loads(json.dumps(iterator.state()))], []
        for element in iterator:
            whole += ns([element])
            states.append(json.loads(json.dumps(iterator.state())))
    assert sorted(whole) == sorted([*range(13)] * 2)
    assert (whole == [*range(13)] * 2) == (kind == "in order")
    for cut, state in enumerate(states):
        again = iter(make())
        again.restore(state)
        assert ns(again) == whole[cut:]


@pytest.mark.parametrize("num_workers", [1, 2, 4, 9])
def test_workers_share_chunks_or_batches(folder, num_workers):
    node = LitDataDataset(folder).node
    policy = AutoShardPolicy.FILE if num_workers <= 4 else AutoShardPolicy.DATA
    plan = LitDataDataset(folder).batch(2).explain(num_workers)
    assert plan.policy is (policy if num_workers > 1 else AutoShardPolicy.DATA)
    sizes = [range(5), range(0), range(5, 6), range(6, 13)]
    for worker in range(num_workers):
        own = Dataset(autoshard(node, num_workers, worker, policy)[0])
        wanted = [*itertools.chain(*sizes[worker::num_workers])] if policy is AutoShardPolicy.FILE else [*range(13)]
        assert ns(own) == wanted
        assert len(own) == len(wanted)
        for window in (None, 1):
            shuffled = LitDataDataset(folder).global_shuffle(seed=1, window=window)
            assert sorted(ns(Dataset(autoshard(shuffled.node, num_workers, worker, policy)[0]))) == wanted
    assert LitDataDataset(folder).global_shuffle(seed=1).batch(2).explain(num_workers).is_elastic


def test_a_position_of_other_chunks_is_refused(folder, tmp_path):
    def state(dataset):
        with iter(dataset) as iterator:
            _ = list(itertools.islice(iterator, 3))
            return iterator.state()

    def rest(dataset, state):
        iterator = iter(dataset)
        iterator.restore(state)
        return list(iterator)

    plain, shuffled = state(LitDataDataset(folder)), state(LitDataDataset(folder).global_shuffle(seed=1))
    windows = state(LitDataDataset(folder).global_shuffle(seed=1, window=4))
    numbers(folder, 6, 0, 1, 7)
    with pytest.raises(
        DatasetError, match=r"has changed since the position was saved: it was 5 items in \d+ bytes, and is now 6 it"
    ):
        rest(LitDataDataset(folder), plain)
    with pytest.raises(DatasetError, match="global_shuffle: the files have changed since the position was saved"):
        rest(LitDataDataset(folder).global_shuffle(seed=1), shuffled)
    with pytest.raises(DatasetError, match="LitDataDataset: the files have changed since the position was saved"):
        rest(LitDataDataset(folder).global_shuffle(seed=1, window=4), windows)


def test_compressed_chunks_are_shuffled_in_windows():
    for form in ("chunk", "batch", "sample"):
        dataset = LitDataDataset(GOLDEN / form, columns=["n"])
        with pytest.raises(
            DatasetError, match=r"`LitDataDataset\(columns=\['n'\]\)` can only give them in order\. Call `global_shuf"
        ):
            dataset.global_shuffle()
        assert sorted(each["n"] for each in dataset.global_shuffle(window=2)) == [i - 5 * 10**12 for i in range(8)]


def test_chunks_at_urls(tmp_path, monkeypatch):
    memory = fsspec.filesystem("memory")
    for path in numbers(tmp_path / "a", 4, 3).iterdir():
        memory.pipe(f"/litdata/{path.name}", path.read_bytes())
    for path in (GOLDEN / "batch").iterdir():
        memory.pipe(f"/litdata-batch/{path.name}", path.read_bytes())
    assert [each["name"] for each in LitDataDataset("memory://litdata-batch")] == [f"é{i}" for i in range(8)]
    dataset = LitDataDataset("memory://litdata/")
    assert ns(dataset) == list(range(7))
    iterator = iter(dataset)
    assert ns(itertools.islice(iterator, 5)) == [0, 1, 2, 3, 4]
    state = iterator.state()
    again = iter(LitDataDataset("memory://litdata"))
    again.restore(state)
    assert ns(again) == [5, 6]
    lenient = LitDataDataset("memory://litdata", on_error="skip")
    shuffled, iterator = iter(lenient.global_shuffle(seed=1, window=2)), iter(lenient)

    def read(*args):
        raise RemoteError("could not read it")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "read", read)
        for each in [shuffled, iterator] * 2:
            with pytest.raises(DatasetError, match="could not read it"):
                next(each)
    assert sorted(ns(shuffled)) == ns(iterator) == list(range(7))
    assert shuffled.num_skipped == 0
    memory.pipe("/litdata/1.bin", memory.cat("/litdata/1.bin"))
    changed = iter(LitDataDataset("memory://litdata"))
    changed.restore(state)
    with pytest.raises(DatasetError, match="has changed since the position was saved"):
        list(changed)


# Damage


def corrupt(path, fn):
    data = bytearray(path.read_bytes())
    changed = fn(data)
    path.write_bytes(data if changed is None else changed)


def put(at, value):
    return lambda data: struct.pack_into("<I", data, at, value)


DAMAGE = {
    "cut off": (lambda data: data[:-1], r"it has \d+ bytes, and index\.json says \d+"),
    "longer": (lambda data: data + b"x", r"it has \d+ bytes, and index\.json says \d+"),
    "empty": (lambda data: b"", r"it has 0 bytes"),
    "number of items": (put(0, 4), r"it has 4 items at byte 0, and index\.json says 5"),
    "begin in the head": (put(4, 8), r"byte 4 says that item 0 begins, or the last one ends, at 8"),
    "begin behind the head": (put(4, 30), r"byte 4 says that item 0 begins, or the last one ends, at 30"),
    "descending": (put(12, 40), r"byte 12 says that item 2 begins, or the last one ends, at 40"),
    "behind the end": (put(24, 9999), r"byte 24 says that item 5 begins, or the last one ends, at 9999"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_chunks(folder, kind):
    fn, message = DAMAGE[kind]
    corrupt(folder / "0.bin", fn)
    for dataset in (
        LitDataDataset(folder),
        LitDataDataset(folder).global_shuffle(seed=1),
        LitDataDataset(folder).global_shuffle(window=1),
    ):
        with pytest.raises(DatasetError, match=rf"LitDataDataset: '.*0\.bin' is damaged: {message}.*Copy or write the"):
            list(dataset)
    for dataset in (LitDataDataset(folder, on_error="skip"), LitDataDataset(folder, on_error="skip").global_shuffle(window=2)):
        lenient = iter(dataset)
        assert sorted(ns(lenient)) == list(range(5, 13))
        assert lenient.num_skipped == 5


def test_damaged_items(folder):
    def lengthen(data):
        begin = struct.unpack_from("<I", data, 4 + 4 * 2)[0]
        struct.pack_into("<I", data, begin + 4, 1000)

    corrupt(folder / "3.bin", lengthen)
    with pytest.raises(ElementError, match=r"item 2 of '.*3\.bin' is damaged: it has 17 bytes, and its values take 1016\. Copy or"):
        list(LitDataDataset(folder))
    iterator = iter(LitDataDataset(folder))
    assert ns(itertools.islice(iterator, 8)) == list(range(8))
    for _ in range(2):  # an error passes over nothing
        with pytest.raises(ElementError, match="item 2 of"):
            next(iterator)
    assert ns(LitDataDataset(folder).skip(9)) == [9, 10, 11, 12]
    rest = [n for n in range(13) if n != 8]
    assert ns(LitDataDataset(folder).ignore_errors()) == rest
    assert sorted(ns(LitDataDataset(folder).global_shuffle(window=2).ignore_errors())) == rest
    with pytest.raises(ElementError, match="item 2 of"):
        list(LitDataDataset(folder).global_shuffle(seed=1))
    lenient = iter(LitDataDataset(folder, on_error="skip"))
    assert ns(lenient) == rest
    assert lenient.num_skipped == 1
    assert len(list(LitDataDataset(folder, on_error="skip").batch(4))) == 3


@pytest.mark.parametrize(
    ("form", "data", "message"),
    [
        ("str", b"\xff", "has no text as 'x': .*can't decode byte 0xff"),
        ("int", b"1234", "has 4 bytes as 'x', which is number of int64"),
        ("bool", b"", "has 0 bytes as 'x', which is number of bool"),
        ("no_header_numpy:1", b"abc", "has 3 bytes as 'x', which is flat of int16"),
        ("numpy", b"", "has 0 bytes as 'x', which are no numpy that is read"),
        ("numpy", struct.pack("<2I", 1, 1), r"has \d+ bytes as 'x', which are no numpy that is read"),
        ("numpy", struct.pack("<3I", 1, 1, 2) + b"abc", r"has \d+ bytes as 'x', which are no numpy that is read"),
        ("numpy", struct.pack("<3I", 14, 1, 0), r"has \d+ bytes as 'x', which are no numpy that is read"),
        ("numpy", struct.pack("<2I", 1, 1 << 31), r"has \d+ bytes as 'x', which are no numpy that is read"),
        (
            "numpy",
            struct.pack("<34I", 1, 33, *[1] * 32) + struct.pack("<Ih", 1, 1),
            r"has \d+ bytes as 'x', which are no numpy that is read",
        ),
        ("tensor", struct.pack(">3I", 10, 1, 1) + b"ab", r"has \d+ bytes as 'x', which are no tensor that is read"),
        ("tensor", struct.pack(">3I", 13, 1, 1) + b"ab", r"has TensorSpec\(shape=\(1,\), dtype=int16\) as 'x', and the first one"),
    ],
)
def test_damaged_values(tmp_path, form, data, message):
    good = {
        "str": b"a",
        "int": struct.pack("<q", 1),
        "bool": b"\1",
        "numpy": struct.pack("<3Ih", 1, 1, 1, 1),
        "tensor": struct.pack(">3I", 13, 0, 0)[:8] + b"ab",
    }.get(form, b"ab")
    dataset = LitDataDataset(write(tmp_path / "a", [[item(good), item(data)]], [form], ["x"]))
    iterator = iter(dataset)
    next(iterator)
    with pytest.raises(ElementError, match=rf"item 1 of .* is damaged: it {message}.*Copy or write"):
        next(iterator)
    with pytest.raises(ElementError, match=rf"is damaged: it {message}"):
        list(dataset.global_shuffle(seed=1))


def test_the_first_item_is_damaged(tmp_path):
    good = item(struct.pack("<3Ih", 1, 1, 1, 1))
    folder = write(tmp_path / "a", [[item(b"")], [good]], ["numpy"], ["x"])
    with pytest.raises(ElementError, match=r"item 0 of '.*0\.bin' is damaged: it has 0 bytes as 'x'"):
        LitDataDataset(folder).element_spec  # noqa: B018 - it reads
    lenient = iter(LitDataDataset(folder, on_error="skip"))
    assert [each["x"].tolist() for each in lenient] == [[1]]
    assert lenient.num_skipped == 1
    short = write(tmp_path / "b", [[b"abc"]], ["str"], ["x"])
    with pytest.raises(ElementError, match="is damaged: it has 3 bytes, and the sizes of its values alone take 4"):
        list(LitDataDataset(short))


@pytest.mark.parametrize("form", ["chunk", "batch", "sample"])
def test_damaged_compression(tmp_path, form):
    folder = shutil.copytree(GOLDEN / form, tmp_path / "a")
    path = min(folder.glob("*.bin"))
    whole = path.read_bytes()
    for at in (len(whole) - 30, len(whole) - 3, len(whole) // 2):
        data = bytearray(whole)
        data[at] ^= 0xFF
        path.write_bytes(data)
        try:
            list(LitDataDataset(folder))
        except DatasetError as error:
            assert "0.bin' is damaged" in str(error) or "0.zstd.bin' is damaged" in str(error)  # noqa: PT017 - zstd has no checksum
    path.write_bytes(whole[:-5])
    with pytest.raises(
        DatasetError, match=r"\.bin' is damaged: (it has \d+ bytes|it holds|it cannot be decompressed|frame 1 ends)"
    ):
        list(LitDataDataset(folder))


def test_a_chunk_that_holds_too_much(tmp_path):
    folder = shutil.copytree(GOLDEN / "chunk", tmp_path / "a")
    path = min(folder.glob("*.bin"))
    path.write_bytes(zstandard.compress(bytes(10_000_000)))
    with pytest.raises(
        DatasetError, match=r"it holds more than \d+ bytes once decompressed, the most that index\.json or max_chunk"
    ):
        list(LitDataDataset(folder))
    path.write_bytes(zstandard.compress(bytes(10)))
    with pytest.raises(DatasetError, match=r"it holds 10 bytes once decompressed, and \d+ are expected"):
        list(LitDataDataset(folder))
    with pytest.raises(DatasetError, match=r"has \d+ bytes, more than 9, the most that max_chunk_bytes allows\. Give a larger max"):
        list(LitDataDataset(GOLDEN / "chunk", max_chunk_bytes=9))
    with pytest.raises(DatasetError, match=r"frame 0 has \d+ bytes, more than max_chunk_bytes=9 allows"):
        list(LitDataDataset(GOLDEN / "batch", max_chunk_bytes=9))
    with pytest.raises(DatasetError, match=r"it holds more than 9 bytes once decompressed"):
        list(LitDataDataset(GOLDEN / "sample", max_chunk_bytes=9))


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"x", r"it begins with b'xDFZ01\\x00\\x00' instead of b'LDFZ01"),
        (8, b"\2", "it has the version 2 and 3 items at byte 8, and index.json says 3"),
        (12, b"\4", "it has the version 1 and 4 items at byte 8, and index.json says 3"),
        (20, b"\xff", "it has the version 1 and 3 items at byte 8"),
        (24, b"\1", "its tables of items and frames contradict each other"),
        (28, b"\xff\xff", "its tables of items and frames contradict each other"),
        (44, b"\3", "its tables of items and frames contradict each other"),
        (60, b"\1", "its tables of items and frames contradict each other"),
    ],
)
def test_tables_of_frames_that_are_damaged(tmp_path, at, value, message):
    folder = shutil.copytree(GOLDEN / "batch", tmp_path / "a")
    path = folder / "chunk-0-0.bin"
    data = path.read_bytes()
    path.write_bytes(data[:at] + value + data[at + len(value) :])
    with pytest.raises(DatasetError, match=rf"LitDataDataset: '.*chunk-0-0\.bin' is damaged: {message}"):
        list(LitDataDataset(folder))


def test_zstandard_may_be_missing(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(_zstd.importlib, "import_module", missing)
    with pytest.raises(ConfigurationError, match=r"LitDataDataset reads .zst files with zstandard.*replicant-jax\[zstd\]"):
        list(LitDataDataset(GOLDEN / "chunk"))


def test_missing_files(folder):
    (folder / "2.bin").unlink()
    iterator = iter(LitDataDataset(folder))
    assert ns(itertools.islice(iterator, 5)) == [0, 1, 2, 3, 4]
    for dataset in (
        LitDataDataset(folder),
        LitDataDataset(folder).global_shuffle(),
        LitDataDataset(folder).global_shuffle(window=1),
    ):
        with pytest.raises(DatasetError, match=r"LitDataDataset: cannot open '.*2\.bin': No such file"):
            list(dataset)
    lenient = iter(LitDataDataset(folder, on_error="skip"))
    assert ns(lenient) == [n for n in range(13) if n != 5]
    assert lenient.num_skipped == 1
    (folder / "index.json").unlink()
    with pytest.raises(
        DatasetError, match=r"LitDataDataset: cannot open '.*index\.json': No such file.*folder that LitData has writ"
    ):
        LitDataDataset(folder)


def of_chunk(**changes):
    return lambda index: index["chunks"][1].update(changes)


def of_config(**changes):
    return lambda index: index["config"].update(changes)


def spec(node):
    return of_config(data_spec=json.dumps([1, node]))


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda index: [], "it has no 'config' and list of 'chunks'"),
        (lambda index: index.pop("config") and None, "it has no 'config' and list of 'chunks'"),
        (lambda index: index.update(chunks=3), "it has no 'config' and list of 'chunks'"),
        (of_chunk(chunk_size=-1), "chunk 1 has no number of items and bytes"),
        (of_chunk(chunk_bytes=1 << 32), "chunk 1 has no number of items and bytes"),
        (of_chunk(chunk_size=True), "chunk 1 has no number of items and bytes"),
        (of_chunk(filename="../a.bin"), r"chunk 1 is '\.\./a\.bin', which is not below the folder"),
        (of_chunk(filename="/etc/passwd"), "chunk 1 is '/etc/passwd', which is not below the folder"),
        (of_chunk(filename=3), "chunk 1 is 3, which is not below the folder"),
        (of_chunk(filename="0.bin"), "it has a chunk twice"),
        (of_chunk(dim="x"), "chunk 1 has 'x' token ids"),
        (of_config(data_format=None), "its data_format is None, which is not a list of texts"),
        (of_config(data_format=["int"]), "its data_spec has 2 values, and its data_format 1"),
        (of_config(data_spec=None), "its data_spec is not a structure"),
        (of_config(data_spec="[2, {}]"), "its data_spec has version 2, and 1 is read"),
        (of_config(data_spec="[1]"), "its data_spec is not a structure"),
        (of_config(data_spec="7"), "its data_spec is not a structure"),
        (of_config(data_spec="x"), "its data_spec is not a structure"),
        (spec({"type": None}), "its data_spec is not a structure"),
        (spec({"type": "builtins.dict", "context": None, "children_spec": []}), "its data_spec has a dict without keys"),
    ],
)
def test_an_index_that_is_damaged(folder, fn, message):
    change(folder, fn)
    with pytest.raises(
        DatasetError, match=rf"LitDataDataset: '.*index\.json' is not an index of LitData: {message}.*Copy or write the fo"
    ):
        LitDataDataset(folder)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (of_config(encryption={"algorithm": "fernet"}), "its chunks are encrypted"),
        (of_config(item_loader="ParquetLoader"), "its chunks are for 'ParquetLoader', and those of PyTreeLoader and TokensLoader"),
        (of_config(compression="lz4"), r"its chunks are compressed by 'lz4' \(None\), and zstd is read"),
        (
            of_config(compression="zstd", compression_level="more"),
            r"its chunks are compressed by 'zstd' \('more'\), and zstd is read",
        ),
        (
            spec({"type": "collections.OrderedDict", "context": "[]", "children_spec": []}),
            "items hold 'collections.OrderedDict', and",
        ),
        (
            spec({"type": "builtins.dict", "context": "[1]", "children_spec": [LEAF]}),
            r"items hold dicts of the keys \[1\], and texts",
        ),
        (spec({"type": "builtins.dict", "context": '["a"]', "children_spec": []}), "items hold 'builtins.dict', and dicts whose"),
    ],
)
def test_an_index_of_what_is_not_read(folder, fn, message):
    change(folder, fn)
    with pytest.raises(
        DatasetError, match=rf"LitDataDataset: '.*index\.json' says that {message}.*Write the folder again, by `litda"
    ):
        LitDataDataset(folder)


def test_an_index_that_is_no_json(folder):
    (folder / "index.json").write_text("{")
    with pytest.raises(DatasetError, match=r"is not an index of LitData: it is not JSON"):
        LitDataDataset(folder)


def test_folders(folder, tmp_path):
    assert ns(LitDataDataset([folder, numbers(tmp_path / "b", 2)])) == [*range(13), 0, 1]
    other = write(tmp_path / "c", [[item(b"x")]], ["str"], ["s"])
    with pytest.raises(
        DatasetError,
        match=r"'.*c/index\.json' has other items than '.*a/index\.json': \['str'\] instead of \['int', 'str'\]\. Make",
    ):
        LitDataDataset([folder, other])
    empty = change(numbers(tmp_path / "d"), lambda index: index["config"].update(data_format=None, data_spec=None))
    assert list(LitDataDataset(empty)) == []
    assert ns(LitDataDataset([empty, folder])) == list(range(13))


def test_arguments(folder):
    with pytest.raises(DatasetError, match=r"there is no column 'x' in '.*index\.json'\. Its columns are \['n', 's'\]"):
        LitDataDataset(folder, columns=["n", "x"])
    with pytest.raises(
        DatasetError, match=r"there is no column 'x' in '.*index\.json'\. Its columns are none, because items are no"
    ):
        LitDataDataset(write(folder.parent / "one", [[item(b"x")]], ["str"]), columns=["x"])
    with pytest.raises(ArgumentTypeError, match="LitDataDataset: columns must be a list of names"):
        LitDataDataset(folder, columns="n")
    with pytest.raises(ArgumentError, match='LitDataDataset: on_error must be "raise" or "skip"'):
        LitDataDataset(folder, on_error="ignore")
    with pytest.raises(ArgumentError, match="LitDataDataset: block_size must be at least 1"):
        LitDataDataset(folder, block_size=0)
    with pytest.raises(ArgumentError, match="LitDataDataset: max_chunk_bytes must be at least 1"):
        LitDataDataset(folder, max_chunk_bytes=0)
