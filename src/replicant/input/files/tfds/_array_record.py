"""ArrayRecord files, which the package ``array_record`` reads."""

import importlib
from typing import Any

import numpy as np

from ...._whole_file import open_regular
from ....errors import ConfigurationError, DatasetError
from ....storage._urls import is_url
from .._limits import too_large
from .._remedies import if_not_opened
from ..records._example_values import objects
from ._features import METHOD


class ArrayRecordFile:
    """A file that is read from a position on, which is the number of a record.

    Raises:
        ConfigurationError: If the package is not installed.
        DatasetError: If the file cannot be opened.
    """

    identity = None  # the file is on this machine

    def __init__(self, path: str, position: int, most: int) -> None:
        module = _imported()
        if is_url(path):
            raise DatasetError(
                f"{METHOD}: {path!r} is an ArrayRecord file, which can only be read from a disk of this machine. Copy it to one."
            )
        try:
            open_regular(path).close()
        except OSError as error:
            raise DatasetError(f"{METHOD}: cannot open {path!r}: {error.strerror}. {if_not_opened(path, error)}") from error
        self.path, self.position, self._most = path, position, most
        self._file: Any = self._answer(module.ArrayRecordReader, path)
        self._size: int = self._answer(self._file.num_records)

    def read(self, limit: int) -> np.ndarray:
        """Return the next records, at most ``limit``; none at the end.

        Raises:
            DatasetError: If the file is damaged here, or a record has too many bytes.
        """
        stop = min(self.position + limit, self._size)
        if stop <= self.position:
            return objects([])
        found = self._answer(self._file.read, self.position, stop)
        for number, record in enumerate(found, self.position):
            if len(record) > self._most:
                raise too_large(METHOD, self.path, number, self._most, size=len(record))
        self.position = stop
        return objects(found)

    def _answer(self, call: Any, *args: Any) -> Any:
        try:
            return call(*args)
        except (RuntimeError, ValueError, IndexError) as error:
            raise DatasetError(f"{METHOD}: {self.path!r} is damaged: {error}. Copy or write the file again.") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _imported() -> Any:
    try:
        return importlib.import_module("array_record.python.array_record_module")
    except ImportError as error:
        raise ConfigurationError(
            f"{METHOD} reads ArrayRecord files with the package array_record, which cannot be imported ({error}). Run: pip install "
            "'replicant-jax[array-record]'."
        ) from error
