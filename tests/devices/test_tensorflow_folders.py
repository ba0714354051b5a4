"""A folder in which TensorFlow has saved, and in which a CheckpointManager saves now: what is the newest, and what is deleted."""

import hashlib
import shutil
from pathlib import Path

import pytest

import replicant
from replicant.errors import CheckpointError

FILES = Path(__file__).parents[1] / "tensorflow_files" / "objects"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model_dir with ckpt-1 of TensorFlow."""
    return Path(shutil.copytree(FILES / "ckpt_tf_keras/sequential_adam", tmp_path / "model_dir"))


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def manager_of(folder: Path, **options: object) -> replicant.CheckpointManager:
    checkpoint = replicant.Checkpoint(step=replicant.Variable(0), epoch=0)
    return replicant.CheckpointManager(checkpoint, folder, **{"max_to_keep": 2, **options})


@pytest.mark.filterwarnings("ignore:.*restored in part")
def test_own_checkpoints_follow_those_of_tensorflow_and_leave_them_alone(folder: Path) -> None:
    before = hashes(folder)
    with manager_of(folder) as manager:
        theirs = str(folder / "ckpt-1")
        assert (manager.latest_checkpoint, manager.checkpoints) == (theirs, [theirs])
        assert replicant.latest_checkpoint(folder) == theirs
        assert manager.restore_or_initialize() == theirs
        assert (int(manager.checkpoint.step), manager.checkpoint.epoch, manager.checkpoint.save_counter) == (4, 11, 1)
        manager.checkpoint.step.assign(5)
        assert [manager.save() for _ in range(3)] == [str(folder / f"ckpt-{n}") for n in (2, 3, 4)]
        assert manager.checkpoints == [theirs, str(folder / "ckpt-3"), str(folder / "ckpt-4")]
        assert manager.latest_checkpoint == replicant.latest_checkpoint(folder) == str(folder / "ckpt-4")
    assert {name: digest for name, digest in hashes(folder).items() if name in before} == before
    with manager_of(folder) as again:
        assert again.restore_or_initialize() == str(folder / "ckpt-4")
        assert int(again.checkpoint.step) == 5


def test_numbers_are_above_those_of_tensorflow_even_if_nothing_was_restored(folder: Path) -> None:
    for name in ("ckpt-7.index", "ckpt-8.data-00000-of-00001", "other-99.index"):
        (folder / name).write_bytes(b"")
    with manager_of(folder) as manager:
        assert manager.save() == str(folder / "ckpt-9")
    assert replicant.Checkpoint(x=1).save(folder / "other") == str(folder / "other-100")


def test_damaged_checkpoints_of_tensorflow_are_told_and_passed_over(folder: Path) -> None:
    (folder / "ckpt-1.index").write_bytes(b"x")
    message = r"Skipped the checkpoint .*ckpt-1 of TensorFlow: .*ckpt-1\.index is damaged"
    begun = []
    with manager_of(folder, init_fn=lambda: begun.append(True)) as manager:
        with pytest.warns(UserWarning, match=message):
            assert manager.restore_or_initialize() is None
        assert begun == [True]
    with pytest.warns(UserWarning, match=message):
        assert replicant.latest_checkpoint(folder) is None


@pytest.mark.filterwarnings("ignore:.*restored in part")
def test_the_one_before_a_damaged_one_is_restored(folder: Path) -> None:
    for ending in ("index", "data-00000-of-00001"):
        shutil.copy(folder / f"ckpt-1.{ending}", folder / f"ckpt-2.{ending}")
    data = bytearray((folder / "ckpt-2.data-00000-of-00001").read_bytes())
    data[0] ^= 1
    (folder / "ckpt-2.data-00000-of-00001").write_bytes(data)
    (folder / "checkpoint").write_text(
        'model_checkpoint_path: "ckpt-2"\nall_model_checkpoint_paths: "ckpt-1"\nall_model_checkpoint_paths: "ckpt-2"\n'
    )
    # The flipped byte is one of the number `epoch`, which TensorFlow writes first.
    with manager_of(folder) as manager:
        with pytest.warns(UserWarning, match=r"Skipped the checkpoint .*ckpt-2 of TensorFlow: .*'epoch/"):
            assert manager.restore_or_initialize() == str(folder / "ckpt-1")
        assert manager.checkpoint.epoch == 11


def test_without_the_file_that_names_the_newest_none_is_used(folder: Path) -> None:
    (folder / "checkpoint").unlink()
    message = r"has checkpoints of TensorFlow \(ckpt-1\), but no file named checkpoint .*checkpoint\.restore\('.*ckpt-1'\)"
    with manager_of(folder) as manager, pytest.warns(UserWarning, match=message):
        assert manager.restore_or_initialize() is None
    with pytest.warns(UserWarning, match=message):
        assert replicant.latest_checkpoint(folder) is None


def test_a_number_here_is_no_number_of_another_type_there(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'step/\.ATTRIBUTES/VARIABLE_VALUE' is int64, but what .* is a Python float\. Put"):
        replicant.Checkpoint(step=0.5).restore(folder / "ckpt-1")


def test_names_alone_say_nothing_about_objects() -> None:
    path = FILES.parent / "bundles" / "v1/plain/model.ckpt-3000"
    with pytest.raises(
        CheckpointError, match=r"was written by TensorFlow's Saver: .* no graph of objects that says whose they are"
    ):
        replicant.Checkpoint(step=0).restore(path)
