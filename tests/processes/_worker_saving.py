"""One of several workers, which all save the same model to the same files again and again, and load what they find."""

import json
import os
from pathlib import Path

import replicant

strategy = replicant.MultiWorkerMirroredStrategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402

folder = Path(os.environ["FOLDER"])
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((512,)), keras.layers.Dense(512), keras.layers.Dense(1)])
    model.compile("adam", "mse")
expected = model.get_weights()
same = []
for _ in range(int(os.environ["TIMES"])):
    model.save(folder / "model.keras")
    model.save_weights(str(folder / "model.weights.h5"))
    keras.saving.save_weights(model, folder / "shared.weights.h5")
    loaded = keras.models.load_model(folder / "model.keras")
    same.append(all(np.array_equal(mine, theirs) for mine, theirs in zip(loaded.get_weights(), expected, strict=True)))
    for name in ("model", "shared"):
        loaded.set_weights([np.zeros_like(weight) for weight in expected])
        loaded.load_weights(folder / f"{name}.weights.h5")
        same.append(all(np.array_equal(mine, theirs) for mine, theirs in zip(loaded.get_weights(), expected, strict=True)))
Path(os.environ["ANSWER"]).write_text(json.dumps(all(same)))
