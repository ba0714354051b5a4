"""File systems that cannot wait until a name is on the disk, and those that fail while they do."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from replicant.checkpoint.format import _storage
from replicant.errors import CheckpointError

FailAt = Callable[[int, Callable[[int], bool]], None]


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch) -> FailAt:
    """fail_at(number, which): from now on fsync of a folder fails with the error `number` where which(folders before) holds."""

    def install(number: int, which: Callable[[int], bool]) -> None:
        flush, seen = os.fsync, []

        def fsync(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                seen.append(descriptor)
                if which(len(seen) - 1):
                    raise OSError(number, os.strerror(number))
            flush(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

    return install


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS], ids=errno.errorcode.get)
def test_a_file_system_that_flushes_no_folders_can_be_saved_to(fail_at: FailAt, tmp_path: Path, number: int) -> None:
    fail_at(number, lambda _: True)
    _storage.write(tmp_path / "ckpt", {"step": 3}, {"x": np.arange(3)})
    meta, arrays = _storage.read(tmp_path / "ckpt")
    assert (meta, arrays["x"].tolist()) == ({"step": 3}, [0, 1, 2])


def test_an_error_before_the_checkpoint_appears_leaves_nothing(fail_at: FailAt, tmp_path: Path) -> None:
    fail_at(errno.EIO, lambda before: before == 0)
    with pytest.raises(CheckpointError, match=r"ckpt could not be written \(.*Input/output error\)\. None of it is used\.$"):
        _storage.write(tmp_path / "ckpt", {}, {})
    assert list(tmp_path.iterdir()) == []


def test_an_error_after_the_checkpoint_has_appeared_says_that_it_is_there(fail_at: FailAt, tmp_path: Path) -> None:
    fail_at(errno.EIO, lambda before: before == 1)
    with pytest.raises(CheckpointError) as raised:
        _storage.write(tmp_path / "ckpt", {"step": 3}, {})
    assert str(raised.value) == (
        f"{tmp_path}/ckpt is written and complete, but the file system did not confirm that its name is on the disk ([Errno 5] "
        "Input/output error), so it could be missing after a failure of this computer."
    )
    assert _storage.read(tmp_path / "ckpt") == ({"step": 3}, {})
