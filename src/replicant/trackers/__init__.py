"""Where the values of a training run can go: TensorBoard, MLflow, Weights & Biases, or a tracker of your own.

``replicant.track`` sends values to them from threads of its own, so that a tracker that is slow, fails or hangs does not slow
training down. A tracker's package is imported when the tracker is made.
"""

from ._mlflow import MLflowTracker as MLflowTracker
from ._protocol import Row as Row
from ._protocol import Tracker as Tracker
from ._run import TrackedRun as TrackedRun
from ._tensorboard import TensorBoardTracker as TensorBoardTracker
from ._wandb import WandBTracker as WandBTracker

__all__ = ["MLflowTracker", "Row", "TensorBoardTracker", "TrackedRun", "Tracker", "WandBTracker"]
