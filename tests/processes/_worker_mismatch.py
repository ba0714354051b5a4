"""Two workers that do not do the same in fit: each error is written down, and the next case begins."""

import json
import os
from pathlib import Path

import replicant

strategy = replicant.MultiWorkerMirroredStrategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402

wrong = not strategy.is_chief
found = {}
for case in ("model", "data", "nothing"):
    units = 5 if case == "model" and wrong else 4
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = np.full((8, 3), 2.0 if case == "data" and wrong else 1.0, np.float32)
    try:
        model.fit(rows, np.ones((8, 1), np.float32), batch_size=4, verbose=0)
        found[case] = "trained"
    except replicant.errors.WorkerMismatchError as error:
        found[case] = str(error)
Path(os.environ["ANSWER"]).write_text(json.dumps(found))
