"""MDS shards: files that MosaicML's streaming has written, positions, shares and shuffles, and everything that can be damaged."""

import bz2
import gzip
import hashlib
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

from replicant.data import AutoShardPolicy, Dataset, DistributedDataset, MDSDataset, TensorSpec
from replicant.errors import ArgumentError, ArgumentTypeError, ConfigurationError, DatasetError, ElementError
from replicant.input.files import _zstd
from replicant.replicas._topology import Topology
from replicant.storage._retry import RemoteError
from replicant.storage._store import Store

from ._division import autoshard

GOLDEN = pathlib.Path(__file__).parent / "mds"


def shard(samples, names, encodings, sizes):
    """The bytes of a shard."""
    config = json.dumps({"column_names": names, "column_encodings": encodings, "column_sizes": sizes}).encode()
    begin = 4 * (len(samples) + 2) + len(config)
    offsets = list(itertools.accumulate(map(len, samples), initial=begin))
    return struct.pack(f"<{len(offsets) + 1}I", len(samples), *offsets) + config + b"".join(samples)


def write(folder, shards, columns, hashes=(), compress=None):
    """A folder of shards of encoded samples: tuples of bytes, one for each column (name, encoding, size)."""
    folder.mkdir(exist_ok=True)
    names, encodings, sizes = map(list, zip(*columns, strict=True))
    listed = []
    for number, rows in enumerate(shards):
        heads = [
            struct.pack(f"<{sizes.count(None)}I", *map(len, itertools.compress(row, [s is None for s in sizes]))) for row in rows
        ]
        samples = [head + b"".join(row) for head, row in zip(heads, rows, strict=True)]
        data, name = shard(samples, names, encodings, sizes), f"shard.{number:05}.mds"
        its = {"column_names": names, "column_encodings": encodings, "column_sizes": sizes, "samples": len(rows)}
        facts = {"raw_data": facts_of(name, data, hashes), "zip_data": None, "compression": None}
        if compress:
            kind, fn = compress
            facts |= {"zip_data": facts_of(f"{name}.{kind}", fn(data), hashes), "compression": f"{kind}:3"}
            name, data = f"{name}.{kind}", fn(data)
        (folder / name).write_bytes(data)
        listed.append({**its, **facts, "format": "mds", "version": 2, "hashes": list(hashes), "size_limit": None})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": listed}))
    return folder


def facts_of(name, data, hashes):
    return {"basename": name, "bytes": len(data), "hashes": {each: hashlib.new(each, data).hexdigest() for each in hashes}}


def numbers(folder, *sizes, **settings):
    """A folder of shards of so many samples, which have their number and a text."""
    ends = list(itertools.accumulate(sizes, initial=0))
    rows = [[(struct.pack("<q", i), b"%d" % i) for i in range(a, b)] for a, b in itertools.pairwise(ends)]
    return write(folder, rows, [("n", "int", 8), ("s", "str", None)], **settings)


def ns(elements):
    return [int(element["n"]) for element in elements]


def change(folder, fn):
    """Change the index of a folder."""
    index = json.loads((folder / "index.json").read_text())
    changed = fn(index)
    (folder / "index.json").write_text(json.dumps(index if changed is None else changed))
    return folder


# What MosaicML's streaming has written


def expected(i):
    return {
        "any": np.arange(i + 1, dtype=np.uint8).reshape(1, i + 1),
        "b": bytes([i]) * i,
        "decimal": f"{i}.50",
        "f16": np.float16(i / 2),
        "f64": np.float64(i / 3),
        "fixed": np.arange(6, dtype=np.float32).reshape(2, 3) * i,
        "float": np.float64(i / 3),
        "i": np.int64(i - 5 * 10**12),
        "i8": np.int8(-i),
        "int": np.int64(7 * i),
        "j": {"n": np.int32(i), "tags": np.array(["a"] * 2, object)},
        "jpg": b"\xff\xd8" + bytes([i]),
        "ragged": np.arange(300 if i == 4 else i + 1, dtype=np.int16),
        "s": f"é{i}",
        "u32": np.uint32(i),
    }


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, dict):
            assert_same(found[name], value)
        else:
            assert np.asarray(found[name]).dtype == np.asarray(value).dtype, name
            assert np.array_equal(found[name], value), name


@pytest.mark.parametrize("form", ["plain", "zstd", "gz", "bz2"])
def test_what_streaming_has_written(form):
    dataset = MDSDataset(GOLDEN / form)
    found = list(dataset)
    assert len(found) == len(dataset) == 8
    for i, element in enumerate(found):
        assert_same(element, expected(i))
    spec = dataset.element_spec
    assert (spec["i"], spec["f16"], spec["s"]) == (TensorSpec((), np.int64), TensorSpec((), np.float16), TensorSpec((), object))
    assert (spec["fixed"], spec["ragged"]) == (TensorSpec((2, 3), np.float32), TensorSpec((None,), np.int16))
    assert spec["any"] == TensorSpec((None, None), np.uint8)
    assert spec["j"] == {"n": TensorSpec((), np.int32), "tags": TensorSpec((None,), object)}
    few = list(MDSDataset([GOLDEN / form] * 2, columns=["s", "i8"]).batch(16))
    assert few[0].keys() == {"s", "i8"}
    assert few[0]["i8"].tolist() == [-i for i in range(8)] * 2
    assert [name.rpartition("/")[2] for name in dataset.explain(3).workers[1].files] == [
        f"shard.00001.mds{'' if form == 'plain' else f'.{form}'}"
    ]


def test_a_shard_that_was_decompressed_is_read_in_its_place(tmp_path):
    shutil.copytree(GOLDEN / "gz", tmp_path / "a")
    for path in (tmp_path / "a").glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert [element["i8"] for element in MDSDataset(tmp_path / "a").global_shuffle(seed=1).take(8)] != list(range(0, -8, -1))
    assert_same(list(MDSDataset(tmp_path / "a"))[5], expected(5))


SHAPED = np.arange(6, dtype=np.int16).reshape(2, 3)


@pytest.mark.parametrize(
    ("encoding", "data", "value"),
    [
        ("ndarray:int16:2,3", SHAPED.tobytes(), SHAPED),
        ("ndarray:int16", bytes([2 << 2, 2, 3]) + SHAPED.tobytes(), SHAPED),
        ("ndarray:int16", bytes([2 << 2 | 1, 2, 0, 3, 0]) + SHAPED.tobytes(), SHAPED),
        ("ndarray", bytes([17, 2 << 2 | 2, 2, 0, 0, 0, 3, 0, 0, 0]) + SHAPED.tobytes(), SHAPED),
        ("ndarray", bytes([17, 1 << 2 | 3, 6, *bytes(7)]) + SHAPED.tobytes(), SHAPED.ravel()),
        ("ndarray", bytes([66, 1 << 2, 1]) + struct.pack("<d", 0.1), np.array([0.1])),
        ("ndarray", bytes([18, 1 << 2, 1]) + np.float16(2).tobytes(), np.array([2], np.float16)),
        ("uint64", struct.pack("<Q", 2**64 - 1), np.uint64(2**64 - 1)),
        ("float32", struct.pack("<f", 0.1), np.float32(0.1)),
        ("str", b"", ""),
        ("bytes", b"", b""),
        ("png", b"\x89PNG", b"\x89PNG"),
        ("str_int", b"-12", np.int64(-12)),
        ("str_float", b"1e300", np.float64(1e300)),
        ("json", b"[1, 2]", np.array([1, 2], np.int32)),
        ("json", b'{"a": {"b": 1.5}, "c": true}', {"a": {"b": np.float32(1.5)}, "c": np.bool_(True)}),
    ],
)
def test_encodings(tmp_path, encoding, data, value):
    size = len(data) if encoding.startswith(("uint", "float", "ndarray:int16:")) else None
    dataset = MDSDataset(write(tmp_path / "a", [[(data,)] * 2], [("x", encoding, size)]))
    for element in [*dataset, *dataset.global_shuffle()]:
        assert_same(element, {"x": value})


# Positions, shares and shuffles


@pytest.fixture
def folder(tmp_path):
    """Shards of 5, 0, 1 and 7 samples."""
    return numbers(tmp_path / "a", 5, 0, 1, 7)


@pytest.mark.parametrize("kind", ["in order", "shuffled", "in windows", "two at a time"])
def test_a_position_leads_to_the_same_rest_from_every_point(folder, kind):
    def make():
        dataset = MDSDataset(folder, num_parallel_reads=2 if kind == "two at a time" else None)
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


def test_samples_that_are_skipped_are_not_read(folder, monkeypatch):
    opened = []
    monkeypatch.setattr("replicant.input.files.shards._mds._whole", lambda form, shard, stream: opened.append(shard) or b"")
    assert next(iter(MDSDataset(folder).skip(13)), None) is None
    assert not opened


@pytest.mark.parametrize("num_workers", [1, 2, 4, 9])
def test_workers_share_shards_or_batches(folder, num_workers):
    node = MDSDataset(folder).node
    policy = AutoShardPolicy.FILE if num_workers <= 4 else AutoShardPolicy.DATA
    plan = MDSDataset(folder).batch(2).explain(num_workers)
    assert plan.policy is (policy if num_workers > 1 else AutoShardPolicy.DATA)
    sizes = [range(5), range(0), range(5, 6), range(6, 13)]
    for worker in range(num_workers):
        own = Dataset(autoshard(node, num_workers, worker, policy)[0])
        wanted = [*itertools.chain(*sizes[worker::num_workers])] if policy is AutoShardPolicy.FILE else [*range(13)]
        assert ns(own) == wanted
        assert len(own) == len(wanted)
        for window in (None, 1):
            shuffled = MDSDataset(folder).global_shuffle(seed=1, window=window)
            assert sorted(ns(Dataset(autoshard(shuffled.node, num_workers, worker, policy)[0]))) == wanted
    assert MDSDataset(folder).global_shuffle(seed=1).batch(2).explain(num_workers).is_elastic


def test_a_position_of_other_shards_is_refused(folder, tmp_path):
    def state(dataset):
        with iter(dataset) as iterator:
            _ = list(itertools.islice(iterator, 3))
            return iterator.state()

    def rest(dataset, state):
        iterator = iter(dataset)
        iterator.restore(state)
        return list(iterator)

    plain, shuffled = state(MDSDataset(folder)), state(MDSDataset(folder).global_shuffle(seed=1))
    windows = state(MDSDataset(folder).global_shuffle(seed=1, window=4))
    numbers(folder, 6, 0, 1, 7)
    with pytest.raises(
        DatasetError, match=r"has changed since the position was saved: it was 5 samples in \d+ bytes, and is now 6 sam"
    ):
        rest(MDSDataset(folder), plain)
    with pytest.raises(DatasetError, match="global_shuffle: the files have changed since the position was saved"):
        rest(MDSDataset(folder).global_shuffle(seed=1), shuffled)
    with pytest.raises(DatasetError, match="MDSDataset: the files have changed since the position was saved"):
        rest(MDSDataset(folder).global_shuffle(seed=1, window=4), windows)


@pytest.mark.parametrize("compress", [("zstd", zstandard.compress), ("gz", gzip.compress), ("bz2", bz2.compress)])
def test_compressed_shards_are_shuffled_in_windows(tmp_path, compress):
    dataset = MDSDataset(numbers(tmp_path / "a", 5, 0, 3, compress=compress, hashes=["sha1"]))
    assert ns(dataset) == list(range(8))
    with pytest.raises(DatasetError, match=r"`MDSDataset\(\)` can only give them in order\. Call `global_shuffle\(window=8\)`"):
        dataset.global_shuffle()
    assert sorted(ns(dataset.global_shuffle(window=2))) == list(range(8))


def test_shards_at_urls(tmp_path, monkeypatch):
    memory = fsspec.filesystem("memory")
    for path in numbers(tmp_path / "a", 4, 3).iterdir():
        memory.pipe(f"/mds/{path.name}", path.read_bytes())
    dataset = MDSDataset("memory://mds/")
    assert ns(dataset) == list(range(7))
    iterator = iter(dataset)
    assert ns(itertools.islice(iterator, 5)) == [0, 1, 2, 3, 4]
    state = iterator.state()
    again = iter(MDSDataset("memory://mds"))
    again.restore(state)
    assert ns(again) == [5, 6]
    lenient = MDSDataset("memory://mds", on_error="skip")
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
    memory.pipe("/mds/shard.00001.mds", memory.cat("/mds/shard.00001.mds"))
    changed = iter(MDSDataset("memory://mds"))
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
    "longer": (lambda data: data + b"x", r"it has \d+( or more)? bytes, and index\.json says \d+"),
    "empty": (lambda data: b"", r"it has 0 bytes"),
    "number of samples": (put(0, 4), r"it has 4 samples at byte 0, and index\.json says 5"),
    "huge number of samples": (put(0, 2**32 - 1), r"it has 4294967295 samples at byte 0"),
    "begin in the header": (put(4, 8), r"byte 4 says that sample 0 begins, or the last one ends, at 8"),
    "descending": (put(12, 40), r"byte 12 says that sample 2 begins, or the last one ends, at 40"),
    "behind the end": (put(24, 9999), r"byte 24 says that sample 5 begins, or the last one ends, at 9999"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_shards(folder, kind):
    fn, message = DAMAGE[kind]
    path = folder / "shard.00000.mds"
    corrupt(path, fn)
    for dataset in (MDSDataset(folder), MDSDataset(folder).global_shuffle(seed=1), MDSDataset(folder).global_shuffle(window=1)):
        with pytest.raises(DatasetError, match=rf"MDSDataset: '.*shard\.00000\.mds' is damaged: {message}.*Copy or write the"):
            list(dataset)
    for dataset in (MDSDataset(folder, on_error="skip"), MDSDataset(folder, on_error="skip").global_shuffle(window=2)):
        lenient = iter(dataset)
        assert sorted(ns(lenient)) == list(range(5, 13))
        assert lenient.num_skipped == 5


def test_damaged_samples(folder):
    path = folder / "shard.00003.mds"

    def lengthen(data):
        begin = struct.unpack_from("<I", data, 4 + 4 * 2)[0]
        struct.pack_into("<I", data, begin, 1000)

    corrupt(path, lengthen)
    with pytest.raises(ElementError, match=r"sample 2 of '.*3\.mds', at byte \d+, is damaged: column 's' ends 999 bytes behind it"):
        list(MDSDataset(folder))
    iterator = iter(MDSDataset(folder))
    assert ns(itertools.islice(iterator, 8)) == list(range(8))
    for _ in range(2):  # an error passes over nothing
        with pytest.raises(ElementError, match="sample 2 of"):
            next(iterator)
    assert ns(MDSDataset(folder).skip(9)) == [9, 10, 11, 12]
    rest = [n for n in range(13) if n != 8]
    assert ns(MDSDataset(folder).ignore_errors()) == rest
    assert sorted(ns(MDSDataset(folder).global_shuffle().ignore_errors())) == rest
    assert sorted(ns(MDSDataset(folder).global_shuffle(window=2).ignore_errors())) == rest
    lenient = iter(MDSDataset(folder, on_error="skip"))
    assert ns(lenient) == rest
    assert lenient.num_skipped == 1
    with pytest.raises(DatasetError, match="can only give them in order"):
        MDSDataset(folder, on_error="skip").global_shuffle()


@pytest.mark.parametrize(
    ("encoding", "data", "message"),
    [
        ("str", b"\xff", "column 'x': .*can't decode byte 0xff"),
        ("str_int", b"1.5", "column 'x': b'1.5' is not a whole number of 64 bits"),
        ("str_int", b"9" * 30, "is not a whole number of 64 bits"),
        ("str_int", b"9" * 9000, "is not a whole number of 64 bits"),
        ("str_float", b"one", "column 'x': b'one' is not a number"),
        ("json", b"{", "column 'x': it is not JSON"),
        ("json", b"[" * 100_000, "column 'x': it is not JSON"),
        ("ndarray", b"", "column 'x': it is not an array"),
        ("ndarray", bytes([200, 4, 1, 0]), "column 'x': it is not an array: 200"),
        ("ndarray", bytes([17, 8, 2]), "column 'x': it is not an array"),
        ("ndarray", bytes([17, 4, 3, 1, 0]), "column 'x': it is not an array"),
        ("ndarray", bytes([9, 4, 3, 1, 2, 3, 4]), "column 'x': it is not an array"),
        ("ndarray", bytes([9, 4 | 3, *[255] * 8, 1]), "column 'x': it is not an array"),
        ("ndarray:int16", bytes([4, 1, 0, 0, 0]), "column 'x': it is not an array"),
    ],
)
def test_damaged_values(tmp_path, encoding, data, message):
    good = {"str": b"a", "str_int": b"1", "str_float": b"1", "json": b"1"}.get(encoding, bytes([17, 4, 1, 0, 0]))
    good = bytes([4, 1, 0, 0]) if encoding == "ndarray:int16" else good
    dataset = MDSDataset(write(tmp_path / "a", [[(good,), (data,)]], [("x", encoding, None)]))
    with pytest.raises(ElementError, match=rf"sample 1 of .* is damaged: .*{message}.*Copy or write"):
        list(dataset)


def test_samples_with_too_many_and_too_few_bytes(tmp_path):
    folder = write(tmp_path / "a", [[(b"\1",), (b"\1\2",), (b"",)]], [("x", "uint8", 1)])
    iterator = iter(MDSDataset(folder))
    assert next(iterator) == {"x": np.uint8(1)}
    with pytest.raises(ElementError, match=r"sample 1 .* is damaged: its columns have 1 bytes, and it has 2"):
        next(iterator)
    with pytest.raises(ElementError, match=r"sample 2 .* is damaged: column 'x' ends 1 bytes behind it"):
        next(iter(MDSDataset(folder).skip(2)))
    short = write(tmp_path / "b", [[(b"",)]], [("x", "str", None)])
    corrupt(short / "shard.00000.mds", lambda data: struct.pack_into("<I", data, 4, len(data)))
    with pytest.raises(ElementError, match="is damaged: it has 0 bytes, and the sizes of its columns alone take 4"):
        list(MDSDataset(short))


def test_hashes_are_compared(tmp_path):
    folder = numbers(tmp_path / "a", 3, 3, hashes=["sha1", "blake2b"])
    corrupt(folder / "shard.00001.mds", lambda data: data[:-1] + b"9")
    assert ns(itertools.islice(iter(MDSDataset(folder)), 3)) == [0, 1, 2]
    for dataset in (MDSDataset(folder), MDSDataset(folder).global_shuffle(seed=1)):
        with pytest.raises(DatasetError, match=r"1\.mds' is damaged: its sha1 is [0-9a-f]{40}, and index\.json says [0-9a-f]{40}"):
            list(dataset)
    zipped = numbers(tmp_path / "z", 3, hashes=["md5"], compress=("gz", gzip.compress))
    change(zipped, lambda index: index["shards"][0]["raw_data"]["hashes"].update(md5="0", xxh64="of another library"))
    with pytest.raises(DatasetError, match=r"0\.mds\.gz' is damaged: its md5 is [0-9a-f]{32}, and index\.json says 0\."):
        list(MDSDataset(zipped))


@pytest.mark.parametrize("kind", ["zstd", "gz", "bz2"])
def test_damaged_compression(tmp_path, kind):
    compress = {"zstd": zstandard.compress, "gz": gzip.compress, "bz2": bz2.compress}[kind]
    folder = numbers(tmp_path / "a", 300, compress=(kind, compress))
    path = folder / f"shard.00000.mds.{kind}"
    whole = path.read_bytes()

    def stated(data):
        path.write_bytes(data)
        change(folder, lambda index: index["shards"][0]["zip_data"].update(bytes=len(data)))

    stated(whole[:-50])
    with pytest.raises(DatasetError, match=r"is damaged: it (holds \d+ bytes once decompressed, and index|cannot be decompressed)"):
        list(MDSDataset(folder))
    stated(b"nothing")
    with pytest.raises(DatasetError, match=r"is damaged: it cannot be decompressed"):
        list(MDSDataset(folder))
    stated(compress(bytes(10**7)))  # of which only so much is made as the index says
    with pytest.raises(DatasetError, match=r"is damaged: it holds \d{1,5} bytes once decompressed, and index\.json says \d+"):
        list(MDSDataset(folder))


def test_zstandard_may_be_missing(tmp_path, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(_zstd.importlib, "import_module", missing)
    with pytest.raises(ConfigurationError, match=r"MDSDataset reads .zst files with zstandard.*replicant-jax\[zstd\]"):
        list(MDSDataset(numbers(tmp_path / "a", 3, compress=("zstd", zstandard.compress))))


def test_missing_files(folder):
    (folder / "shard.00002.mds").unlink()
    iterator = iter(MDSDataset(folder))
    assert ns(itertools.islice(iterator, 5)) == [0, 1, 2, 3, 4]
    for dataset in (MDSDataset(folder), MDSDataset(folder).global_shuffle(), MDSDataset(folder).global_shuffle(window=1)):
        with pytest.raises(DatasetError, match=r"MDSDataset: cannot open '.*shard\.00002\.mds': No such file"):
            list(dataset)
    lenient = iter(MDSDataset(folder, on_error="skip"))
    assert ns(lenient) == [n for n in range(13) if n != 5]
    assert lenient.num_skipped == 1
    (folder / "index.json").unlink()
    with pytest.raises(DatasetError, match=r"MDSDataset: cannot open '.*index\.json': No such file"):
        MDSDataset(folder)


def of_shard(**changes):
    return lambda index: index["shards"][1].update(changes)


def of_file(**changes):
    return lambda index: index["shards"][1]["raw_data"].update(changes)


BELOW = r"is .*, which is not below the folder"
COLUMNS = "has no lists of column names, encodings and sizes that fit"
INDEXES = {
    "a list": (lambda index: [index], "it has no list of shards in 'shards'"),
    "no shards": (lambda index: {"version": 2}, "it has no list of shards"),
    "no object": (lambda index: index["shards"].append(3), "shard 4 is not an object"),
    "format": (of_shard(format="xsv"), "shard 1 has the format 'xsv', version 2; expected 'mds', 2"),
    "version": (of_shard(version=1), "shard 1 has the format 'mds', version 1"),
    "samples": (of_shard(samples=-1), "shard 1 has -1 samples"),
    "no samples": (of_shard(samples=None), "shard 1 has None samples"),
    "fractions": (of_shard(samples=1.5), r"shard 1 has 1\.5 samples"),
    "columns": (of_shard(column_names=["n", "t"]), r"shard 1 has other columns than shard 0: n \(int\), t \(str\) instead of n"),
    "few columns": (of_shard(column_names=["n"]), COLUMNS),
    "a column twice": (of_shard(column_names=["n", "n"]), COLUMNS),
    "columns that are not lists": (of_shard(column_sizes="ab"), COLUMNS),
    "sizes": (of_shard(column_sizes=[-8, None]), COLUMNS),
    "names": (of_shard(column_names=["n", {}]), COLUMNS),
    "raw data": (of_shard(raw_data=None), "shard 1, raw_data has no name and size of a file"),
    "bytes": (of_file(bytes="9"), "shard 1, raw_data has no name and size of a file"),
    "above": (of_file(basename="../x"), BELOW),
    "absolute": (of_file(basename="/etc/passwd"), BELOW),
    "url": (of_file(basename="file://x"), BELOW),
    "backslashes": (of_file(basename="..\\x"), BELOW),
    "no name": (of_file(basename=""), BELOW),
    "hashes": (of_file(hashes={"sha1": 3}), "shard 1, raw_data has hashes that are not texts"),
    "twice": (of_file(basename="shard.00000.mds"), r"shard 1 is '.*shard\.00000\.mds' once more"),
    "zip data": (
        of_shard(zip_data={"basename": 3}, raw_data={"basename": "x", "bytes": 3}, compression="gz"),
        "zip_data has no name",
    ),
}


@pytest.mark.parametrize("kind", INDEXES)
def test_damaged_indexes(folder, kind):
    fn, message = INDEXES[kind]
    change(folder, fn)
    with pytest.raises(
        DatasetError, match=rf"MDSDataset: '.*index\.json' is not an index of MDS shards: .*{message}.*\. Copy or write the fol"
    ):
        MDSDataset(folder)


def test_a_folder_that_nothing_was_written_to_has_no_samples(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "index.json").write_text('{"shards": [], "version": 2}')  # as MDSWriter of streaming 0.13.0 leaves it
    alone = MDSDataset(empty)
    for dataset in (alone, alone.batch(2), alone.global_shuffle(), MDSDataset([empty, empty], num_parallel_reads=2)):
        assert (list(dataset), dataset.cardinality(), dataset.element_spec) == ([], 0, None)
    assert list(MDSDataset(empty, columns=["n"], on_error="skip")) == []
    with iter(DistributedDataset(alone.batch(2), Topology(), lambda rows, sizes: rows.tolist())) as distributed:
        assert list(distributed) == []
    some = numbers(tmp_path / "some", 2, 1)
    for folders in ([empty, some], [some, empty], [empty, some, empty]):
        assert ns(MDSDataset(folders, columns=["n"])) == [0, 1, 2]
        assert MDSDataset(folders).cardinality() == 3
    with pytest.raises(ArgumentError, match=r"there is no column 'm' in '.*some'. Its columns are \['n', 's'\]"):
        MDSDataset([empty, some], columns=["m"])


def test_what_is_no_folder_of_shards(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "0").mkdir()
    for path, why in ((tmp_path / "file", "Not a dir"), (tmp_path / "0", "No such"), (tmp_path / "*", "No such")):
        with pytest.raises(
            DatasetError, match=r"cannot open '.*/index.json': " + why + r".*\. Pass the path or URL of a folder that has an index"
        ):
            MDSDataset(path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "it is not JSON"),
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is nested more than 64 deep"),
        ("\xff", "it is not UTF-8"),
        ("9" * 5000, "it has a number of more than 40 digits"),
        ('"\\ud800"', "it has half of a character"),
    ],
)
def test_indexes_that_are_no_json(folder, text, what):
    (folder / "index.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DatasetError, match=rf"'.*index\.json' is not an index of MDS shards: {what}"):
        MDSDataset(folder)


def test_compressions_that_are_not_read(folder):
    change(folder, of_shard(zip_data={"basename": "x.br", "bytes": 3}, raw_data={"basename": "x", "bytes": 3}, compression="br:11"))
    with pytest.raises(DatasetError, match=r"says that shard 1 is compressed by 'br'\. Only zstd, gz and bz2 are read: decompress"):
        MDSDataset(folder)


# Columns that are not read


@pytest.mark.parametrize(
    ("encoding", "size", "message"),
    [
        (
            "pkl",
            None,
            "is encoded as 'pkl', which is not read: to read it would run whatever code the file contains. Write it as json",
        ),
        ("pil", None, "is encoded as 'pil', which is not read: it holds pixels of many layouts. Write it as jpeg, png or ndarray"),
        ("list[pil]", None, r"'list\[pil\]', which is not read: it holds pixels"),
        ("jpeg_array", None, "'jpeg_array', which is not read: Encodings that are read are bytes, float16, .*leave the column out"),
        ("int:3", None, "'int:3', which is not read"),
        (
            "ndarray:complex64",
            None,
            "'ndarray:complex64', whose dtype or shape is not known. Write it as 'ndarray:float32:2,3', say",
        ),
        ("ndarray:int8:0", None, "'ndarray:int8:0', whose dtype or shape is not known"),
        ("ndarray:int8:-1", None, "'ndarray:int8:-1', whose dtype or shape is not known"),
        ("int", 4, r"column 'x' is encoded as 'int', so its values have 8 bytes, but index\.json says 4"),
        ("str", 4, r"column 'x' is encoded as 'str', so its values have any number of bytes, but index\.json says 4"),
    ],
)
def test_encodings_that_are_not_read(tmp_path, encoding, size, message):
    attack = pickle.dumps(pathlib.Path("x"))[: size or 99]
    folder = write(tmp_path / "a", [[(attack, b"\1")]], [("x", encoding, size), ("y", "uint8", 1)])
    with pytest.raises(DatasetError, match=message):
        list(MDSDataset(folder))
    assert list(MDSDataset(folder, columns=["y"])) == [{"y": np.uint8(1)}]


@pytest.mark.parametrize(
    ("encoding", "first", "second", "message"),
    [
        ("ndarray", bytes([17, 4, 1, 0, 0]), bytes([18, 4, 1, 0, 0]), r"float16.* expected .*int16"),
        ("ndarray", bytes([17, 4, 1, 0, 0]), bytes([17, 8, 1, 1, 0, 0]), r"shape=\(1, 1\).*expected .*\(None,\)"),
        ("json", b'{"a": 1}', b'{"b": 1}', r"column 'x' has the structure .*b.*, expected .*a"),
        ("json", b"1", b"1.5", "column 'x'.* expected .*int32"),
        ("json", b'{"a": 1}', b'{"a": null}', "column 'x' is null"),
        ("json", b"[1]", b"[null]", "column 'x' is null"),
    ],
)
def test_values_that_differ_from_the_first(tmp_path, encoding, first, second, message):
    folder = write(tmp_path / "a", [[(first,), (second,)]], [("x", encoding, None)])
    for dataset in (MDSDataset(folder), MDSDataset(folder).global_shuffle(seed=1)):
        with pytest.raises(
            ElementError, match=rf"sample 1 of '.*' does not fit the first sample: .*{message}.*Leave the column out"
        ):
            list(dataset)
    lenient = iter(MDSDataset(folder, on_error="skip"))
    assert len(list(lenient)) == 1
    assert lenient.num_skipped == 1


def test_a_first_sample_that_says_nothing(tmp_path):
    folder = write(tmp_path / "a", [[], [(b"null",), (b"1",)]], [("x", "json", None)])
    with pytest.raises(
        ElementError, match=r"the first sample of '.*1\.mds' says what columns hold, and cannot be used: column 'x' is null"
    ):
        next(iter(MDSDataset(folder)))
    lenient = iter(MDSDataset(folder, on_error="skip"))
    assert list(lenient) == [{"x": np.int32(1)}]
    assert lenient.num_skipped == 1


def test_few_samples(tmp_path):
    assert list(MDSDataset(numbers(tmp_path / "none", 0)).repeat()) == []
    assert list(MDSDataset(numbers(tmp_path / "none", 0)).global_shuffle()) == []
    one = MDSDataset(numbers(tmp_path / "one", 1, 0))
    assert ns(one) == ns(one.global_shuffle()) == ns(one.global_shuffle(window=9)) == [0]
    empty = write(tmp_path / "empty", [[]], [("x", "json", None)])
    assert list(MDSDataset(empty)) == []


def test_arguments(folder, tmp_path):
    other = write(tmp_path / "b", [[(b"\1",)]], [("x", "uint8", 1)])
    with pytest.raises(
        DatasetError, match=r"MDSDataset: '.*b' has other columns than '.*a': x \(uint8\) instead of n \(int\), s \(str\)"
    ):
        MDSDataset([folder, other])
    with pytest.raises(ArgumentError, match=r"MDSDataset: there is no column 'm' in '.*a'. Its columns are \['n', 's'\]"):
        MDSDataset(folder, columns=["n", "m"])
    with pytest.raises(ArgumentError, match='on_error must be "raise" or "skip"'):
        MDSDataset(folder, on_error="ignore")
    with pytest.raises(ArgumentTypeError, match=r"MDSDataset takes a file name or a list of them\. Received: 3"):
        MDSDataset(3)
