"""How the files of one checkpoint are read: at a URL, small arrays side by side take one request."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...storage._path import WINDOW, RangeReader, RemotePath
from ..folders._locations import Place
from ._files import open_file


class Readers:
    """Opens the files in the folder of a checkpoint. Nothing is opened before it is read.

    Args:
        folder: The folder, in which the files never change.
    """

    def __init__(self, folder: Place):
        self.folder = folder
        self._lock = threading.Lock()
        self._shared: dict[str, _Shared] = {}
        self._paths: dict[str, Place] = {}

    @contextmanager
    def opened(self, name: str, num_bytes: int) -> Iterator[Any]:
        """Provide a file, of which so many bytes side by side are read. Others may have to wait until the end of the block.

        Raises:
            OSError: If it cannot be opened.
        """
        if not isinstance(self.folder, RemotePath):
            if name not in self._paths:  # joining and parsing one takes longer than opening a file
                self._paths[name] = self.folder / name
            with open_file(self._paths[name]) as file:
                yield file
            return
        with self._lock:
            shared = self._shared.setdefault(name, _Shared(self.folder / name))
        if num_bytes >= WINDOW:
            yield shared.opened().another()
            return
        with shared.using:
            yield shared.opened()


class _Shared:
    """A reader that keeps what it has read beside what it was asked for."""

    def __init__(self, file: RemotePath) -> None:
        self.using = threading.Lock()
        self._opening = threading.Lock()
        self._file = file
        self._reader: RangeReader | None = None

    def opened(self) -> RangeReader:
        with self._opening:
            self._reader = self._reader or self._file.open_to_read()
            return self._reader
