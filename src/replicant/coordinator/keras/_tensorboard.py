"""Writes a coordinator's statistics for TensorBoard."""

from pathlib import Path
from typing import Any, Self

import numpy as np

from ...errors import ArgumentError
from ...storage._urls import folder_at
from .._coordinator import ClusterCoordinator

_RUN = "coordinator"
_MOST_VALUES = 100_000  # from which a histogram is drawn
_SCALARS = (
    "closures_per_second",
    "bytes_per_closure",
    "pulled_bytes_per_closure",
    "pushed_bytes_per_closure",
    "synchronous_updates",
    "dropped_closures",
    "duplicate_pushes",
    "replaced_workers",
    "replaced_servers",
)


class StatsWriter:
    """Writes ``coordinator.stats()`` for TensorBoard, as the run "coordinator" of a folder.

    It needs ``pip install replicant-jax[tensorboard]``. In ``model.fit``, ``replicant.keras.callbacks.TensorBoard`` writes the same
    at the end of each epoch, without a StatsWriter.

    Args:
        coordinator: a ClusterCoordinator.
        log_dir: the folder with which you start TensorBoard: a path or a URL.

    Raises:
        ArgumentError: if it is a URL that names no bucket or several stores, or has lost a slash.
        ConfigurationError: if tensorboardX, or the package for the URL, is not installed.

    >>> import tempfile, replicant
    >>> from replicant.coordinator import ClusterCoordinator, StatsWriter
    >>> strategy = replicant.ParameterServerStrategy(transport="threads")
    >>> coordinator = ClusterCoordinator(strategy)
    >>> with tempfile.TemporaryDirectory() as folder, StatsWriter(coordinator, folder) as writer:
    ...     coordinator.schedule(lambda: 1).fetch()
    ...     writer.write(step=1)
    1
    >>> strategy.close()
    """

    def __init__(self, coordinator: ClusterCoordinator, log_dir: str | Path):
        from ...summary._event_file import EventFile

        self._coordinator = coordinator
        folder = folder_at("StatsWriter: log_dir", log_dir, ArgumentError)
        self._file = EventFile(f"{folder.rstrip('/')}/{_RUN}" if isinstance(folder, str) else folder / _RUN)

    def write(self, step: int) -> None:
        """Write the current statistics.

        Args:
            step: int, their position on TensorBoard's horizontal axis.
        """
        write_stats(self._file, self._coordinator.stats(), step)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_stats(file: Any, stats: dict[str, Any], step: int) -> None:
    """Write statistics: rates and bytes as curves, staleness as a histogram."""
    for name in _SCALARS:
        file.scalar(name, float(stats[name]), step)
    for name in ("closures_per_second", "busy_seconds"):
        for worker, value in stats[f"{name}_by_worker"].items():
            file.scalar(f"{name}/worker_{worker}", float(value), step)
    for server, updates in enumerate(stats["updates_by_server"]):
        file.scalar(f"updates/server_{server}", float(updates), step)
    counts = np.array(stats["staleness"], np.float64)
    if counts.sum():
        file.scalar("staleness/mean", float(counts @ np.arange(counts.size) / counts.sum()), step)
        file.scalar("staleness/most", float(counts.size - 1), step)
        shown = np.ceil(counts * min(1.0, _MOST_VALUES / counts.sum())).astype(int)
        file.histogram("staleness", np.repeat(np.arange(counts.size), shown), step)


def write_epoch(callbacks: Any, coordinator: ClusterCoordinator, epoch: int) -> None:
    """At the end of an epoch of `fit`: write statistics to the files of its TensorBoard callbacks."""
    from ...keras.callbacks import TensorBoard

    for callback in callbacks.callbacks:
        if isinstance(callback, TensorBoard):
            write_stats(callback._file(_RUN), coordinator.stats(), epoch)  # noqa: SLF001 - one of our own callbacks
