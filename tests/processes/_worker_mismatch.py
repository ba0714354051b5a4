"""One of two workers that call fit with different models or data. The error of each case is written to a file."""

import json
import os
from pathlib import Path

import replicant

strategy = replicant.MultiWorkerMirroredStrategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402

wrong = not strategy.is_chief
found = {}
for case in ("model", "data", "later", "many", "steps", "rows", "nothing"):
    units = 5 if case == "model" and wrong else 4
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = np.full((8, 3), 2.0 if case == "data" and wrong else 1.0, np.float32)
    if case == "many":
        rows = np.ones((4 * 300, 3), np.float32)
    if case in ("later", "many") and wrong:
        rows[7, 1] = 1.5  # in the second batch
    if case == "rows" and wrong:
        rows = rows[:6]
    steps = 1 if case == "steps" and wrong else None
    try:
        model.fit(rows, np.ones((len(rows), 1), np.float32), batch_size=4, steps_per_epoch=steps, verbose=0, shuffle=False)
        found[case] = "trained"
    except replicant.errors.WorkerMismatchError as error:
        found[case] = str(error)
Path(os.environ["ANSWER"]).write_text(json.dumps(found))
