#!/usr/bin/env bash
# flax 0.12.8 with jax 0.10.2 (flax 0.12.12 with jax 0.12.0.1 does the same), flax.serialization.from_bytes with a target.
#
# The target says what is to be restored: its structure, and one expects, its shapes. The names are compared in one direction only: a
# name that the file lacks raises, one that the target lacks is left out in silence. Shapes and dtypes are not compared at all: a
# kernel for 3 classes and float32 becomes one for 5 in float16, and the model that was made for 3 computes with it. The length of a
# list is compared.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 flax==0.12.8
cat > "$folder/restore.py" <<'PROGRAM'
import jax.numpy as jnp
from flax import serialization

target = {"kernel": jnp.zeros((2, 3))}


def restored(saved, target):
    """What from_bytes makes of it, or the name of what it raises."""
    try:
        tree = serialization.from_bytes(target, serialization.to_bytes(saved))
    except ValueError:
        return "ValueError"
    return {name: str(leaf.dtype) + str(list(leaf.shape)) for name, leaf in tree.items()}


found = {
    "other shape and dtype": restored({"kernel": jnp.ones((2, 5), jnp.float16)}, target),
    "more names": restored({"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}, target),
    "fewer names": restored({}, target),
    "a longer list": restored({"kernels": [jnp.ones(1)] * 2}, {"kernels": [jnp.ones(1)]}),
}
for name, value in found.items():
    print(f"{name}: {value}")
assert list(found.values()) == [{"kernel": "float16[2, 5]"}, {"kernel": "float32[2, 3]"}, "ValueError", "ValueError"]
PROGRAM
"$folder/venv/bin/python" "$folder/restore.py"
# Seen on 2026-11-29:
# other shape and dtype: {'kernel': 'float16[2, 5]'}
# more names: {'kernel': 'float32[2, 3]'}
# fewer names: ValueError
# a longer list: ValueError
