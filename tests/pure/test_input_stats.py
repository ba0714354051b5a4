"""`iterator.stats()`: what was waited for and read, with threads, several iterators, workers and restored positions."""

import gzip
import json
import threading
import time

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from replicant.data import (
    ArrowDataset,
    AutoShardPolicy,
    Dataset,
    DistributedDataset,
    InputOptions,
    JsonLinesDataset,
    Options,
    ParquetDataset,
    TextLineDataset,
)
from replicant.input.distributed._stats import InputStats
from replicant.replicas._topology import Topology
from replicant.storage import _read_ahead, _retry

PAUSE = 0.005


def slow(x):
    time.sleep(PAUSE)
    return int(x)


def place(rows, sizes):
    return rows


def distributed(dataset, options=None):
    return DistributedDataset(dataset, Topology(), place, options)


def read(dataset, pause=0.0):
    with iter(distributed(dataset)) as iterator:
        for _ in iterator:
            time.sleep(pause)
        return iterator.stats()


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "lines").write_text("".join(f"{i}\n" for i in range(40)))
    return TextLineDataset(tmp_path / "lines")


# What is waited for


@pytest.mark.parametrize(
    "pipeline",
    [
        lambda lines: lines.map(slow).batch(4),
        lambda lines: lines.map(slow).batch(4).prefetch(1),
        lambda lines: lines.map(slow).prefetch(2).batch(4).prefetch(1),
        lambda lines: lines.map(slow, num_parallel_calls=2).batch(4),
        lambda lines: lines.map(slow).shuffle(10, seed=1).repeat(2).batch(4),
        lambda lines: Dataset.zip(lines.map(slow), lines).batch(4),
    ],
)
def test_the_slow_stage_is_the_one_that_is_waited_for(lines, pipeline):
    stats = read(pipeline(lines))
    by_stage = stats.seconds_waiting_by_stage
    assert max(by_stage, key=by_stage.get) == "map(slow)"
    assert 0.5 * stats.seconds_waiting < by_stage["map(slow)"] <= sum(by_stage.values()) <= stats.seconds_waiting
    assert not any(stage.startswith("prefetch") for stage in by_stage)  # only hands over
    assert "most of all for map(slow) (" in str(stats)


def test_the_wait_for_the_end_of_the_data_and_for_an_error_counts_too(lines):
    with iter(distributed(lines.filter(lambda line: slow(line) < 8).batch(4))) as iterator:
        assert len(list(iterator)) == 2
        stats = iterator.stats()
        assert list(iterator) == []
    assert stats.seconds >= stats.seconds_waiting > 40 * PAUSE  # 32 rows come after the last batch
    assert iterator.stats() == stats

    def refuses(line):
        raise ValueError(f"no line {slow(line)}")

    with iter(distributed(lines.map(refuses).batch(4))) as iterator:
        with pytest.raises(ValueError, match="no line 0"):
            next(iterator)
        stats = iterator.stats()
    assert (stats.num_steps, stats.num_examples) == (0, 0)
    assert stats.seconds >= stats.seconds_waiting > PAUSE


def test_no_time_is_counted_while_the_first_element_is_waited_for(lines):
    asked, go_on = threading.Event(), threading.Event()

    def held(line):
        asked.set()
        go_on.wait(30)
        return line

    with iter(distributed(lines.map(held).batch(4))) as iterator:
        reader = threading.Thread(target=next, args=(iterator,), daemon=True)
        reader.start()
        assert asked.wait(30)
        stats = iterator.stats()
        go_on.set()
        reader.join(30)
    assert (stats.num_steps, stats.seconds, stats.seconds_waiting, stats.examples_per_second) == (0, 0.0, 0.0, 0.0)


def test_a_stage_that_works_while_nobody_waits_is_not_waited_for(lines):
    stats = read(lines.map(slow).batch(4).prefetch(4), pause=8 * PAUSE)
    waited = stats.seconds_waiting_by_stage.get("map(slow)", 0.0)
    assert waited < 0.5 * 40 * PAUSE  # of the first batches
    assert sum(stats.seconds_waiting_by_stage.values()) <= stats.seconds_waiting


def test_a_stage_behind_a_thread_is_waited_for_alone(lines):
    def slower(batch):
        time.sleep(8 * PAUSE)
        return batch

    stats = read(lines.map(slow).batch(4).prefetch(4).map(slower))  # the first stages work meanwhile, but nobody waits for them
    by_stage = stats.seconds_waiting_by_stage
    (name,) = [stage for stage in by_stage if "slower" in stage]
    assert by_stage[name] > 3 * by_stage["map(slow)"]
    assert sum(by_stage.values()) <= stats.seconds_waiting


def test_files_that_are_read_in_turn_are_one_stage(lines, tmp_path):
    files = Dataset.from_tensor_slices([str(tmp_path / "lines")] * 2)
    for dataset in (
        files.interleave(lambda name: TextLineDataset(name).map(slow), cycle_length=2, num_parallel_calls=2),
        files.flat_map(lambda name: TextLineDataset(name).map(slow)),
    ):
        stats = read(dataset.batch(8))
        (name,) = [stage for stage in stats.seconds_waiting_by_stage if stage.startswith(("interleave(", "flat_map("))]
        assert stats.seconds_waiting_by_stage[name] > 0.5 * stats.seconds_waiting
        assert stats.num_file_bytes == 2 * (tmp_path / "lines").stat().st_size


@pytest.mark.parametrize("fetch", [True, False])
def test_placing_is_a_stage(lines, fetch):
    def slowly(rows, sizes):
        time.sleep(PAUSE)
        return rows

    options = InputOptions(experimental_fetch_to_device=fetch)
    with iter(DistributedDataset(lines.batch(4), Topology(), slowly, options)) as iterator:
        assert len(list(iterator)) == 10
        stats = iterator.stats()
    by_stage = stats.seconds_waiting_by_stage
    assert max(by_stage, key=by_stage.get) == "placing"
    assert 0.5 * stats.seconds_waiting < by_stage["placing"] <= stats.seconds_waiting


def test_stages_of_one_name_are_added_up(lines):
    stats = read(lines.map(slow).map(slow).batch(4))
    assert stats.seconds_waiting_by_stage["map(slow)"] > 1.9 * 40 * PAUSE
    assert list(stats.seconds_waiting_by_stage)[:3] == ["TextLineDataset()", "map(slow)", "batch(4)"]


def test_workers_wait_for_each_other(tmp_path):
    names = []
    for i in range(2):
        (tmp_path / f"{i}").write_text("".join(f"{j}\n" for j in range(4)))
        names.append(str(tmp_path / f"{i}"))
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.FILE
    dataset = TextLineDataset(names).map(slow).batch(2).with_options(options)
    meeting, values, found = threading.Barrier(2), {}, {}

    def work(worker):
        def exchange(value):
            values[worker] = value
            meeting.wait(30)
            both = [values[0], values[1]]
            meeting.wait(30)
            return both

        iterator = iter(DistributedDataset(dataset, Topology(2, worker, 1), place, exchange=exchange))
        for _ in range(2):
            next(iterator)
        found[worker] = iterator.stats()
        iterator.close()

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for stats in found.values():
        assert stats.seconds_waiting_by_stage["other workers"] > 0
        assert stats.num_file_bytes == 8  # of this worker's own file
        assert sum(stats.seconds_waiting_by_stage.values()) <= stats.seconds_waiting
    assert len(found) == 2


def test_iterators_count_for_themselves(lines):
    dataset = distributed(lines.map(slow).batch(4))
    with iter(dataset) as one, iter(dataset) as other:
        for _ in one:
            pass
        next(other)
        assert one.stats().num_file_bytes == other.stats().num_file_bytes == 110
        assert one.stats().seconds_waiting_by_stage["map(slow)"] > 2 * other.stats().seconds_waiting_by_stage["map(slow)"]
    untouched = iter(dataset)
    assert untouched.stats() == InputStats(0, 0, 0.0, 0.0, 0, 2)
    untouched.close()


def test_counts_begin_anew_when_a_position_is_restored(lines):
    dataset = distributed(lines.map(slow).batch(4))
    with iter(dataset) as iterator:
        for _ in range(9):
            next(iterator)
        state = iterator.state()
        assert "seconds" not in json.dumps(state)
        iterator.restore(state)
        assert iterator.stats() == InputStats(0, 0, 0.0, 0.0, 0, 2)
        assert [x.tolist() for x in iterator] == [[36, 37, 38, 39]]
        stats = iterator.stats()
    assert (stats.num_steps, stats.num_examples, stats.num_file_bytes) == (1, 4, 12)
    assert stats.seconds_waiting_by_stage["map(slow)"] < 30 * PAUSE  # of 4 lines, not of 40


def test_arrays_in_memory_are_not_watched():
    stats = read(Dataset.range(100).shuffle(10, seed=1).batch(4))
    assert (stats.num_steps, stats.num_file_bytes) == (25, 0)
    assert not {*stats.seconds_waiting_by_stage} - {"placing", "range(0, 100, 1)", "shuffle(10, seed=1)", "batch(4)"}


# What is read


def test_compressed_bytes_are_counted_as_they_lie_in_the_file(tmp_path):
    text = "".join(f"{i} and {i}\n" for i in range(5000)).encode()
    (tmp_path / "a.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}\n' * 5000))
    assert read(TextLineDataset(tmp_path / "a.gz", "GZIP").batch(10)).num_file_bytes == (tmp_path / "a.gz").stat().st_size
    lines = JsonLinesDataset(tmp_path / "a.jsonl.gz").batch(10)
    assert read(lines).num_file_bytes == (tmp_path / "a.jsonl.gz").stat().st_size


def test_columns_that_are_not_read_are_not_counted(tmp_path):
    numbers = np.random.default_rng(0).random(4000)
    table = pa.table({"x": numbers, "much": [f"{n}" * 20 for n in numbers], "s": [{"t": float(n)} for n in numbers]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    size = (tmp_path / "a.parquet").stat().st_size
    assert 32_000 < read(ParquetDataset(tmp_path / "a.parquet", columns=["x"]).batch(100)).num_file_bytes < 40_000
    assert 0.9 * size < read(ParquetDataset(tmp_path / "a.parquet").batch(100)).num_file_bytes < size
    few = ParquetDataset(tmp_path / "a.parquet", columns=["x"], filters=[("x", "<", -1)])
    assert read(few.batch(100)).num_file_bytes == 0


@pytest.mark.parametrize("writer", [pyarrow.ipc.new_file, pyarrow.ipc.new_stream])
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("num_batches", [0, 1, 7])
def test_record_batches_are_counted(tmp_path, writer, compression, num_batches):
    table = pa.table({"x": np.arange(1000), "name": [f"number {i}" for i in range(1000)]})
    with writer(tmp_path / "a", table.schema, options=pyarrow.ipc.IpcWriteOptions(compression=compression)) as file:
        for _ in range(num_batches):
            file.write_table(table)
    stats = read(ArrowDataset(tmp_path / "a").batch(100))
    assert stats.num_examples == 1000 * num_batches
    size = (tmp_path / "a").stat().st_size
    assert size - 2000 < stats.num_file_bytes <= size if num_batches else stats.num_file_bytes == 0


def test_saved_and_cached_datasets_are_files(tmp_path, lines):
    lines.save(str(tmp_path / "saved"))
    assert read(Dataset.load(str(tmp_path / "saved")).batch(4)).num_file_bytes > 100
    cached = lines.map(int).cache(str(tmp_path / "cache")).batch(4)
    assert read(cached).num_file_bytes > 110  # the lines, and the index of what was written
    assert read(cached).num_file_bytes > 40 * 8


class Troubled(MemoryFileSystem):
    """Every second request for a range fails."""

    protocol, cachable = "troubled", False
    store, pseudo_dirs = MemoryFileSystem.store, MemoryFileSystem.pseudo_dirs
    asked = 0

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("troubled://", "memory://"))

    def info(self, path, **kwargs):
        return {**super().info(path, **kwargs), "etag": "1"}

    def cat_file(self, path, start=None, end=None, **kwargs):
        Troubled.asked += 1
        if Troubled.asked % 2:
            raise ConnectionResetError("lost")
        return super().cat_file(path, start=start, end=end, **kwargs)


@pytest.mark.parametrize("parallel", [None, 2])
def test_stores_their_retries_and_the_cache_of_the_host(tmp_path, monkeypatch, parallel):
    fsspec.register_implementation("troubled", Troubled, clobber=True)
    monkeypatch.setattr(Troubled, "asked", 0)
    monkeypatch.setattr(_read_ahead, "BLOCK", 1000)
    monkeypatch.setattr(_retry, "_FIRST_PAUSE", 0.001)
    monkeypatch.setenv("REPLICANT_REMOTE_CACHE", str(tmp_path / "cache"))
    text = "".join(f"{i}\n" for i in range(2000)).encode()
    store = fsspec.filesystem("memory")
    store.pipe("/stats/a", text)
    try:
        dataset = TextLineDataset(["troubled://stats/a"], num_parallel_reads=parallel)
        dataset.element_spec  # noqa: B018 - may read
        num_ranges = -(-len(text) // 1000)
        first = read(dataset.batch(100))
        assert (first.num_examples, first.num_file_bytes, first.num_store_bytes) == (2000, 0, len(text))
        assert (first.num_cache_hits, first.num_cache_misses, first.num_retries) == (0, num_ranges, num_ranges)
        second = read(dataset.batch(100))
        assert (second.num_store_bytes, second.num_retries) == (0, 0)
        assert (second.num_cache_hits, second.num_cache_misses) == (num_ranges, 0)
        assert f"{len(text):,} bytes from object stores, 0 of 9 ranges in the cache of the host, 9 requests repeated" in str(first)
    finally:
        store.rm("/stats", recursive=True)


# What is made of it


def test_measurements_can_be_subtracted_and_written():
    before = InputStats(2, 20, 1.0, 0.5, 1, 2, 1, 100, 0, 1, 2, 3, {"a": 0.25})
    after = InputStats(5, 50, 4.0, 1.5, 0, 2, 1, 300, 10, 4, 3, 4, {"a": 0.75, "b": 0.5})
    assert after - before == InputStats(3, 30, 3.0, 1.0, 0, 2, 0, 200, 10, 3, 1, 1, {"a": 0.5, "b": 0.5})
    assert (after - before).scalars("in/") == {
        "in/num_steps": 3,
        "in/num_examples": 30,
        "in/seconds": 3,
        "in/seconds_waiting": 1,
        "in/num_ready": 0,
        "in/buffer_size": 2,
        "in/num_skipped": 0,
        "in/num_file_bytes": 200,
        "in/num_store_bytes": 10,
        "in/num_cache_hits": 3,
        "in/num_cache_misses": 1,
        "in/num_retries": 1,
        "in/examples_per_second": 10,
        "in/share_waiting": 1 / 3,
        "in/seconds_waiting/a": 0.5,
        "in/seconds_waiting/b": 0.5,
    }
