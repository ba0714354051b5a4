"""One worker, which trains on the pictures in FOLDER, and writes what it saw."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import replicant

if (count := int(os.environ["DEVICES"])) > 1:
    replicant.set_virtual_devices(count)
strategy = replicant.MultiWorkerMirroredStrategy()

import _folder_training  # noqa: E402

answer = _folder_training.train(strategy, Path(os.environ["FOLDER"]))
Path(os.environ["ANSWER"]).write_text(json.dumps(answer))
