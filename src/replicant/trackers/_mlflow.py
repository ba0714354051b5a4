"""``MLflow`` as a tracker."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigurationError
from ._protocol import Row

_MOST_METRICS = 1000  # of one request, which MLflow's servers limit
_MOST_PARAMS = 100
_LONGEST_PARAM = 500  # characters


class MLflowTracker:
    """Keeps the values of a run in MLflow (``pip install mlflow-skinny``). It leaves MLflow's own current run alone.

    Args:
        tracking_uri: Where MLflow keeps runs. By default what MLflow itself uses, such as ``MLFLOW_TRACKING_URI``.
        experiment: The name of the experiment, which is made if there is none.
        run_name: The name of the run. By default MLflow draws one.
        run_id: A run to go on with, for a program that was started again. By default a new run begins.
        tags: Tags of a new run.

    Raises:
        ConfigurationError: If MLflow is not installed.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str = "Default",
        run_name: str | None = None,
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ):
        try:
            self._client = importlib.import_module("mlflow.tracking").MlflowClient
            self._entities: Any = importlib.import_module("mlflow.entities")
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"trackers.MLflowTracker needs MLflow, which cannot be imported ({error}). Run: pip install mlflow-skinny."
            ) from error
        self._tracking_uri, self._experiment, self._run_name = tracking_uri, experiment, run_name
        self._tags = dict(tags or {})
        self.run_id = run_id  # known once the run has begun
        self._of: Any = None  # MLflow's client, once the run has begun

    def begin(self, config: Mapping[str, Any]) -> None:
        """Begin the run, or go on with it, and write the settings as its parameters."""
        self._of = self._client(tracking_uri=self._tracking_uri)
        if self.run_id is None:
            found = self._of.get_experiment_by_name(self._experiment)
            where = self._of.create_experiment(self._experiment) if found is None else found.experiment_id
            self.run_id = self._of.create_run(where, run_name=self._run_name, tags=self._tags).info.run_id
        params = [self._entities.Param(name, str(value)[:_LONGEST_PARAM]) for name, value in config.items()]
        for some in _batched(params, _MOST_PARAMS):
            self._of.log_batch(self.run_id, params=some)

    def write(self, rows: Sequence[Row]) -> None:
        """Log the values as metrics, many in one request."""
        metrics = [
            self._entities.Metric(name, value, int(row.time * 1000), row.step) for row in rows for name, value in row.values.items()
        ]
        for some in _batched(metrics, _MOST_METRICS):
            self._of.log_batch(self.run_id, metrics=some, synchronous=True)

    def end(self, *, failed: bool) -> None:
        """Set the status of the run."""
        self._of.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


def _batched(values: list[Any], size: int) -> list[list[Any]]:
    return [values[i : i + size] for i in range(0, len(values), size)]
