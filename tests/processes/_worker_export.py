"""One of two workers, which both export the same model to the same files. Worker 1 also exports alone, if each can."""

import importlib.util
import json
import os
from pathlib import Path

import replicant

sliced = os.environ["SLICED"] == "1"
strategy = replicant.FullyShardedStrategy(min_size=8) if sliced else replicant.MultiWorkerMirroredStrategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import safetensors.numpy  # noqa: E402

from replicant import export  # noqa: E402

folder = Path(os.environ["FOLDER"])
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(16, name="in"), keras.layers.BatchNormalization(), keras.layers.Dense(2, name="out")]
    )
    model.compile("adam", "mse")
dataset = replicant.data.Dataset.from_tensor_slices((x, x[:, :2])).batch(8)
model.fit(dataset, epochs=2, verbose=0)

answer = {}
program = export.to_jax(model)
answer["outputs"] = np.asarray(program.call(x)).tolist()
answer["devices"] = program.nr_devices
export.save_safetensors(model, folder / "model.safetensors")
if not sliced and not strategy.is_chief:
    export.save_safetensors(model, folder / "alone.safetensors")
weights = {weight.path.removeprefix(f"{model.name}/"): keras.ops.convert_to_numpy(weight) for weight in model.weights}
found = safetensors.numpy.load_file(folder / "model.safetensors")
answer["same"] = sorted(found) == sorted(weights) and all(np.array_equal(found[name], weights[name]) for name in weights)
export.load_safetensors(model, folder / "model.safetensors")
model.fit(dataset, verbose=0)  # it goes on
report = replicant.keras.load_weights(model, folder / "model.safetensors", by_name=True)
loaded = {weight.path.removeprefix(f"{model.name}/"): keras.ops.convert_to_numpy(weight) for weight in model.weights}
answer["loaded"] = sorted(report.taken) == sorted(found) and all(np.array_equal(found[name], loaded[name]) for name in loaded)
model.fit(dataset, verbose=0)

if importlib.util.find_spec("tensorflow") is None:
    try:
        model.export(folder / "served", verbose=False)
    except Exception as error:  # noqa: BLE001 - worker 1 hears of the chief's error at once
        answer["error"] = f"{type(error).__name__}: {error}"
else:
    import tensorflow as tf

    signature = [keras.InputSpec(shape=(8, 6), dtype="float32")]
    for _ in range(2):  # a folder that exists is written over
        model.export(folder / "served", verbose=False, input_signature=signature)
    if not sliced and not strategy.is_chief:
        model.export(folder / "alone", verbose=False, input_signature=signature)
    weights = {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights}
    served = tf.saved_model.load(str(folder / "served"))
    answer["served"] = float(np.abs(served.serve(x).numpy() - np.asarray(export.to_jax(model).call(x))).max())
Path(os.environ["ANSWER"]).write_text(json.dumps(answer))
