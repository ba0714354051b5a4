"""Ray Train (version 2 of its API) runs the program in its workers. Ray listens on 127.0.0.1 only."""

import os
import sys
from pathlib import Path

os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # despite its name, this keeps everything on 127.0.0.1

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

HERE = str(Path(__file__).resolve().parent)


def train() -> None:
    """Run the program in this worker."""
    sys.path.insert(0, HERE)
    import _program

    _program.main()


if __name__ == "__main__":
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=True)
    folder = os.environ["FOLDER"]
    run = RunConfig(name="two-steps", storage_path=f"{folder}/ray", failure_config=FailureConfig(max_failures=0))
    DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=run).fit()
