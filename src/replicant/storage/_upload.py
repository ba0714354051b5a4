"""An object that is written like a file: from S3 on in parts, several of which are on their way at a time, each repeated alone."""

import asyncio
import contextlib
import hashlib
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from ._retry import RemoteError, Started, retried
from ._store import facts_of
from ._write import WritableStore

PART = 16 << 20  # bytes
AT_ONCE = 6  # parts on their way, of all objects that this process writes
_SMALL = 1 << 16  # bytes: pieces below are copied together, because each object in memory takes a few hundred bytes more
_SECONDS_TO_ABORT = 10.0
_GROW_AFTER = 1000  # parts, after which they become larger, so that even 5 TB have no more than the most

_slots = threading.BoundedSemaphore(AT_ONCE)


def _renew_slots() -> None:
    global _slots  # noqa: PLW0603
    _slots = threading.BoundedSemaphore(AT_ONCE)


os.register_at_fork(after_in_child=_renew_slots)  # the threads that would release the parent's are not in the child


class Upload:
    """An object that is being written. It exists once the ``with`` block ends without an error; nothing of it does otherwise.

    What is passed to ``write`` must not change before the end. Stores other than S3 get the object in one request. In a forked
    child, there is nothing that it could do.

    Args:
        url: The object.
        replaces: Whether there may be an object of this name now, or other writers that make one. Then, an upload that the store
            grants with an answer that is lost is left to the store's rules for old uploads.

    Raises:
        RemoteError: If the store does not take it, from ``write`` or at the end of the block, or the process is a forked child.
    """

    def __init__(self, url: str, *, replaces: bool = False) -> None:
        self.store = WritableStore(url)
        self._process = os.getpid()
        self._replaces = replaces
        self._before = facts_of([url])[0] if replaces else None
        self._in_parts = hasattr(self.store._system, "_call_s3")  # noqa: SLF001 - of the same idea
        self._pieces: list[memoryview | bytearray] = []
        self._waiting = self._written = 0
        self._id: str | None = None
        self._begun = 0  # requests for an id, any of which may have been granted
        self._started: deque[tuple[int, Started]] = deque()
        self._parts: list[dict[str, Any]] = []
        self._number = 0

    @property
    def is_own(self) -> bool:
        """Whether it was begun in this process, and not in the parent of a forked one."""
        return self._process == os.getpid()

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._written

    def write(self, data: Any) -> int:
        """Add bytes at the end, and send parts that are full."""
        self._check_process()
        view = memoryview(data).cast("B")
        left = view
        while self._in_parts and self._waiting + len(left) >= self._part_size:
            fits = self._part_size - self._waiting
            self._add(left[:fits])
            left = left[fits:]
            self._send()
        if len(left):
            self._add(left)
            self._waiting += len(left)
        self._written += len(view)
        return len(view)

    def _add(self, piece: memoryview) -> None:
        if len(piece) >= _SMALL:
            self._pieces.append(piece)
            return
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()

    def finish(self) -> None:
        """Send the rest, and wait until the object exists."""
        try:
            self._finish()
        except BaseException:
            self.abort()
            raise
        if self._begun > 1 and not self._replaces:
            self._abort_all()

    @property
    def _part_size(self) -> int:
        return PART << min(8, self._number // _GROW_AFTER)

    def _check_process(self) -> None:
        if not self.is_own:
            raise RemoteError(
                f"could not write {self.store.url}: process {self._process} began it, and this is process {os.getpid()}, which was "
                "forked from it; make the writer after the fork"
            )

    def _finish(self) -> None:
        self._check_process()
        if self._id is None:
            self.store.put(self._taken())
            return
        if self._pieces:
            self._send()
        while self._started:
            self._collect()
        size = self._written

        def once(seconds: float) -> None:
            try:
                self._call("complete_multipart_upload", seconds, UploadId=self._id, MultipartUpload={"Parts": self._parts})
            except Exception:
                # Perhaps an attempt whose answer was lost has completed it, and the upload is gone.
                if not self.store._exists_once(seconds):  # noqa: SLF001
                    raise
                now = self.store.facts()
                is_new = now != self._before or now.identity == f"ETag {_etag(self._parts)}"  # the same bytes as before, perhaps
                if now.size != size or not is_new:
                    raise

        retried("write", self.store.url, once)

    def _taken(self) -> bytes:
        pieces, self._pieces, self._waiting = self._pieces, [], 0
        return b"".join(pieces)

    def _send(self) -> None:
        """Begin to send what is waiting as the next part."""
        if self._id is None:
            self._id = retried("write", self.store.url, self._begin)["UploadId"]
        if len(self._started) == AT_ONCE:
            self._collect()
        slots = _slots
        slots.acquire()  # before the copy is made; each part on its way has its deadline
        try:
            self._number += 1
            self._started.append((self._number, Started(self._sending(self._number, self._taken(), slots))))
        except BaseException:
            slots.release()
            raise

    def _begin(self, seconds: float) -> Any:
        self._begun += 1
        return self._call("create_multipart_upload", seconds)

    def _sending(self, number: int, data: bytes, slots: threading.Semaphore) -> Callable[[], Any]:
        def once(seconds: float) -> Any:
            return self._call("upload_part", seconds, UploadId=self._id, PartNumber=number, Body=data)

        def send() -> Any:
            try:
                # The parts on their way share one connection.
                return retried(f"write part {number} of", self.store.url, once, num_bytes=AT_ONCE * len(data))
            finally:
                slots.release()

        return send

    def _collect(self) -> None:
        """Wait for the part that was sent first."""
        number, started = self._started.popleft()
        self._parts.append({"PartNumber": number, "ETag": started.result()["ETag"]})

    def abort(self) -> None:
        """Leave nothing of the object."""
        if not self.is_own:
            return
        self._pieces = []
        for _, started in self._started:
            started.wait()  # a part that comes after the end would stay; each has its deadline
        self._started.clear()
        if self._id is not None:
            self._abort_one(self._id)
        if not self._replaces and (self._begun > 1 or (self._begun and self._id is None)):
            self._abort_all()

    def _abort_one(self, upload: str) -> None:
        with contextlib.suppress(Exception):  # the store's own rules for old uploads remove it
            self._call("abort_multipart_upload", _SECONDS_TO_ABORT, UploadId=upload)

    def _abort_all(self) -> None:
        """Remove uploads that were granted, but whose answer was lost. Only for a name that no other writer uses."""
        _, key, _ = self.store._system.split_path(self.store._path)  # noqa: SLF001 - of the same idea
        with contextlib.suppress(Exception):
            found = self._call("list_multipart_uploads", _SECONDS_TO_ABORT, Prefix=key).get("Uploads") or []
            for each in found:
                if each["Key"] == key:
                    self._abort_one(each["UploadId"])

    def _call(self, method: str, seconds: float, **arguments: Any) -> Any:
        from fsspec.asyn import sync

        system: Any = self.store._system  # noqa: SLF001 - of the same idea
        bucket, key, _ = system.split_path(self.store._path)  # noqa: SLF001 - of the same idea
        return sync(system.loop, system._call_s3, method, Bucket=bucket, Key=key, timeout=seconds, **arguments)  # noqa: SLF001


def _etag(parts: list[dict[str, Any]]) -> str | None:
    """The ETag of an object of these parts, if those of the parts are the MD5 sums that stores usually make them."""
    try:
        sums = [bytes.fromhex(part["ETag"].strip('"')) for part in parts]
    except ValueError:
        return None
    return f"{hashlib.md5(b''.join(sums), usedforsecurity=False).hexdigest()}-{len(parts)}"


class ObjectFile:
    """An object that is written like a file which is opened with "wb". It exists once it is closed.

    If nobody closes it, that is a warning, and nothing of it is left.

    Raises:
        RemoteError: If the store does not take it, from ``write`` or ``close``.
    """

    def __init__(self, url: str) -> None:
        self._upload = Upload(url, replaces=True)
        self._forgotten = weakref.finalize(self, _leave_forgotten, self._upload)  # at the latest when the program ends
        self.closed = False

    def write(self, data: bytes) -> int:
        """Add bytes at the end."""
        try:
            return self._upload.write(data)
        except BaseException:
            self.leave()
            raise

    def flush(self) -> None:
        """Do nothing: only a whole object can be written."""

    def close(self) -> None:
        """Finish the object, unless it is closed."""
        if not self.closed:
            self.closed = True
            self._forgotten.detach()
            self._upload.finish()

    def leave(self) -> None:
        """Close it without writing anything."""
        if not self.closed:
            self.closed = True
            self._forgotten.detach()
            self._upload.abort()


def _leave_forgotten(upload: Upload) -> None:
    if not upload.is_own:
        return
    warnings.warn(f"{upload.store.url} was never closed, so there is no object. Close its writer, or use `with`.", stacklevel=2)
    if asyncio._get_running_loop() is None:  # noqa: SLF001
        upload.abort()
    else:  # garbage is collected on the thread that sends, say, which must not wait
        Started(upload.abort)
