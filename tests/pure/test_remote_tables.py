"""Parquet and Arrow files at URLs: the elements and positions of local files, few bytes asked for, changes and failures told."""

import json
import os
import signal
import threading
import time
from collections import Counter

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from replicant.data import ArrowDataset, AutoShardPolicy, Dataset, ParquetDataset
from replicant.errors import DatasetError
from replicant.input.files.columns import _parquet, _random_access
from replicant.input.sharding._autoshard import autoshard
from replicant.storage import _ranges, _read_ahead, _retry
from replicant.storage._ranges import RangedFile, _pieces_of
from replicant.storage._read_ahead import RemoteFile

CAT = MemoryFileSystem.cat_file


@pytest.fixture
def at(tmp_path):
    """``at(name)`` copies a file of the test's folder to a store in memory, and returns its path and URL."""
    system = fsspec.filesystem("memory")

    def at(name):
        system.pipe(f"/tables/{name}", (tmp_path / name).read_bytes())
        return str(tmp_path / name), f"memory://tables/{name}"

    yield at
    if system.exists("/tables"):
        system.rm("/tables", recursive=True)


@pytest.fixture
def asked(monkeypatch):
    """The ranges that stores were asked for."""
    ranges = []

    def cat(self, path, start=None, end=None, **rest):
        ranges.append((start, end))
        return CAT(self, path, start=start, end=end, **rest)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat)
    return ranges


def table(first=0, rows=40):
    numbers = np.arange(first, first + rows)
    return pa.table(
        {
            "n": numbers,
            "x.y": numbers / 8,
            "list": [list(range(i % 4)) for i in numbers.tolist()],
            "struct": [{"a": i, "b": f"text {i}"} for i in numbers.tolist()],
            "wide": [f"{i:04}" * 500 for i in numbers.tolist()],
        }
    )


def parquet(folder, name="a.parquet", rows_of_group=7, **how):
    pq.write_table(table(**how), folder / name, row_group_size=rows_of_group, compression="none", use_dictionary=False)
    return name


def ipc(folder, kind):
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(folder / "a.arrow", table().schema) as writer:
        writer.write_table(table(), max_chunksize=7)
    return "a.arrow"


CASES = {
    "all columns": (parquet, ParquetDataset),
    "columns": (parquet, lambda name: ParquetDataset(name, columns=["struct", "x.y"])),
    "filters": (parquet, lambda name: ParquetDataset(name, columns=["x.y"], filters=pc.field("n") > 20)),
    "file": (lambda folder: ipc(folder, "file"), ArrowDataset),
    "stream": (lambda folder: ipc(folder, "stream"), lambda name: ArrowDataset(name, columns=["n", "list"])),
}


def same(one, other):
    one, other = list(one), list(other)
    assert len(one) == len(other) > 0
    np.testing.assert_equal(one, other)


@pytest.fixture
def small(monkeypatch):
    """Requests ask for few bytes."""
    monkeypatch.setattr(_read_ahead, "BLOCK", 7000)
    monkeypatch.setattr(_ranges, "_PIECE", 1000)
    monkeypatch.setattr(_ranges, "_HOLE", 10)
    monkeypatch.setattr(_ranges, "_LARGEST_HOLE", 20)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("case", CASES)
def test_elements_and_positions_are_those_of_local_files(tmp_path, at, case):
    make, dataset = CASES[case]
    local, url = at(make(tmp_path))
    expected = list(dataset(local))
    same(dataset(url), expected)
    same(dataset(url).skip(9).repeat(2), expected[9:] * 2)
    iterator = iter(dataset(url))
    same([next(iterator) for _ in range(11)], expected[:11])
    state = json.loads(json.dumps(iterator.state()))
    iterator.close()
    again = iter(dataset(url))
    again.restore(state)
    assert again.state() == state
    same(again, expected[11:])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("case", ["all columns", "filters", "file", "stream"])
def test_a_file_that_has_changed_is_told(tmp_path, at, case):
    make, dataset = CASES[case]
    _, url = at(make(tmp_path))
    iterator = iter(dataset(url))
    for _ in range(3):
        next(iterator)
    state = iterator.state()
    fsspec.filesystem("memory").pipe(url.removeprefix("memory:/"), (tmp_path / url.rpartition("/")[2]).read_bytes())  # its time
    with pytest.raises(DatasetError, match="has changed while it was read"):
        list(iterator)
    again = iter(dataset(url))
    again.restore(state)
    with pytest.raises(DatasetError, match="has changed since the position was saved"):
        next(again)


def test_only_the_chosen_columns_are_asked_for(tmp_path, at, asked):
    local, url = at(parquet(tmp_path, rows=4000, rows_of_group=1000))
    metadata = pq.ParquetFile(local).metadata
    chosen = sum(metadata.row_group(i).column(0).total_compressed_size for i in range(4))
    assert (tmp_path / "a.parquet").stat().st_size > 100 * chosen
    dataset = ParquetDataset(url, columns=["n"])
    _ = dataset.element_spec
    footers = sum(stop - start for start, stop in asked)
    asked.clear()
    assert [int(row["n"]) for row in dataset] == list(range(4000))
    assert sum(stop - start for start, stop in asked) == chosen + footers
    assert len(asked) == 4 + 1  # row groups, and the footer


def test_row_groups_that_are_skipped_are_not_asked_for(tmp_path, at, asked):
    local, url = at(parquet(tmp_path, rows=4000, rows_of_group=1000))
    last = pq.ParquetFile(local).metadata.row_group(3).column(0)
    dataset = ParquetDataset(url, columns=["n"])
    assert (dataset.cardinality(), len(dataset.element_spec)) == (4000, 1)
    asked.clear()
    assert int(next(iter(dataset.skip(3500)))["n"]) == 3500
    begin = last.data_page_offset
    assert asked[1:] == [(begin, begin + last.total_compressed_size)]  # after the footer


def test_workers_share_files_by_row_groups(tmp_path, at):
    dataset = ParquetDataset(at(parquet(tmp_path, rows_of_group=10))[1], columns=["n"])
    own = [Dataset(autoshard(dataset.node, 2, rank, AutoShardPolicy.FILE)[0]) for rank in range(2)]
    assert [[int(row["n"]) for row in each] for each in own] == [[*range(10), *range(20, 30)], [*range(10, 20), *range(30, 40)]]


def test_parts_of_two_versions_of_a_file_are_not_mixed(tmp_path, at):
    local, url = at(parquet(tmp_path, rows_of_group=10))
    for name, other in ((url, {"first": 1000}), (local, {"rows": 39})):  # at a URL also one that looks alike
        own = Dataset(autoshard(ParquetDataset(name, columns=["n"]).node, 2, 0, AutoShardPolicy.FILE)[0])
        iterator = iter(own)
        assert [int(next(iterator)["n"]) for _ in range(10)] == list(range(10))
        at(parquet(tmp_path, rows_of_group=10, **other))
        message = rf"'{name}' has changed since another part of it was read: it was .*Put the file back"
        with pytest.raises(DatasetError, match=message):
            next(iterator)
        at(parquet(tmp_path, rows_of_group=10))
    assert [int(row["n"]) for row in own.repeat(2)] == [*range(10), *range(20, 30)] * 2


def test_rows_are_counted_only_of_few_files(tmp_path, at, asked):
    _, url = at(parquet(tmp_path))
    assert ParquetDataset([url] * 20).cardinality() == 800  # one file, opened once
    urls = [at(parquet(tmp_path, f"{i}.parquet"))[1] for i in range(17)]
    asked.clear()
    assert ParquetDataset(urls).cardinality() == -2
    assert asked == []


def test_a_store_that_does_not_answer_is_never_skipped(tmp_path, at, asked, monkeypatch):
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.5")
    _, url = at(parquet(tmp_path))
    iterator = iter(ParquetDataset(url, columns=["n"], on_error="skip"))
    assert int(next(iterator)["n"]) == 0
    deadline = time.monotonic() + 20
    while len(asked) < 4 and time.monotonic() < deadline:  # the footer twice, and two row groups
        time.sleep(0.01)
    broken = True

    def cat(self, path, start=None, end=None, **rest):
        if broken:
            raise ConnectionResetError("cut")
        return CAT(self, path, start=start, end=end, **rest)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat)
    assert [int(next(iterator)["n"]) for _ in range(13)] == list(range(1, 14))  # the next group is on its way early
    with pytest.raises(DatasetError, match=r"cannot read row group 2 of 'memory://tables/a.parquet'.* cut\. Check the URL"):
        next(iterator)
    with pytest.raises(DatasetError, match=r"cannot read 'memory://tables/a.parquet': .* cut\. Check the URL and the store"):
        next(iter(ParquetDataset(url, columns=["n"], on_error="skip")))
    broken = False
    assert [int(row["n"]) for row in iterator] == list(range(14, 40))
    assert iterator.num_skipped == 0


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_store_that_fails_while_batches_are_passed_shifts_no_rows(tmp_path, at, monkeypatch, on_error):
    monkeypatch.setattr(_read_ahead, "BLOCK", 512)
    monkeypatch.setattr(_read_ahead, "AHEAD", 0)
    monkeypatch.setattr(_random_access, "_PIECE", 512)
    monkeypatch.setattr(_retry, "_ATTEMPTS", 1)
    numbers = pa.table({"n": np.arange(1200)})
    with pa.ipc.new_stream(tmp_path / "a", numbers.schema) as writer:
        writer.write_table(numbers, max_chunksize=100)
    dataset = ArrowDataset(at("a")[1], on_error=on_error)
    with iter(dataset) as iterator:
        for _ in range(800):
            next(iterator)
        state = iterator.state()
    reads = Counter()

    def cat(self, path, start=None, end=None, **rest):
        reads[start] += 1
        if start == bad and reads[start] == 2:  # the first time, the record batches are counted
            raise OSError("503")
        return CAT(self, path, start=start, end=end, **rest)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat)
    for bad in range(1024, (tmp_path / "a").stat().st_size - 1024, 512):  # noqa: B007 - `cat` looks at it
        reads.clear()
        iterator, came = iter(dataset), []
        iterator.restore(state)
        with pytest.raises(DatasetError, match=r"cannot read record batch \d+ of .*OSError: 503\. Check the URL and the store"):
            came.extend(iterator)
        assert [int(row["n"]) for row in [*came, *iterator]] == list(range(800, 1200))
        assert iterator.num_skipped == 0


STALLED = {  # the dataset, and how many elements come before the store stalls
    "opening": (parquet, ParquetDataset, 0),
    "row group": (parquet, ParquetDataset, 6),
    "filters": (parquet, lambda name: ParquetDataset(name, filters=pc.field("n") >= 0), 6),
    "pieces": (
        lambda folder: parquet(folder, rows=4000, rows_of_group=2000),
        lambda name: ParquetDataset(name, columns=["n"]),
        400,
    ),
    "stream": (lambda folder: ipc(folder, "stream"), ArrowDataset, 3),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("case", STALLED)
def test_a_signal_ends_the_waiting_for_a_store_and_costs_no_rows(tmp_path, at, monkeypatch, case):
    class Interrupted(BaseException):
        pass

    def interrupt(*_):
        raise Interrupted

    make, dataset, count = STALLED[case]
    if case == "pieces":
        monkeypatch.setattr(_parquet, "_LARGE_ROWS", 1000)
        monkeypatch.setattr(_parquet, "_BUFFER", 1000)
        monkeypatch.setattr(_parquet, "_LEAST_BUFFER", 1000)
        monkeypatch.setattr(_ranges, "_AHEAD_BYTES", 0)
    monkeypatch.setattr(_read_ahead, "AHEAD", 0)
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "60")
    local, url = at(make(tmp_path))
    expected = list(dataset(local))
    of_urls = dataset(url)
    _ = of_urls.element_spec
    iterator = iter(of_urls)
    came = [next(iterator) for _ in range(count)]
    answers = threading.Event()

    def cat(self, path, start=None, end=None, **rest):
        answers.wait(60)
        return CAT(self, path, start=start, end=end, **rest)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat)
    before = signal.signal(signal.SIGUSR1, interrupt)
    start = time.monotonic()
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGUSR1])
    timer.start()
    try:
        with pytest.raises(Interrupted):
            came.extend(iterator)
    finally:
        signal.signal(signal.SIGUSR1, before)
        answers.set()
    assert time.monotonic() - start < 10
    assert len(came) < len(expected)
    same([*came, *iterator], expected)


def test_counting_and_filtering_say_it_if_the_store_fails(tmp_path, at, asked, monkeypatch):
    monkeypatch.setattr(_retry, "_ATTEMPTS", 1)
    _, url = at(parquet(tmp_path))
    dataset, filtered = ParquetDataset(url), ParquetDataset(url, filters=pc.field("n") > 20)
    _ = dataset.element_spec, filtered.element_spec
    asked.clear()
    tables = filtered.node.form.tables(url)
    before = len(asked)
    tables.close()

    def fail(*_, **__):
        raise OSError("503")

    def fail_at_last(self, path, start=None, end=None, **rest):
        asked.append((start, end))
        return fail() if len(asked) == before else CAT(self, path, start=start, end=end, **rest)

    asked.clear()
    monkeypatch.setattr(MemoryFileSystem, "cat_file", fail_at_last)
    with pytest.raises(
        DatasetError, match=rf"'{url}' cannot be read: could not read {url}: OSError: 503\. Check the URL and the st"
    ):
        filtered.node.form.tables(url)
    monkeypatch.setattr(MemoryFileSystem, "info", fail)
    for count in (
        dataset.cardinality,
        lambda: len(dataset),
        lambda: autoshard(dataset.node, 2, 0, AutoShardPolicy.FILE),
    ):
        message = rf"ParquetDataset: cannot count the rows of '{url}': could not look at {url}: OSError: 503\. Check the URL and"
        with pytest.raises(DatasetError, match=message):
            count()


def test_what_is_missing_or_damaged_is_told_and_skipped_if_asked_for(tmp_path, at):
    _, good = at(parquet(tmp_path))
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-3])
    _, bad = at("b.parquet")
    for url, what in ((bad, "magic bytes"), ("memory://tables/none.parquet", "none.parquet")):
        with pytest.raises(DatasetError, match=rf"ParquetDataset: cannot read '{url}': .*{what}"):
            next(iter(ParquetDataset(url)))
        same(ParquetDataset([good, url], on_error="skip"), ParquetDataset(good))


def test_names_in_a_dataset_of_names(tmp_path, at):
    local = [at(parquet(tmp_path, f"{i}.parquet", first=100 * i))[0] for i in range(3)]
    names = Dataset.list_files("memory://tables/*.parquet", shuffle=False)
    same(ParquetDataset(names), ParquetDataset(local))


@pytest.fixture
def bytes_at():
    data = np.random.default_rng(0).bytes(100_000)
    fsspec.filesystem("memory").pipe("/tables/bytes", data)
    return data, "memory://tables/bytes"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.long_cases("3", "4", "7")
@pytest.mark.long_cases("0")
def test_a_ranged_file_gives_the_bytes_of_the_file(bytes_at, monkeypatch, seed):
    monkeypatch.setattr(_ranges, "_PIECE", 700)
    monkeypatch.setattr(_ranges, "_HOLE", 30)
    monkeypatch.setattr(_ranges, "_LARGEST_HOLE", 60)
    data, url = bytes_at
    rng = np.random.default_rng(seed)
    with RangedFile(url) as file:
        assert file.seek(0, 2) == file.tell() == 100_000
        assert file.read(5) == b""
        for _ in range(40):
            starts = rng.integers(0, 100_500, 5)
            file.announce((int(start), int(start + rng.integers(0, 3000))) for start in starts)
            for _ in range(6):
                start, size = int(rng.choice(starts)) + int(rng.integers(-500, 500)), int(rng.integers(0, 4000))
                file.seek(max(0, start))
                assert file.read(size) == data[max(0, start) : max(0, start) + size]


@pytest.mark.parametrize("most", [0, 3, 17])
def test_pieces_are_asked_for_a_few_at_a_time_and_dropped_once_read(bytes_at, asked, monkeypatch, most):
    monkeypatch.setattr(_ranges, "_PIECE", 1000)
    monkeypatch.setattr(_ranges, "_AHEAD_BYTES", most * 1000)
    data, url = bytes_at
    with RangedFile(url) as file:
        file.announce([(0, 20_000)])
        assert file.read(500) == data[:500]
        assert sum(piece.begun is not None for piece in file._pieces) == 1 + min(most, 15)
        for _ in range(39):
            file.read(500)
            assert sum(piece.begun is not None for piece in file._pieces) <= 1 + min(most, 15)
        assert file.tell() == 20_000
        assert all(piece.begun is None for piece in file._pieces)
        assert sorted(asked) == [(i, i + 1000) for i in range(0, 20_000, 1000)]  # each once


def test_what_comes_then_is_on_its_way_and_is_asked_for_once(bytes_at, asked, monkeypatch):
    monkeypatch.setattr(_ranges, "_PIECE", 1000)
    data, url = bytes_at
    groups = [(0, 2500), (2500, 5000), (5000, 6000)]
    with RangedFile(url) as file:
        for (start, stop), then in zip(groups, [[group] for group in groups[1:]] + [[]], strict=True):
            file.announce([(start, stop)], then)
            assert file.read(stop - start) == data[start:stop]
        for piece in file._pieces:
            assert piece.begun is None
    assert sorted(asked) == [(0, 1000), (1000, 2000), (2000, 2500), (2500, 3500), (3500, 4500), (4500, 5000), (5000, 6000)]


@pytest.mark.parametrize("opened", [RangedFile, RemoteFile])
def test_what_failed_before_it_was_needed_is_asked_for_again(bytes_at, monkeypatch, opened):
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.3")
    monkeypatch.setattr(_ranges, "_PIECE", 1000)
    monkeypatch.setattr(_read_ahead, "BLOCK", 1000)
    data, url = bytes_at
    failed = []

    def cat(self, path, start=None, end=None, **rest):
        if broken and start >= 3000:
            failed.append(start)
            raise ConnectionResetError("cut")
        return CAT(self, path, start=start, end=end, **rest)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat)
    with opened(url) as file:
        broken = True
        if opened is RangedFile:
            file.announce([(0, 10_000)])
        assert file.read(1000) + file.read(1000) + file.read(1000) == data[:3000]
        time.sleep(1)
        assert set(failed) >= {3000, 4000}
        broken = False
        assert file.read(1000) == data[3000:4000]


def test_reading_again_after_an_error_asks_again(bytes_at, monkeypatch):
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.3")
    data, url = bytes_at
    with RangedFile(url) as file:
        with monkeypatch.context() as broken:
            broken.setattr(MemoryFileSystem, "cat_file", lambda *_, **__: 1 / 0)
            file.announce([(0, 50_000)])
            with pytest.raises(OSError, match=f"could not read {url}.*division by zero"):
                file.read(10)
        assert file.read(10) == data[:10]


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], []),
        ([(5, 5), (9, 3)], []),
        ([(0, 10), (5, 12)], [(0, 12)]),
        ([(0, 10), (800_000, 800_010)], [(0, 10), (800_000, 800_010)]),
        ([(260_000, 260_010), (200_000, 200_010)], [(200_000, 260_010)]),
        ([(-5, 10), (3_999_990, 5_000_000)], [(0, 10), (3_999_990, 4_000_000)]),
        ([(0, 10), (900_000, 1_800_000), (1_900_000, 1_950_000)], [(0, 1_800_000), (1_900_000, 1_950_000)]),
        ([(0, 10), (1_100_000, 2_900_000)], [(0, 10), (1_100_000, 2_900_000)]),
    ],
)
def test_pieces_do_not_overlap_and_stay_in_the_file(ranges, expected):
    assert _pieces_of(ranges, 4_000_000) == expected
