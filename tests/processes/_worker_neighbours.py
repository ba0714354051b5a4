"""One worker, which trains a model of LIBRARY for two epochs and saves every step to FOLDER. It kills itself at step KILL_AT."""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "devices"))

import replicant

if (count := int(os.environ.get("DEVICES", "1"))) > 1:
    replicant.set_virtual_devices(count)

strategy = getattr(replicant, os.environ["STRATEGY"])()

from _libraries import LIBRARIES, one_device, trainer  # noqa: E402
from _neighbours import batches  # noqa: E402

library, rate = os.environ["LIBRARY"], float(os.environ.get("DROPOUT", "0"))
model = LIBRARIES[library](strategy, **({"rate": rate} if rate else {}))
start, step = model.weights(), trainer(strategy, model)
model.checkpoint.done = 0
manager = replicant.CheckpointManager(model.checkpoint, os.environ["FOLDER"], max_to_keep=2)
manager.restore_or_initialize()
began, kill_at = model.checkpoint.done, int(os.environ.get("KILL_AT", "-1"))
steps = [batch for _ in range(2) for batch in batches(strategy, "mlp", rows=21)]
for i in range(began, len(steps)):
    step(steps[i])
    model.checkpoint.done = i + 1
    manager.save()
    if i + 1 == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
manager.close()
answer = {
    "began": began,
    "steps": len(steps),
    "weights": [x.tolist() for x in model.weights()],
    "expected": [x.tolist() for x in one_device(start, rows=21, epochs=2)],
}
Path(os.environ["ANSWER"]).write_text(json.dumps(answer))
