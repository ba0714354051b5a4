"""One worker, which runs the CASES of `_training.py` on so many DEVICES, and writes files to FOLDER."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import replicant

if (count := int(os.environ["DEVICES"])) > 1:
    replicant.set_virtual_devices(count)
strategy = getattr(replicant, os.environ.get("STRATEGY", "MultiWorkerMirroredStrategy"))()

import _training  # noqa: E402

answer = _training.cases(os.environ["CASES"], strategy, os.environ["FOLDER"])
answer["chief"] = [strategy.is_chief, strategy.should_checkpoint, strategy.should_save_summary]
Path(os.environ["ANSWER"]).write_text(json.dumps(answer))
