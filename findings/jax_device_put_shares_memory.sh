#!/usr/bin/env bash
# jax 0.10.2 (and 0.12.0.1) on CPUs, jax.device_put of a NumPy array that is filled again.
#
# Loaders often fill one buffer again and again. One expects that device_put copies it, as it does to a GPU and as jnp.asarray does
# (of which one would sooner think that it does not). On CPUs, device_put copies only what does not begin at a multiple of 64 bytes.
# An array that does shares its memory with the jax.Array, which is immutable by all that is said: once the buffer is filled with the
# next batch, the earlier batch has its values. `may_alias=False` does not change that. Where NumPy places an array is chance, so tests
# often pass.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat > "$folder/batches.py" <<'PROGRAM'
import jax
import jax.numpy as jnp
import numpy as np


def buffer(past):
    """Sixteen numbers that begin so many bytes after a multiple of 64."""
    memory = np.zeros(192, np.uint8)
    start = -memory.ctypes.data % 64 + past
    return memory[start : start + 64].view(np.float32)


def first_batch(put, past):
    """The first of two batches from one buffer, read after the second was filled in."""
    numbers = buffer(past)
    numbers[:] = 1
    batch = put(numbers)
    numbers[:] = 2
    return float(batch[0])


found = {
    "device_put, at a multiple of 64": first_batch(jax.device_put, 0),
    "device_put, 4 bytes later": first_batch(jax.device_put, 4),
    "device_put(may_alias=False)": first_batch(lambda numbers: jax.device_put(numbers, may_alias=False), 0),
    "jnp.asarray": first_batch(jnp.asarray, 0),
    "jnp.array": first_batch(jnp.array, 0),
}
print(found)
assert list(found.values()) == [2.0, 1.0, 2.0, 1.0, 1.0]
PROGRAM
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/batches.py"
# Seen on 2026-11-29:
# {'device_put, at a multiple of 64': 2.0, 'device_put, 4 bytes later': 1.0, 'device_put(may_alias=False)': 2.0, 'jnp.asarray': 1.0,
#     'jnp.array': 1.0}
