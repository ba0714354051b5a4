"""One of two workers: they restore a checkpoint of TensorFlow, into slices on both or not, train on, and save one of their own."""

import json
import os
import sys
from pathlib import Path

import replicant

strategy = replicant.FullyShardedStrategy(min_size=8) if os.environ["SLICED"] == "1" else replicant.MultiWorkerMirroredStrategy()

sys.path.insert(0, str(Path(__file__).parents[1] / "devices"))

from _tensorflow_checkpoints import Recorded  # noqa: E402

recorded = Recorded(Path(os.environ["RECORDED"]), strategy)
with replicant.CheckpointManager(recorded.checkpoint, os.environ["FOLDER"], max_to_keep=1) as manager:
    first = manager.restore_or_initialize()
    answer = {
        "first": first,
        "step": int(recorded.step),
        "cut": [tuple(v._value.sharding.shard_shape(v.shape)) for v in recorded.model.weights],
    }
    answer["losses"] = recorded.fit_losses()
    answer["saved"] = [manager.save(), manager.save()]
    answer["checkpoints"] = manager.checkpoints
    answer["again"] = manager.restore_or_initialize()
Path(os.environ["ANSWER"]).write_text(json.dumps(answer))
