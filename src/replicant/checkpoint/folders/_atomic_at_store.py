"""A checkpoint that appears in one step on an object store, where nothing can be renamed.

Its files lie in a folder of their own below it, whose name says who writes, and which no other writer ever uses. The manifest names
that folder, and is written last, and only if there is none. So a checkpoint counts once it has a manifest, and of two writers one
has written it. Folders that no manifest names are left by writers that have died, and the next save removes them.
"""

import contextlib
import json
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import CheckpointError
from ...storage._path import RemotePath
from ...storage._retry import RemoteError
from ...storage._write import is_missing
from ._lock_owner import Owner, is_running, is_this_machine
from ._threads import run_all

MANIFEST = "manifest.json"
_WRITER = "writer.json"
_FOLDER = re.compile(r"files-([0-9a-f]{8})-(\d{1,10})-(\d{1,20})-[0-9a-f]{8}")
_LOCAL_FILE = re.compile(r"arrays\.bin|slices-[0-9]+\.bin")
_SETTLING_SECONDS = 60.0  # after which no request of a dead process can still be on its way
_ABANDONED_SECONDS = 24 * 3600.0  # processes of other computers cannot be checked, but no write takes a day
COLLECT_SECONDS = 3600.0  # between two searches of a process for what others have left in one place
_MAX_TEXT = 300  # letters of a writer's name

_collected: dict[str, float] = {}  # when this process has last searched, by place


class Draft(RemotePath):
    """The folder with the files of a checkpoint that is being written.

    store_decides: whether the store itself lets only one of several writers write the manifest. may_count: whether a manifest that
    names the folder may be there, now or later.
    """

    store_decides = False
    may_count = False


def is_folder_name(name: object) -> bool:
    """Return whether a manifest may name this folder."""
    return isinstance(name, str) and _FOLDER.fullmatch(name) is not None


def draft_of(path: RemotePath) -> Draft:
    """Return a new folder for the files of the checkpoint at `path`, whose name says that this process writes them."""
    owner = Owner.current()
    return Draft(f"{path}/files-{owner.machine}-{owner.pid}-{owner.started}-{secrets.token_hex(4)}")


@contextmanager
def appearing_at(path: RemotePath, draft: Draft | None = None) -> Iterator[Draft]:
    """Provide a folder to fill. Its files are deleted after an error, unless the manifest may be there.

    Raises:
        CheckpointError: If there is a checkpoint at `path`.
    """
    _require_free(path)
    if _is_time_to_collect(path):
        with contextlib.suppress(RemoteError):
            collect_garbage(path)
    draft = draft or draft_of(path)
    try:
        _sign(draft)
        yield draft
    except BaseException:
        if not draft.may_count:
            with contextlib.suppress(RemoteError):
                _delete_files(draft)
        raise


def _sign(draft: Draft) -> None:
    """Write who writes, and find out with the same object whether the store can tell the first writer from a second one."""
    owner = Owner.current()
    about = json.dumps({"host": owner.host, "pid": owner.pid, "since": time.time()}).encode()
    store = (draft / _WRITER).store
    store.put(about)
    draft.store_decides = store.refuses_a_second(about)


def publish(draft: Draft, manifest: bytes) -> None:
    """Write the manifest, so that the checkpoint counts.

    Raises:
        CheckpointError: If another writer was faster, the files were collected as garbage, or the store does not say whether it has
            the manifest.
    """
    path = draft.parent
    draft.may_count = True
    try:
        has_won = (path / MANIFEST).store.put_if_absent(manifest, store_decides=draft.store_decides)
        was_collected = has_won and not (draft / _WRITER).exists()
        if was_collected:
            (path / MANIFEST).unlink()
    except RemoteError as error:
        raise CheckpointError(
            f"It is not known whether the checkpoint {path} exists, because the store did not confirm its manifest ({error}). If "
            "latest_checkpoint finds it, it is whole."
        ) from error
    if was_collected:
        draft.may_count = False
        raise CheckpointError(
            f"The files of {path} were removed by another program, because nothing had been written for a day, as if this one had "
            "died. Save again."
        )
    if not has_won:
        draft.may_count = not draft.store_decides  # a request that is still on its way may replace the manifest, and then names it
        _require_free(path)
        raise CheckpointError(f"{path} was written and removed by another program at the same time. Choose another path.")


def _require_free(path: RemotePath) -> None:
    text = _manifest_at(path)
    if text is None:
        return
    raise CheckpointError(
        f"{path} already exists{_by(path, text)}, and a checkpoint is never overwritten. Choose another path, or delete it first."
    )


def _manifest_at(path: RemotePath) -> bytes | None:
    try:
        return (path / MANIFEST).store.get()
    except RemoteError as error:
        if is_missing(error):
            return None
        raise


def _by(path: RemotePath, manifest: bytes) -> str:
    """Who has written a checkpoint, for a message; nothing if that cannot be read."""
    folder = _named_by(manifest)
    if folder is None:
        return ""
    try:
        about = json.loads((path / folder / _WRITER).store.get())
        host = "".join(letter for letter in str(about["host"])[:_MAX_TEXT] if letter.isprintable())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about["since"]))
        return f" (written by process {int(about['pid'])} on {host}, which began at {since})"
    except (RemoteError, ValueError, TypeError, KeyError, OverflowError, OSError):
        return ""


def _named_by(manifest: bytes) -> str | None:
    """The folder that a manifest names, or None if it is damaged or names none."""
    try:
        found = json.loads(manifest)["folder"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return found if is_folder_name(found) else None


def remove_at(path: RemotePath) -> None:
    """Delete the checkpoint at `path`: its manifest first, so that it is never an incomplete one. Does nothing if it is gone.

    Folders of other writers stay: one of them may be writing there.

    Raises:
        RemoteError: If the manifest cannot be deleted. What is left behind it is garbage.
    """
    manifest = _manifest_at(path)
    if manifest is not None:
        (path / MANIFEST).store.delete()
    named = None if manifest is None else _named_by(manifest)
    with contextlib.suppress(RemoteError):
        if named is not None:
            _delete_files(path / named)
        else:  # it was copied from a local folder
            run_all([(path / entry.name).unlink for entry in path.entries() if _LOCAL_FILE.fullmatch(entry.name)])


def _delete_files(folder: RemotePath) -> None:
    """Delete what is directly in a folder, and last what says who has written it."""
    names = [entry.name for entry in folder.entries() if not entry.is_folder]
    run_all([(folder / name).unlink for name in names if name != _WRITER])
    (folder / _WRITER).unlink()


def _is_time_to_collect(path: RemotePath) -> bool:
    """Whether this process has not just looked beside `path`, which takes a request for each checkpoint there."""
    beside = f"{path.parent}/{_family(path) or path.name}"
    now = time.monotonic()
    if now - _collected.get(beside, float("-inf")) < COLLECT_SECONDS:
        return False
    _collected[beside] = now
    return True


def _family(path: RemotePath) -> str:
    return path.name.rpartition("-")[0]


def collect_garbage(path: RemotePath) -> None:
    """Remove what dead writers have left beside `path` and in it: files that no manifest names."""
    family = _family(path)
    for entry in path.parent.entries():
        if entry.is_folder and (entry.name == path.name or (family and entry.name.rpartition("-")[0] == family)):
            _collect_in(path.parent / entry.name)


def _collect_in(path: RemotePath) -> None:
    for entry in path.entries():
        folder = path / entry.name
        if not (entry.is_folder and is_folder_name(entry.name) and _is_abandoned(folder)) or _may_name(path, folder):
            continue
        (folder / _WRITER).unlink()  # from now on its writer, should it live after all, finds out when it has published
        if not _may_name(path, folder):
            _delete_files(folder)


def _may_name(path: RemotePath, folder: RemotePath) -> bool:
    """Whether the manifest names the folder, or is damaged or another program's, so that it is not known what belongs to it."""
    manifest = _manifest_at(path)
    return manifest is not None and _named_by(manifest) in (None, folder.name)


def _is_abandoned(folder: RemotePath) -> bool:
    """Whether the writer is dead, or silent for very long. A name and times say so, and no time means no."""
    found = _FOLDER.fullmatch(folder.name)
    assert found is not None, "the caller has looked at the name"
    is_here = is_this_machine(found[1])
    if is_here and is_running(int(found[2]), int(found[3])):
        return False
    times = [entry.changed for entry in folder.entries()]
    newest = max((each for each in times if each is not None), default=None)
    if newest is None or None in times:
        return False
    return time.time() - newest > (_SETTLING_SECONDS if is_here else _ABANDONED_SECONDS)
