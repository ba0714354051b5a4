"""A directory of checkpoints: what stays, what is restored, and who may write there."""

import dataclasses
import os
import re
import threading
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import replicant
from replicant.checkpoint.folders._lock_owner import Owner
from replicant.checkpoint.format import _storage
from replicant.errors import ArgumentError, CheckpointError

ASYNC = replicant.CheckpointOptions(enable_async=True)


def manager_of(folder: Path, max_to_keep: int | None = 3, **options: Any) -> replicant.CheckpointManager:
    state = {"step": 0, "weights": np.zeros(100)}
    return replicant.CheckpointManager(replicant.Checkpoint(state=state), folder, max_to_keep, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".replicant.lock")


def test_arguments_have_the_names_of_tensorflow(tmp_path: Path) -> None:
    state = {"step": 1}
    checkpoint = replicant.Checkpoint(state=state)
    saved = checkpoint.save(file_prefix=tmp_path / "ckpt", options=None)
    assert replicant.latest_checkpoint(checkpoint_dir=tmp_path) == saved
    written = checkpoint.write(file_prefix=tmp_path / "other")
    for restored in (checkpoint.restore, checkpoint.read):
        for path in (saved, written):
            state["step"] = 2
            restored(save_path=path).assert_consumed()
            assert state == {"step": 1}


@pytest.mark.parametrize("options", [None, ASYNC], ids=["", "async"])
def test_the_newest_stay(tmp_path: Path, options: Any) -> None:
    with manager_of(tmp_path / "run") as manager:
        paths = [manager.save(options=options) for _ in range(5)]
        assert paths == [f"{tmp_path}/run/ckpt-{i}" for i in range(1, 6)]
        assert manager.checkpoints == paths[2:]
        assert manager.latest_checkpoint == paths[-1]
        assert names(tmp_path / "run") == ["ckpt-3", "ckpt-4", "ckpt-5"]
    assert list((tmp_path / "run").glob(".*")) == []


def test_a_new_program_takes_over(tmp_path: Path) -> None:
    with manager_of(tmp_path) as manager:
        for _ in range(4):
            manager.save()
    with manager_of(tmp_path) as again:
        assert [Path(path).name for path in again.checkpoints] == ["ckpt-2", "ckpt-3", "ckpt-4"]
        again.save()
        assert names(tmp_path) == ["ckpt-3", "ckpt-4", "ckpt-5"]


def test_the_best_stays(tmp_path: Path) -> None:
    with manager_of(tmp_path, 2, best_metric="loss") as manager:
        for loss in (0.3, 0.1, 0.2, 0.5, 0.4):
            manager.save(metrics={"loss": loss, "other": 0.0})
        assert names(tmp_path) == ["ckpt-2", "ckpt-4", "ckpt-5"]
        assert manager.best_checkpoint == f"{tmp_path}/ckpt-2"
        message = r"keeps the checkpoint with the best 'loss', so save needs this metric: .*Received metrics: accuracy\."
        with pytest.raises(ArgumentError, match=message):
            manager.save(metrics={"accuracy": 1.0})
        with pytest.raises(ArgumentError, match=r"Received metrics: none\."):
            manager.save()
    with manager_of(tmp_path, 2, best_metric="loss") as again:
        assert again.best_checkpoint == f"{tmp_path}/ckpt-2"
    with pytest.warns(UserWarning, match=r"were saved with 'loss' \(min\) as best_metric, but this manager judges by no metric\."):
        without = manager_of(tmp_path, 2)
    with without:
        assert without.best_checkpoint is None
        for _ in range(3):
            without.save()
        assert names(tmp_path) == ["ckpt-2", "ckpt-7", "ckpt-8"]


@pytest.mark.parametrize(
    ("metric", "mode", "values", "best"),
    [
        ("accuracy", "auto", (0.5, 0.9, 0.7), 2),
        ("val_loss", "auto", (0.5, 0.1, 0.7), 2),
        ("score", "max", (0.5, 0.9, 0.7), 2),
        ("accuracy", "min", (0.5, 0.1, 0.7), 2),
        ("accuracy", "auto", (0.9, float("nan"), float("nan")), 1),
        ("loss", "auto", (0.9, float("-inf"), 1.0), 1),
        ("accuracy", "auto", (0.9, 0.9, 0.7), 2),
    ],
)
def test_the_best_one_is_never_deleted(tmp_path: Path, metric: str, mode: Any, values: Any, best: int) -> None:
    with manager_of(tmp_path, 1, best_metric=metric, best_mode=mode) as manager:
        for value in values:
            manager.save(metrics={metric: value})
        assert manager.best_checkpoint == f"{tmp_path}/ckpt-{best}"
        assert names(tmp_path) == [f"ckpt-{best}", "ckpt-3"]


@pytest.mark.parametrize(("metric", "mode"), [("loss", "auto"), ("accuracy", "min"), ("score", "max")])
def test_another_judge_does_not_delete_the_best_of_the_one_before(tmp_path: Path, metric: str, mode: Any) -> None:
    with manager_of(tmp_path, 1, best_metric="accuracy") as manager:
        for value in (0.9, 0.5):
            manager.save(metrics={"accuracy": value})
    with pytest.warns(UserWarning, match=r"were saved with 'accuracy' \(max\) as best_metric, but this manager judges by '"):
        again = manager_of(tmp_path, 1, best_metric=metric, best_mode=mode)
    with again:
        for value in (0.3, 0.2, 0.25):
            again.save(metrics={metric: value})
        assert "ckpt-1" in names(tmp_path)
        assert Path(str(again.best_checkpoint)).name == {"loss": "ckpt-4", "accuracy": "ckpt-4", "score": "ckpt-3"}[metric]


def test_the_best_one_is_known_also_when_it_stays_for_ever(tmp_path: Path) -> None:
    with manager_of(tmp_path, 1, best_metric="accuracy", keep_checkpoint_every_n_hours=0) as manager:
        for accuracy in (0.9, 0.5, 0.7):
            manager.save(metrics={"accuracy": accuracy})
        assert manager.best_checkpoint == f"{tmp_path}/ckpt-1"
    with manager_of(tmp_path, 1, best_metric="accuracy", keep_checkpoint_every_n_hours=100) as again:
        assert again.best_checkpoint == f"{tmp_path}/ckpt-1"


def test_a_metric_is_a_number(tmp_path: Path) -> None:
    with (
        manager_of(tmp_path, 1, best_metric="accuracy") as manager,
        pytest.raises(ArgumentError, match=r"save: the metric 'accuracy' must be a number\. Received: 'high'\."),
    ):
        manager.save(metrics={"accuracy": "high"})  # type: ignore[dict-item]


def test_a_preempted_program_saves_without_a_metric_and_keeps_the_best(tmp_path: Path) -> None:
    with manager_of(tmp_path, 1, best_metric="accuracy") as manager:
        left: list[bool] = []
        config = replicant.TerminationConfig(exit_fn=lambda: left.append(True))
        with replicant.PreemptionCheckpointHandler(manager, termination_config=config) as handler:
            for accuracy in (0.9, 0.5):
                manager.save(metrics={"accuracy": accuracy})
            handler._termination.ask("the test")
            handler.run(lambda: None)
        assert left == [True]
        assert names(tmp_path) == ["ckpt-1", "ckpt-3"]


def test_one_per_period_stays_for_ever(tmp_path: Path) -> None:
    with manager_of(tmp_path, 1, keep_checkpoint_every_n_hours=0) as manager:
        for _ in range(3):
            manager.save()
        assert names(tmp_path) == ["ckpt-1", "ckpt-2", "ckpt-3"]
        assert manager.checkpoints == [f"{tmp_path}/ckpt-3"]
    with manager_of(tmp_path, 1, keep_checkpoint_every_n_hours=100) as again:
        again.save()
        again.save()
        assert names(tmp_path) == ["ckpt-1", "ckpt-2", "ckpt-5"]


def test_steps_between_saves(tmp_path: Path) -> None:
    step = replicant.Variable(0)
    with manager_of(tmp_path, step_counter=step, checkpoint_interval=10) as manager:
        saved = []
        for now in (0, 5, 9, 10, 19, 20):
            step.assign(now)
            saved.append(manager.save() is not None)
        assert saved == [True, False, False, True, False, True]
        assert manager.save(check_interval=False) == f"{tmp_path}/ckpt-4"
        assert manager.checkpoint_interval == 10


def test_numbers_may_be_given(tmp_path: Path) -> None:
    with manager_of(tmp_path, checkpoint_name="model") as manager:
        assert manager.save(checkpoint_number=np.int64(500)) == f"{tmp_path}/model-500"
        assert manager.save() == f"{tmp_path}/model-501"
        assert manager.directory == str(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_to_keep": 0}, r"max_to_keep must be at least 1, or None to keep all checkpoints\. Received: 0"),
        ({"checkpoint_interval": 5}, r"checkpoint_interval=5 counts steps: pass the variable that counts them as step_counter"),
        ({"best_metric": "loss", "best_mode": "low"}, r"best_mode must be 'auto', 'min' or 'max'\. Received: 'low'"),
        ({"best_mode": "max"}, r"best_mode='max' says how best_metric is compared: pass best_metric too\."),
        ({"best_metric": "score"}, r"best_metric='score': the name does not say whether more or less is better\."),
    ],
)
def test_options_that_cannot_work(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        manager_of(tmp_path, **options)


# Restoring


def damage(path: str) -> None:
    data = bytearray(Path(path, "arrays.bin").read_bytes())
    data[len(data) // 2] ^= 1
    Path(path, "arrays.bin").write_bytes(data)


def test_the_newest_whole_one_is_restored(tmp_path: Path) -> None:
    with manager_of(tmp_path) as manager:
        for step in (1, 2, 3):
            manager.checkpoint.state["step"] = step
            manager.save()
        manager.checkpoint.state["step"] = 99
        damage(f"{tmp_path}/ckpt-3")
        Path(f"{tmp_path}/ckpt-2/manifest.json").unlink()
        with pytest.warns(UserWarning, match="Skipped the checkpoint") as caught:
            assert manager.restore_or_initialize() == f"{tmp_path}/ckpt-1"
        assert [f"ckpt-{number}" in str(warning.message) for number, warning in zip((3, 2), caught, strict=True)] == [True, True]
        assert manager.checkpoint.state["step"] == 1
        with pytest.warns(UserWarning, match="Skipped") as caught:
            assert replicant.latest_checkpoint(tmp_path) == f"{tmp_path}/ckpt-1"
        assert re.search(r"ckpt-3: .*arrays\.bin is damaged: 'state/weights'", str(caught[0].message))
        assert re.search(r"ckpt-2: There is no readable checkpoint", str(caught[1].message))


def test_where_there_is_nothing_the_program_begins(tmp_path: Path) -> None:
    called: list[int] = []
    assert manager_of(tmp_path / "none", init_fn=lambda: called.append(1)).restore_or_initialize() is None
    assert called == [1]
    assert manager_of(tmp_path / "none").restore_or_initialize() is None
    assert not (tmp_path / "none").exists()


def test_another_models_checkpoint_is_an_error_and_no_reason_to_go_back(tmp_path: Path) -> None:
    with manager_of(tmp_path) as manager:
        manager.save()
    other = replicant.CheckpointManager(replicant.Checkpoint(state={"weights": np.zeros(3), "bias": 0}), tmp_path, 3)
    message = r"weights: stored float64\[100\], found float64\[3\]\n  Missing .*:\n    state/bias\n  In the .*:\n    state/step"
    with pytest.raises(CheckpointError, match=message):
        other.restore_or_initialize()


def test_the_interval_goes_on_after_a_restore(tmp_path: Path) -> None:
    step = replicant.Variable(0)

    def manager() -> replicant.CheckpointManager:
        return replicant.CheckpointManager(replicant.Checkpoint(step=step), tmp_path, 3, step_counter=step, checkpoint_interval=10)

    step.assign(7)
    with manager() as first:
        first.save()
    step.assign(0)
    with manager() as second:
        second.restore_or_initialize()
        assert int(step) == 7
        step.assign(16)
        assert second.save() is None
        step.assign(17)
        assert second.save() is not None


# Writing in the background


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writes wait for this event."""
    go_on = threading.Event()
    write = _storage.write

    def waiting(*args: Any) -> None:
        assert go_on.wait(20)
        write(*args)

    monkeypatch.setattr(_storage, "write", waiting)
    return go_on


def test_what_is_saved_is_what_was_there_when_save_was_called(tmp_path: Path, slow_disk: threading.Event) -> None:
    variable, state = replicant.Variable(jnp.ones(1000)), {"array": np.ones(1000), "number": 1, "list": [1]}
    checkpoint = replicant.Checkpoint(v=variable, state=state)
    path = checkpoint.save(tmp_path / "ckpt", ASYNC)
    step = replicant.function(lambda: variable.assign_add(jnp.ones(1000)))
    for _ in range(3):
        step()
    state["array"] += 1
    state["number"], state["list"][0] = 2, 2
    assert not Path(path).exists()
    slow_disk.set()
    checkpoint.sync()
    checkpoint.restore(path).assert_consumed()
    assert np.unique(np.asarray(variable)).tolist() == np.unique(state["array"]).tolist() == [1]
    assert (state["number"], state["list"]) == (1, [1])


@pytest.mark.parametrize("what", ["save", "write", "restore", "read", "sync"])
def test_an_error_in_the_background_is_raised_by_the_next_call(tmp_path: Path, what: str) -> None:
    checkpoint = replicant.Checkpoint(x=np.ones(3))
    good = checkpoint.save(tmp_path / "good")
    (tmp_path / "file").write_text("mine")
    checkpoint.write(tmp_path / "file" / "ckpt", ASYNC)
    calls = {
        "save": lambda: checkpoint.save(tmp_path / "next"),
        "write": lambda: checkpoint.write(tmp_path / "next"),
        "restore": lambda: checkpoint.restore(good),
        "read": lambda: checkpoint.read(good),
        "sync": checkpoint.sync,
    }
    with pytest.raises(CheckpointError, match=r"file/ckpt could not be written"):
        calls[what]()
    assert names(tmp_path) == ["file", "good-1"]
    calls[what]()  # told once


def test_one_write_at_a_time(tmp_path: Path, slow_disk: threading.Event) -> None:
    checkpoint = replicant.Checkpoint(x=np.ones(3))
    checkpoint.save(tmp_path / "ckpt", ASYNC)
    second = threading.Thread(target=lambda: checkpoint.save(tmp_path / "ckpt", ASYNC))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    slow_disk.set()
    second.join(20)
    checkpoint.sync()
    assert names(tmp_path) == ["ckpt-1", "ckpt-2"]


def test_nothing_is_deleted_before_the_new_one_is_whole(tmp_path: Path, slow_disk: threading.Event) -> None:
    with manager_of(tmp_path, 1) as manager:
        slow_disk.set()
        manager.save()
        slow_disk.clear()
        manager.save(options=ASYNC)
        assert names(tmp_path) == ["ckpt-1"]
        slow_disk.set()
        manager.sync()
        assert names(tmp_path) == ["ckpt-2"]


# The lock


def test_two_managers_of_one_program_are_its_own_business(tmp_path: Path) -> None:
    first, second = manager_of(tmp_path, checkpoint_name="a"), manager_of(tmp_path, checkpoint_name="b")
    first.save()
    second.save()
    first.close()
    first.close()
    assert (tmp_path / ".replicant.lock").exists()
    second.close()
    assert names(tmp_path) == ["a-1", "b-1"]
    assert not (tmp_path / ".replicant.lock").exists()


def test_a_dropped_manager_leaves_the_lock(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    manager.save()
    del manager
    assert not (tmp_path / ".replicant.lock").exists()


def planted_link(lock: Path, target: Path) -> None:
    lock.symlink_to(target)


def planted_name(lock: Path, target: Path) -> None:
    lock.hardlink_to(target)


@pytest.mark.parametrize(
    ("plant", "what"), [(planted_link, "a symbolic link"), (planted_name, "a file that also has another name")]
)
def test_a_planted_lock_does_not_lead_to_another_file(tmp_path: Path, plant: Any, what: str) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    (tmp_path / "run").mkdir()
    plant(tmp_path / "run" / ".replicant.lock", victim)
    with manager_of(tmp_path / "run") as manager:
        with pytest.raises(
            CheckpointError, match=rf"\.replicant\.lock is {what}.*, so Replicant did not make it, and writing to it"
        ):
            manager.save()
        assert names(tmp_path / "run") == []
    assert victim.read_text() == "precious"


def test_a_planted_lock_that_leads_nowhere_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".replicant.lock").symlink_to(tmp_path / "made")
    with manager_of(tmp_path / "run") as manager, pytest.raises(CheckpointError, match="is a symbolic link"):
        manager.save()
    assert not (tmp_path / "made").exists()


def test_a_pipe_in_the_place_of_the_lock_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".replicant.lock")
    with manager_of(tmp_path) as manager, pytest.raises(CheckpointError, match="is not a regular file, so Replicant"):
        manager.save()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_lock_file_of_another_user_is_not_overwritten(tmp_path: Path) -> None:
    lock = tmp_path / ".replicant.lock"
    lock.write_text("theirs")
    os.chown(lock, 12345, -1)
    with (
        manager_of(tmp_path) as manager,
        pytest.raises(CheckpointError, match="is a file of user 12345, who is neither you nor the"),
    ):
        manager.save()
    assert lock.read_text() == "theirs"


def test_a_directory_behind_a_link_is_locked_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with manager_of(tmp_path / "link") as manager:
        manager.save()
        assert (tmp_path / "run" / ".replicant.lock").exists()
    assert names(tmp_path / "run") == ["ckpt-1"]
    assert not (tmp_path / "run" / ".replicant.lock").exists()


def test_what_dead_writers_left_is_removed_and_what_is_written_now_is_not(tmp_path: Path) -> None:
    me = Owner.current()
    dead = [f".ckpt-1.{me.machine}-{me.pid}-{me.started + 1}-0123abcd.partial", f".ckpt-2.{me.machine}-4194999-0-0123abcd.partial"]
    alive = [
        f".ckpt-3.{me.machine}-{me.pid}-{me.started}-0123abcd.partial",
        ".ckpt-4.00000000-1-0-0123abcd.partial",
        ".mine.partial",
    ]
    old = ".ckpt-5.00000000-1-0-0123abcd.partial"
    for name in (*dead, *alive, old):
        (tmp_path / name).mkdir()
        (tmp_path / name / "arrays.bin").write_bytes(b"half")
    os.utime(tmp_path / old, (0, 0))
    replicant.Checkpoint(x=1).save(tmp_path / "ckpt")
    assert names(tmp_path) == sorted([*alive, "ckpt-1"])


def test_nobody_can_tell_about_processes_of_another_container() -> None:
    me = Owner.current()
    gone = dataclasses.replace(me, pid=4194999)
    assert gone.is_here
    assert gone.is_gone
    elsewhere = dataclasses.replace(gone, boot=me.boot.rpartition(" ")[0] + " pid:[7]")  # the same computer, other numbers
    assert elsewhere.machine != me.machine
    assert not elsewhere.is_here
    assert not elsewhere.is_gone


def test_wherever_a_byte_flips_or_a_file_ends_the_one_before_is_used(tmp_path: Path) -> None:
    """200 places of both files: always found, never a wrong value."""
    rng = np.random.default_rng(0)
    state = {f"layer {i}": {"kernel": rng.normal(size=(17, 5)).astype(np.float32), "step": i} for i in range(8)}
    with replicant.CheckpointManager(replicant.Checkpoint(state=state), tmp_path, 2) as manager:
        first = manager.save()
        expected = {key: (layer["kernel"].tobytes(), layer["step"]) for key, layer in state.items()}
        for layer in state.values():
            layer["kernel"] += 1
            layer["step"] += 100
        newest = Path(str(manager.save()))
        for number in range(200):
            file = newest / ("manifest.json", "arrays.bin")[number % 2]
            whole = file.read_bytes()
            position = int(rng.integers(len(whole)))
            damaged = bytearray(whole)
            damaged[position] ^= 1 << int(rng.integers(8))
            file.write_bytes(damaged if number % 4 < 2 else whole[:position])
            with pytest.warns(UserWarning, match=r"Skipped the checkpoint .*ckpt-2: "):
                assert manager.restore_or_initialize() == first
            assert {key: (layer["kernel"].tobytes(), layer["step"]) for key, layer in state.items()} == expected
            file.write_bytes(whole)
        assert manager.restore_or_initialize() == str(newest)
