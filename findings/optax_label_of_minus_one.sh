#!/usr/bin/env bash
# optax 0.2.8 with jax 0.10.2 (and 0.12.0.1), softmax_cross_entropy_with_integer_labels of a label that marks padding.
#
# Sequences are padded with the label -1 or -100. One expects that such a label is refused, or that it counts nothing as in PyTorch
# (ignore_index) and in Keras on JAX. In Optax, -1 means the last class, as an index of Python does: the padding trains the model
# towards it, with a loss that looks like any other. -100, and a label that is too large, make the loss NaN. Nothing is raised.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 keras==3.15.1
cat > "$folder/losses.py" <<'PROGRAM'
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax

logits = jnp.array([0.0, 1.0, 3.0])


def of_optax(label):
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.array(label))


def of_keras(label):
    return keras.ops.sparse_categorical_crossentropy(jnp.array([label]), logits[None], from_logits=True)[0]


for label in (2, -1, -2, 3, -100):
    print(f"label {label}: optax {of_optax(label):.4f}, keras {abs(of_keras(label)):.4f}")
assert of_optax(-1) == of_optax(2) and of_optax(-2) == of_optax(1)
assert np.isnan(of_optax(3)) and np.isnan(of_optax(-100))
assert [float(of_keras(label)) for label in (-1, -2, 3, -100)] == [0.0] * 4
pulled = jax.grad(lambda logits: optax.softmax_cross_entropy_with_integer_labels(logits, jnp.array(-1)))(logits)
print("gradient of the logits for the label -1:", [round(float(value), 4) for value in pulled])
assert pulled[2] < 0 < pulled[0] < pulled[1]
PROGRAM
KERAS_BACKEND=jax "$folder/venv/bin/python" "$folder/losses.py"
# Seen on 2026-11-29:
# label 2: optax 0.1698, keras 0.1698
# label -1: optax 0.1698, keras 0.0000
# label -2: optax 2.1698, keras 0.0000
# label 3: optax nan, keras 0.0000
# label -100: optax nan, keras 0.0000
# gradient of the logits for the label -1: [0.042, 0.1142, -0.1562]
