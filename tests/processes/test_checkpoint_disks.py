"""Directories that cannot be written, and disks that are full: an error that says so, and nothing lost of what was there before."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

# One process for all cases: it says which error each one raised, and what lay there then.
PROGRAM = """
import json, os, sys, tempfile
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy as np, replicant
folder, kind = sys.argv[1:]
found = {}

def case(name):
    def run(do):
        try:
            outcome = do()
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        found[name] = [outcome, sorted(os.listdir(folder))]
    return run

model = keras.Sequential([keras.Input((300,)), keras.layers.Dense(300)])
model.compile("sgd", "mse")
rows = np.ones((4, 300), "float32")
model.fit(rows, rows, 2, verbose=0)
big = np.ones(50_000)
checkpoint, later = replicant.Checkpoint(x=big), replicant.CheckpointOptions(enable_async=True)
checkpoint.save(folder + "/ckpt")
# What loads modules does so before the program becomes another user, who may not read them.
with tempfile.TemporaryDirectory() as elsewhere:
    for _ in range(2):
        callbacks = [replicant.keras.callbacks.BackupAndRestore(elsewhere + "/backup", 1, delete_checkpoint=False)]
        model.fit(rows, rows, 2, verbose=0, epochs=3, callbacks=callbacks)
    with replicant.CheckpointManager(replicant.Checkpoint(x=big), elsewhere, 2) as manager:
        manager.save()
        manager.restore_or_initialize()

if kind == "read only":
    os.chmod(folder, 0o555)
    if os.geteuid() == 0:  # who is root may write everywhere
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
if kind == "limited":
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

@case("save")
def _():
    checkpoint.save(folder + "/ckpt")

@case("background")
def _():
    checkpoint.save(folder + "/ckpt", later)
    try:
        checkpoint.sync()
    finally:
        checkpoint.sync()  # it is raised once

@case("manager")
def _():
    with replicant.CheckpointManager(checkpoint, folder, 1) as manager:
        manager.save()

@case("backup")
def _():
    model.fit(rows, rows, 2, verbose=0, epochs=3, callbacks=[replicant.keras.callbacks.BackupAndRestore(folder + "/backup", 1)])

@case("restore")
def _():
    again = replicant.Checkpoint(x=np.zeros(50_000))
    with replicant.CheckpointManager(again, folder, 2) as manager:
        path = manager.restore_or_initialize()
    return [path == replicant.latest_checkpoint(folder) == folder + "/ckpt-1", float(again.x.sum())]

print(json.dumps(found))
"""


def outcomes(place: Path, kind: str) -> dict[str, Any]:
    """What the program said."""
    command = [sys.executable, "-c", PROGRAM, str(place), kind]
    if kind == "full":  # a file system of its own, which only this process sees
        mount = shlex.join(["mount", "-t", "tmpfs", "-o", "size=700k", "none", str(place)])
        command = ["unshare", "-rm", "sh", "-c", f"{mount} && exec {shlex.join(command)}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    mount = f"mount -t tmpfs -o size=700k none {shlex.quote(str(folder))}"
    return subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.long
def test_a_directory_that_is_read_only(tmp_path: Path) -> None:
    everybodys = Path(tempfile.gettempdir())
    for path in (p for p in (tmp_path, *tmp_path.parents) if everybodys in p.parents):
        path.chmod(path.stat().st_mode | 0o055)  # the program may become another user
    place = tmp_path / "place"
    place.mkdir()
    try:
        found = outcomes(place, "read only")
    finally:
        place.chmod(0o755)
    unwritten = f"CheckpointError: The checkpoint {place}/ckpt-2 could not be written ([Errno 13] Permission denied: "
    unlocked = "CheckpointError: Nothing can be saved in {} ([Errno 13] Permission denied: "
    for case, begin in {
        "save": unwritten,
        "background": unwritten,
        "manager": unlocked.format(place),
        "backup": unlocked.format(place / "backup"),
    }.items():
        assert found[case][0].startswith(begin)
        assert found[case][1] == ["ckpt-1"]
    assert found["manager"][0].endswith(". Choose a directory that this program may write to.")
    assert found["restore"] == [[True, 50_000.0], ["ckpt-1"]]  # reading needs no rights to write


@pytest.mark.long
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    kind, reason = ("full", "No space left on device") if can_mount(tmp_path) else ("limited", "File too large")
    found = outcomes(tmp_path, kind)
    for case in ("save", "background", "manager"):
        message = (
            rf"CheckpointError: The checkpoint .*/ckpt-\d could not be written \(\[Errno .*{reason}.*\)\. None of it is used\."
        )
        assert re.fullmatch(message, found[case][0])
        assert found[case][1] == ["ckpt-1"]  # and the manager has not deleted it to make room
    assert f"{tmp_path}/backup/backup-1 could not be written ([Errno " in found["backup"][0]
    assert found["backup"][1] == ["ckpt-1"]
    assert found["restore"] == [[True, 50_000.0], ["ckpt-1"]]
