"""``WandB``: Weights & Biases as a tracker."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigurationError
from ._protocol import Row


class WandBTracker:
    """Keeps the values of a run in Weights & Biases (``pip install wandb``).

    Weights & Biases does not take a step that is smaller than the last one, and takes the values of a step only until the next one
    begins.

    Args:
        project: The project.
        options: Further arguments of ``wandb.init``: ``name="..."``, ``mode="offline"``, or ``id="..."`` and ``resume="allow"`` for
            a program that was started again.

    Raises:
        ConfigurationError: If wandb is not installed.
    """

    def __init__(self, project: str | None = None, **options: Any):
        try:
            self._wandb: Any = importlib.import_module("wandb")
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"trackers.WandBTracker needs wandb, which cannot be imported ({error}). Run: pip install wandb."
            ) from error
        self._options = {"project": project, **options}
        self._run: Any = None

    def begin(self, config: Mapping[str, Any]) -> None:
        """Begin the run. A run of the program itself stays as it is."""
        self._run = self._wandb.init(config=dict(config), reinit="create_new", **self._options)

    def write(self, rows: Sequence[Row]) -> None:
        """Log the values."""
        for row in rows:
            self._run.log(dict(row.values), step=row.step)

    def end(self, *, failed: bool) -> None:
        """Hand everything over, and end the run."""
        self._run.finish(exit_code=int(failed))
