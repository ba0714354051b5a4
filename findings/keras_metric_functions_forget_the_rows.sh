#!/usr/bin/env bash
# keras 3.15.1 with jax 0.10.2 (and 0.12.0.1), a metric that is a function and returns one number, with a short last batch.
#
# `compile(metrics=[function])` takes a function, and most write one that ends in a mean over the batch, as is usual in NumPy. One
# expects that evaluate weighs the batches by their rows, as it does for the loss. But it counts every single number once: one row in
# a last batch weighs as much as all rows of a full one. The same formula is 4 as the loss, 4 as "mse", and 8 as the function, for three
# rows and one, and the figure changes with the batch size. A function that returns a number per row is weighed by rows.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 keras==3.15.1
cat > "$folder/evaluate.py" <<'PROGRAM'
import keras
import numpy as np


def mean_of_batch(y_true, y_pred):
    return keras.ops.mean((y_true - y_pred) ** 2)


def per_row(y_true, y_pred):
    return keras.ops.mean((y_true - y_pred) ** 2, axis=-1)


x = np.array([[0.0], [0.0], [0.0], [4.0]], "float32")
found = {}
for batch_size in (1, 2, 3, 4):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Identity()])
    model.compile("sgd", "mse", metrics=["mse", per_row, mean_of_batch])
    found[batch_size] = model.evaluate(x, 0 * x, batch_size=batch_size, verbose=0, return_dict=True)
    print(f"batches of {batch_size}:", found[batch_size])
for batch_size, figures in found.items():
    assert (figures["loss"], figures["mse"], figures["per_row"]) == (4.0, 4.0, 4.0)
    assert figures["mean_of_batch"] == (8.0 if batch_size == 3 else 4.0)
PROGRAM
KERAS_BACKEND=jax "$folder/venv/bin/python" "$folder/evaluate.py"
# Seen on 2026-11-29:
# batches of 1: {'loss': 4.0, 'mean_of_batch': 4.0, 'mse': 4.0, 'per_row': 4.0}
# batches of 2: {'loss': 4.0, 'mean_of_batch': 4.0, 'mse': 4.0, 'per_row': 4.0}
# batches of 3: {'loss': 4.0, 'mean_of_batch': 8.0, 'mse': 4.0, 'per_row': 4.0}
# batches of 4: {'loss': 4.0, 'mean_of_batch': 4.0, 'mse': 4.0, 'per_row': 4.0}
