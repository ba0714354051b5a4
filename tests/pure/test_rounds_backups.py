"""Which backup each worker of a local SGD takes. The other workers are what they say; real ones are in processes and faults."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replicant
from replicant.errors import CheckpointError, DamagedCheckpointError
from replicant.keras.callbacks import _rounds_backups
from replicant.keras.callbacks._rounds_backups import MARK, RoundsBackups


@dataclasses.dataclass
class World:
    """Workers of which the others have said their texts already."""

    others: list[str]
    process_id: int = 0

    @property
    def num_processes(self) -> int:
        return len(self.others) + 1

    @property
    def is_chief(self) -> bool:
        return self.process_id == 0

    def exchange(self, label: str, text: str) -> list[str]:
        del label
        return [*self.others[: self.process_id], text, *self.others[self.process_id :]]

    def name_of(self, rank: int) -> str:
        return f"worker {rank}"


@dataclasses.dataclass
class Rounds:
    world: Any


def saved(folder: Path, marks: dict[int, Any]) -> None:
    for number, mark in marks.items():
        checkpoint = replicant.Checkpoint(x=replicant.Variable(np.zeros(2, np.float32)))
        extra = {"dict": []} if mark is None else {"dict": [], MARK: mark}
        checkpoint._write(folder / f"backup-{number}", number, None, extra=extra)


def of(folder: Path, *others: Any, rank: int = 0) -> RoundsBackups:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in others]
    rounds: Any = Rounds(World(texts, rank) if others else None)
    return RoundsBackups(rounds, folder / f"worker-{rank}" / "backup")


A, B, C = (2, "aa"), (4, "bb"), (10, "cc")


@pytest.mark.parametrize(
    ("mine", "others", "expected"),
    [
        ({1: A, 2: B, 3: C}, [[[*B, "/1/b"], [*A, "/1/a"]]], ["2", "1", "3"]),  # C last, which the other does not have
        ({1: A, 2: B}, [[[*C, "/1/c"], [*B, "/1/b"]]], ["2", "/1/c", "1"]),
        ({}, [[[*B, "/1/b"]], [[*B, "/2/b"]]], ["/1/b"]),
        ({1: A}, [[]], ["1"]),
        ({}, [[]], []),
        ({1: (4, "other weights")}, [[[*B, "/1/b"]]], ["1", "/1/b"]),  # the same round of another training
        ({1: A, 2: A}, [[[*A, "/1/a"]]], ["2"]),  # the newer one, in the same round
        ({1: A, 2: B}, [], ["2", "1"]),
    ],
)
def test_the_order_of_the_candidates(tmp_path, mine, others, expected):
    saved(tmp_path / "worker-0", mine)
    found = of(tmp_path, *others).candidates()
    own = str(tmp_path / "worker-0" / "backup-")
    assert [path.removeprefix(own) for path in found] == expected


def test_all_workers_get_as_many_in_the_same_order(tmp_path):
    first, second = [[*B, "/0/b"], [*A, "/0/a"]], [[*C, "/1/c"], [*A, "/1/a"]]
    for rank, mine, others, expected in [(0, {1: A, 2: B}, [second], "1 /1/c 2"), (1, {1: A, 2: C}, [first], "1 2 /0/b")]:
        saved(tmp_path / f"worker-{rank}", mine)
        own = str(tmp_path / f"worker-{rank}" / "backup-")
        found = of(tmp_path, *others, rank=rank).candidates()
        assert [path.removeprefix(own) for path in found] == expected.split()


def test_backups_without_a_round_are_told_apart_by_their_numbers(tmp_path):
    saved(tmp_path / "worker-0", {7: None, 8: [3], 9: ["x", 2]})
    names = [Path(path).name for path in of(tmp_path, [[-1, "8", "/1/backup-8"]]).candidates()]
    assert names == ["backup-8", "backup-9", "backup-7"]


def test_a_damaged_manifest_is_skipped_with_a_warning(tmp_path):
    saved(tmp_path / "worker-0", {1: A, 2: B})
    (tmp_path / "worker-0" / "backup-2" / "manifest.json").write_text("{")
    with pytest.warns(UserWarning, match=r"Skipped the checkpoint .*backup-2"):
        assert [Path(path).name for path in of(tmp_path, [[*A, "/1/a"]]).candidates()] == ["backup-1"]


def test_what_stays(tmp_path):
    saved(tmp_path / "worker-0", {number: [number, "x"] for number in range(1, 9)})
    backups = of(tmp_path, [])
    found = [(number, tmp_path / "worker-0" / f"backup-{number}") for number in range(1, 9)]
    assert [path.name for path in backups.old(found)] == [f"backup-{i}" for i in range(1, 6)]
    for number in (1, 2, 4):  # of these, the last two
        backups.note_common(number)
    assert [path.name for path in backups.old(found)] == ["backup-1", "backup-3", "backup-5"]
    backups.restored(found[3][1])
    assert sorted(path.name for path in (tmp_path / "worker-0").iterdir()) == [f"backup-{i}" for i in range(1, 5)]


def test_all_own_backups_go_where_that_of_another_worker_was_restored(tmp_path):
    saved(tmp_path / "worker-0", {1: A, 2: B})
    of(tmp_path, []).restored(tmp_path / "worker-1" / "backup-1")
    assert list((tmp_path / "worker-0").iterdir()) == []


def test_the_chief_deletes_what_lost_workers_have_left(tmp_path):
    for name in ("worker-0", "worker-1", "worker-2", "worker-12", "worker-x", "worker-02"):
        saved(tmp_path / name, {1: A})
    of(tmp_path, [], rank=1).delete_others()
    assert all((tmp_path / name / "backup-1").exists() for name in ("worker-2", "worker-12"))
    of(tmp_path, []).delete_others()
    left = sorted(path.parent.name for path in tmp_path.rglob("backup-1"))
    assert left == ["worker-0", "worker-02", "worker-1", "worker-x"]


def test_whether_all_could_read(tmp_path):
    path, damaged = tmp_path / "backup-3", DamagedCheckpointError("a bit is wrong")
    assert of(tmp_path, None).agree(path, None)
    assert of(tmp_path).agree(path, None)
    assert not of(tmp_path, None).agree(path, damaged)
    assert not of(tmp_path).agree(path, damaged)
    assert not of(tmp_path, [True, "a bit is wrong"]).agree(path, None)


def test_a_worker_that_cannot_read_the_backup_of_another_one_is_named(tmp_path):
    message = (
        "1 of 2 workers cannot read the backup of the round that all should go on from, which on this worker is "
        f"{tmp_path}/backup-3. worker 1: there is no /else/backup-1. A worker that has no backup of its own needs a backup_dir "
        "that it shares with the others. To begin anew, delete the backups."
    )
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        of(tmp_path, [False, "there is no /else/backup-1."]).agree(tmp_path / "backup-3", None)


@pytest.mark.parametrize("others", [[], [[False, "it does not fit either"]]])
def test_what_no_worker_can_read_is_its_own_error(tmp_path, others):
    own = CheckpointError("it does not fit")
    with pytest.raises(CheckpointError) as caught:
        of(tmp_path, *others).agree(tmp_path / "backup-3", own)
    assert caught.value is own


def answered(self: World, label: str, text: str) -> list[str]:
    """The other worker has no backups, and can read all."""
    del self
    return [text, "[]" if label == "backups" else "null"]


def test_the_first_that_all_can_read(tmp_path, monkeypatch):
    saved(tmp_path / "worker-0", {1: A, 2: B})

    def read(path):
        if path.name == "backup-2":
            raise DamagedCheckpointError("a bit is wrong")
        return "what was saved"

    monkeypatch.setattr(World, "exchange", answered)
    with pytest.warns(UserWarning, match=r"Skipped the checkpoint .*backup-2: a bit is wrong"):
        path, found = _rounds_backups.read_first(of(tmp_path, []), read)
    assert (path, found) == (tmp_path / "worker-0" / "backup-1", "what was saved")
    assert _rounds_backups.read_first(of(tmp_path / "empty", []), read) == (None, None)


def test_none_that_all_can_read(tmp_path, monkeypatch):
    saved(tmp_path / "worker-0", {1: A, 2: B})

    def read(path):
        raise DamagedCheckpointError("a bit is wrong")

    with pytest.warns(UserWarning, match="Skipped"):  # alone, nothing was assigned
        assert _rounds_backups.read_first(of(tmp_path), read) == (None, None)
    monkeypatch.setattr(World, "exchange", answered)
    message = (
        f"None of the 2 backups in {tmp_path}/worker-0 is whole on all 2 workers. To begin anew, delete the backups of all workers."
    )
    with pytest.warns(UserWarning, match="Skipped"), pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        _rounds_backups.read_first(of(tmp_path, []), read)
