"""``TensorBoard`` as a tracker."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ArgumentError
from ..storage._urls import folder_at
from ..summary._event_file import EventFile, import_writer
from ._protocol import Row


class TensorBoardTracker:
    """Writes the values of a run into one event file (``pip install replicant-jax[tensorboard]``).

    Args:
        log_dir: The folder of the event file: a path, or a URL.

    Raises:
        ArgumentError: If the URL is not that of a folder.
        ConfigurationError: If tensorboardX is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str] = "logs"):
        import_writer("event_file_writer")
        self._folder = folder_at("trackers.TensorBoardTracker: log_dir", log_dir, ArgumentError)
        self._file: EventFile | None = None

    def begin(self, config: Mapping[str, Any]) -> None:
        """Make the file, and write the settings as a text."""
        self._file = EventFile(self._folder)
        if config:
            self._file.text("config", "```json\n" + json.dumps(dict(config), indent=2, default=str) + "\n```", 0)

    def write(self, rows: Sequence[Row]) -> None:
        """Add points to the curves."""
        assert self._file is not None
        for row in rows:
            for name, value in row.values.items():
                self._file.scalar(name, value, row.step)

    def end(self, *, failed: bool) -> None:
        """Close the file."""
        assert self._file is not None
        self._file.close()
