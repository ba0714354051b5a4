"""Workers that write the slices of one checkpoint together: who cannot write or read is named by all, and nothing is left."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages

import _group

SUM = float(sum(range(20_000)) + 20_000)
TOO_LARGE = r"CheckpointError: The checkpoint .*ckpt-\d could not be written \(\[Errno 27\] File too large\)\. None of it is used\."
TAKEN = r"CheckpointError: .*ckpt-\d already exists, and a checkpoint is never overwritten\..*"
NOT_SEEN = (
    r"CheckpointError: worker 1 \(.*\) does not see the folder run/\.ckpt-\d\..*\.partial, which worker 0 \(.*\) has made for the "
    r"checkpoint\. All workers must save to a folder that they share, such as one on a network file system\."
)
OF_OTHERS = r"CheckpointError: Not all workers could write the checkpoint .*ckpt-\d\. worker {} \(.*\): "
DAMAGED = (
    r"DamagedCheckpointError: 1 of 2 workers cannot read the checkpoint .*ckpt-\d\. worker 1 \(.*\): .*slices-1\.bin is damaged: "
    r"'kernel' \(bytes 0 to 40000\) has the checksum \d+, but should have \d+\."
)
UNREADABLE = (
    r"CheckpointError: 1 of 2 workers cannot read the checkpoint run/shared/ckpt-\d\. worker 1 \(.*\): There is no readable "
    r"checkpoint at run/shared/ckpt-\d: .* The others can read it: the workers must share the folder\."
)
CUT = (
    r"CheckpointError: 1 of 2 workers cannot read the checkpoint .*ckpt-\d\. worker 1 \(.*\): .*slices-1\.bin is damaged: it ends "
    r"in the middle of 'kernel', 40000 bytes too early\. On other workers, values may have changed\. Restore again, from this "
    r"checkpoint or another one, before you go on\."
)
EXPECTED = {  # what the two workers say
    "full": (OF_OTHERS.format(1) + TOO_LARGE, TOO_LARGE),
    "taken": (TAKEN, OF_OTHERS.format(0) + TAKEN),
    "damaged": (DAMAGED, DAMAGED),
    "cut": (CUT, CUT),
    "own disk": (OF_OTHERS.format(1) + NOT_SEEN, NOT_SEEN),
    "restored from own disk": (UNREADABLE, UNREADABLE),
}


@pytest.mark.slow
def test_all_workers_say_which_one_could_not_write_or_read(tmp_path: Path) -> None:
    group = _group.Group(Path(__file__).parent / "_worker_checkpoint_folder.py", 2, tmp_path, environ={"FOLDER": str(tmp_path)})
    for rank, found in enumerate(group.ended_well(300)):
        for case, messages in EXPECTED.items():
            assert re.fullmatch(messages[rank], found[case], re.DOTALL), found[case]
        assert found["full in the background"] == found["full"]
        assert found["left"] == []
        assert Path(found["saved"]).name == "ckpt-2"
        assert found["restored"] == SUM
        assert found["restored again"] == SUM
        assert found["passed over"] == found["saved"]
        assert re.sub("-[0-9a-f]{8}[.]", ".", found["own disk in the background"]) == re.sub(
            "-[0-9a-f]{8}[.]", ".", found["own disk"]
        )
    assert sorted(path.name for path in (tmp_path / "disk-0" / "run").iterdir()) == ["shared"]
