"""The bytes of a file that Zstandard has compressed."""

import importlib
from typing import Any

from ...errors import ConfigurationError
from ._stream import FileStream


def import_zstandard(method: str) -> Any:
    """Import zstandard for ``method``.

    Raises:
        ConfigurationError: If it is not installed.
    """
    try:
        return importlib.import_module("zstandard")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{method} reads .zst files with zstandard, which cannot be imported ({error}). Run: pip install 'replicant-jax[zstd]'."
        ) from error


class ZstdStream(FileStream):
    """Reads one file from beginning to end. It may consist of several frames."""

    def __init__(self, method: str, path: str) -> None:
        self.zstandard = import_zstandard(method)
        super().__init__(method, path, "")
        self.compression = "ZSTD"
        self.given, self.rest, self.made = 0, b"", b""  # what is not decompressed yet, and what was not asked for yet
        self.frame: Any = None

    def _inflated(self, at_most: int) -> bytes:
        while not self.made:
            compressed = self.rest or self._compressed()
            if not compressed:
                if self.frame is not None:
                    raise self._damaged("it ends in the middle of the compressed data")
                return b""
            self.frame = self.frame or self.zstandard.ZstdDecompressor().decompressobj()
            try:
                self.made = self.frame.decompress(compressed)
            except self.zstandard.ZstdError as error:
                raise self._damaged(str(error)) from error
            self.rest = self.frame.unused_data
            if self.frame.eof:
                self.frame = None
        piece, self.given = self.made[self.given : self.given + at_most], self.given + at_most
        if self.given >= len(self.made):
            self.made, self.given = b"", 0
        return piece
