#!/usr/bin/env bash
# jax 0.10.2 (and 0.12.0.1) on CPUs, jax.device_put of an array that is already there, before the original is donated.
#
# One keeps the weights of before, for an average or to go back, with `before = jax.device_put(weights)`, and donates `weights` to the
# training step. One expects that device_put made a second array, the more so if it is told a device and returns a new object. Both are
# one buffer: the step deletes it, and `before` is deleted with it, as are the results of jnp.asarray, of astype to its own dtype and of
# reshape to its own shape. jnp.array and device_put(may_alias=False) make copies.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat > "$folder/donate.py" <<'PROGRAM'
import jax
import jax.numpy as jnp

weights = jnp.arange(4.0)
before = {
    "device_put": jax.device_put(weights),
    "device_put, its device": jax.device_put(weights, jax.devices()[0]),
    "asarray": jnp.asarray(weights),
    "astype": weights.astype(weights.dtype),
    "reshape": weights.reshape(4),
    "device_put(may_alias=False)": jax.device_put(weights, may_alias=False),
    "array": jnp.array(weights),
}
objects = {name: array is not weights for name, array in before.items()}
jax.jit(lambda weights: weights + 1, donate_argnums=0)(weights)
deleted = {name: array.is_deleted() for name, array in before.items()}
print("other objects:", objects)
print("deleted:      ", deleted)
assert weights.is_deleted() and not objects["device_put"] and objects["device_put, its device"]
assert list(deleted.values()) == [True] * 5 + [False] * 2
PROGRAM
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/donate.py"
# Seen on 2026-11-29:
# other objects: {'device_put': False, 'device_put, its device': True, 'asarray': False, 'astype': False, 'reshape': False,
#     'device_put(may_alias=False)': True, 'array': True}
# deleted:       {'device_put': True, 'device_put, its device': True, 'asarray': True, 'astype': True, 'reshape': True,
#     'device_put(may_alias=False)': False, 'array': False}
