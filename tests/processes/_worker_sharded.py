"""One worker, which runs the CASES of `_sharded.py` on so many DEVICES, and writes files to FOLDER."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import replicant

if (count := int(os.environ["DEVICES"])) > 1:
    replicant.set_virtual_devices(count)
size = int(os.environ.get("MODEL_PARALLEL_SIZE", "1"))
if os.environ.get("KIND") == "mirrored":
    strategy = replicant.MultiWorkerMirroredStrategy()
else:
    strategy = replicant.FullyShardedStrategy(min_size=8, model_parallel_size=size)

import _sharded  # noqa: E402

folder = os.environ["FOLDER"]
answer = {}
for case in os.environ["CASES"].split(";"):
    if "," in case:
        answer[case] = _sharded.train(strategy, case)
    elif case == "own_variables":
        answer[case] = _sharded.own_variables(strategy)
    else:
        answer[case] = getattr(_sharded, case)(strategy, f"{folder}/{case.replace('goes_on', 'checkpoints')}")
answer["chief"] = strategy.is_chief
Path(os.environ["ANSWER"]).write_text(json.dumps(answer))
