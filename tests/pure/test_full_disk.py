"""What a write leaves behind when the disk is full, or a file may not grow: nothing that counts, and an error of ours.

The errors are real: the system refuses to let a file grow (``RLIMIT_FSIZE``) or, where a test may mount one, a small disk is full.
"""

import contextlib
import os
import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorboardX.event_file_writer  # noqa: F401 - its import sets environment variables

import replicant
from replicant._whole_file import open_regular, write_whole, writing_whole
from replicant.cli import main
from replicant.cli._new import write_project
from replicant.data import Dataset, TFRecordDataset, TFRecordWriter
from replicant.errors import CheckpointError, CommandError, DatasetError, ReplicantError, WriteError
from replicant.kernels.compiled import _kept_code
from replicant.kernels.xla import _flag_trial
from replicant.launch.console._logs import Logs
from replicant.launch.record._run_log import RunLog
from replicant.plan import _analysis_cache
from replicant.storage._cache import BlockCache
from replicant.summary import _event_file

LIMIT = 256 << 10  # bytes


@contextlib.contextmanager
def small_files():
    """No file may have more than `LIMIT` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def full_disk(folder):
    """A disk of `LIMIT` bytes is at this folder."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={LIMIT}", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"this user may not mount a disk: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(params=["a file must not grow", "the disk is full"])
def small(request, tmp_path):
    """A folder in which little room is left."""
    folder = tmp_path / "small"
    folder.mkdir()
    with small_files() if request.param == "a file must not grow" else full_disk(folder):
        yield folder


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def save_checkpoint(folder):
    replicant.Checkpoint(w=replicant.Variable(np.zeros(LIMIT, np.float32))).write(folder / "kept")


def save_dataset(folder):
    Dataset.range(LIMIT).save(folder / "kept")


def save_compressed(folder):
    numbers = np.random.default_rng(0).integers(0, 1 << 60, LIMIT)
    Dataset.from_tensor_slices(numbers).save(folder / "kept", compression="GZIP")


def fill_cache(folder):
    list(Dataset.range(LIMIT).cache(folder / "kept").batch(1000))


def fill_snapshot(folder):
    list(Dataset.range(LIMIT).snapshot(folder / "kept").batch(1000))


def add(writer, count, record):
    for _ in range(count):
        writer.write(record)


def add_events(events, count):
    for step in range(count):
        events.text("text", "x" * 50_000, step)
        events.flush()


def write_records(folder):
    with TFRecordWriter(folder / "kept") as writer:
        for _ in range(100):
            writer.write(bytes(10_000))


def write_compressed_records(folder):
    data = np.random.default_rng(0).bytes(10_000)
    with TFRecordWriter(folder / "kept", "GZIP") as writer:
        for i in range(100):
            writer.write(np.random.default_rng(i).bytes(10_000) + data)


WRITERS = {
    "checkpoint": (save_checkpoint, CheckpointError, r"The checkpoint .*kept could not be written \(.*\)\. None of it is used\."),
    "saved dataset": (save_dataset, DatasetError, r"save: cannot write to '.*kept': (No space left on device|File too large)\."),
    "compressed dataset": (save_compressed, DatasetError, r"save: cannot write to '.*kept': (No space left|File too large)"),
    "cache": (fill_cache, DatasetError, r"cache: cannot write '.*kept': (No space left|File too large).* None of it is kept\."),
    "snapshot": (
        fill_snapshot,
        DatasetError,
        r"snapshot: cannot write '.*': (No space left|File too large).* None of it is kept\.",
    ),
    "records": (write_records, DatasetError, r"TFRecordWriter: cannot write '.*kept': .*\. None of it is kept\. Make room"),
    "compressed records": (write_compressed_records, DatasetError, r"TFRecordWriter: cannot write '.*kept': .*\. None of it"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_is_left_of_a_write_that_failed(small, writer):
    write, error, message = WRITERS[writer]
    with pytest.raises(error, match=message) as caught:
        write(small)
    assert isinstance(caught.value, ReplicantError)
    assert names(small) == []


def test_a_writer_that_failed_is_closed(small):
    writer = TFRecordWriter(small / "a")
    with pytest.raises(DatasetError, match="cannot write"):
        add(writer, 100, bytes(10_000))
    with pytest.raises(replicant.errors.ArgumentError, match="the writer is closed"):
        writer.write(b"1")
    writer.close()
    assert names(small) == []


def test_what_waits_in_memory_is_told_at_the_end(small):
    (small / "fills it").write_bytes(bytes(LIMIT - 4096)) if os.path.ismount(small) else None
    writer = TFRecordWriter(small / "a")
    with pytest.raises(DatasetError, match="cannot write"), writer:
        add(writer, LIMIT // 100, bytes(100))
    assert not (small / "a").exists()


def test_what_was_there_before_stays(small):
    write_whole(small / "a", b"before")
    with pytest.raises(OSError, match=r"No space left|File too large"):
        write_whole(small / "a", bytes(2 * LIMIT))
    assert (names(small), (small / "a").read_bytes()) == (["a"], b"before")


def test_a_saved_dataset_stays_when_the_next_save_fails(small):
    Dataset.range(5).save(small / "kept")
    with pytest.raises(DatasetError, match="save: cannot write"):
        save_dataset(small)
    assert [int(x) for x in Dataset.load(small / "kept")] == [0, 1, 2, 3, 4]
    assert len(names(small)) == 2  # its index and its shard


def test_an_event_file_tells_that_events_are_missing(small):
    events = _event_file.EventFile(small / "logs")
    with pytest.raises(WriteError, match=r"the event file '.*logs' cannot be written: .*\. Events are missing from here on\. Make"):
        add_events(events, 50)
    with contextlib.suppress(WriteError):
        events.close()


def test_caches_of_programs_keep_nothing(small):
    content = _kept_code.store(small / "code" / "a", "name", bytes(2 * LIMIT))
    assert len(content) > 2 * LIMIT
    assert names(small) == []


def test_pages_and_plots_are_errors_of_commands(small, capsys, tmp_path, monkeypatch):
    log = tmp_path / "run.jsonl"
    log.write_text('{"t": 1.0, "job": "a", "kind": "job", "command": ["a.py"], "workers": 1}\n')
    monkeypatch.setattr("replicant.cli._report.page_of", lambda job, curves: "x" * (2 * LIMIT))
    assert main(["report", str(log), "--html", str(small / "page.html")]) != 0
    assert "cannot be written: " in capsys.readouterr().err
    assert names(small) == []


def test_a_trial_that_cannot_be_noted_is_tried_again(tmp_path):
    with no_files():
        said = _flag_trial.objection("99.0", "--xla_cpu=1", {"REPLICANT_COMPILATION_CACHE": str(tmp_path)})
    assert "the result of a trial cannot be kept ([Errno 27] File too large)" in said
    assert names(tmp_path) == []


@contextlib.contextmanager
def no_files():
    """No file may grow at all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_new_project_is_there_whole_or_not_at_all(tmp_path):
    with no_files(), pytest.raises(CommandError, match=r"mine cannot be written \(File too large\)\. Choose another folder"):
        write_project("mine", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert write_project("mine", tmp_path).is_dir()


def test_a_job_goes_on_without_its_logs(tmp_path, capsys):
    logs, said = Logs(tmp_path, 2), []
    log = RunLog(tmp_path / "run.jsonl", said.append)
    with no_files():
        for _ in range(2):
            logs.tell_all("a worker has ended")
            log.write("ended", rank=1)
    logs.close()
    assert capsys.readouterr().err == f"replicant launch: the logs in {tmp_path} cannot be written (File too large).\n"
    assert said == [f"the run log {tmp_path / 'run.jsonl'} cannot be written (File too large). The job goes on without it."]


def test_the_figures_of_a_plan_are_kept_whole_or_not_at_all(tmp_path):
    with no_files(), pytest.raises(OSError, match="File too large"):
        _analysis_cache._write(tmp_path / "plan-a-cache", b"data")
    assert names(tmp_path) == []


def test_blocks_of_objects_are_kept_whole_or_not_at_all(tmp_path):
    cache = BlockCache(tmp_path / "blocks", 1 << 20)
    with no_files():
        cache.put("key", b"data")
    assert cache.get("key", 4) is None
    assert names(tmp_path / "blocks") == ["lock"]


def test_a_file_is_written_under_another_name_until_it_is_whole(tmp_path):
    with writing_whole(tmp_path / "a") as file:
        file.write(b"12")
        assert [name.startswith("a.") for name in names(tmp_path)] == [True]
    assert (names(tmp_path), (tmp_path / "a").read_bytes()) == (["a"], b"12")
    with pytest.raises(ZeroDivisionError), writing_whole(tmp_path / "a") as file:
        file.write(b"3" * (1 // 0))
    assert (names(tmp_path), (tmp_path / "a").read_bytes()) == (["a"], b"12")


def test_a_link_leads_to_the_new_file(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "a")
    write_whole(tmp_path / "link", "text")
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "there" / "a").read_text()) == (True, "text")


def test_a_device_is_written_to_and_not_replaced():
    write_whole(Path("/dev/null"), b"text")
    assert not Path("/dev/null").is_file()


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="It is not a regular file but a pipe, a device or a socket"):
        open_regular(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        open_regular(tmp_path)
    with pytest.raises(
        DatasetError, match=r"cannot open '.*pipe': It is not a regular file .* Pass a regular file, or read the pipe"
    ):
        list(TFRecordDataset(tmp_path / "pipe"))
