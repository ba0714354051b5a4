#!/usr/bin/env bash
# optax 0.2.8 with jax 0.10.2 (and 0.12.0.1), optax.inject_hyperparams around adam, parameters in bfloat16.
#
# One wraps an optimizer in inject_hyperparams to change its learning rate while it trains, and expects the same updates as without.
# But its hyperparameters, those that one never meant to change among them, are cast to the dtype of the first gradient. In bfloat16,
# b1=0.9 becomes 0.8984, and b2=0.999 becomes 1: the correction of the second moment, 1 - b2**step, is 0, and so the very first
# update is NaN in all places. Nothing is raised or logged. With parameters in float32, or with `hyperparam_dtype=jnp.float32`, the
# updates are those of adam.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
cat > "$folder/update.py" <<'PROGRAM'
import jax.numpy as jnp
import optax


def first_update(optimizer, dtype):
    """The update of one parameter whose gradient is 0.5, and the optimizer's b1 and b2."""
    state = optimizer.init(jnp.ones(1, dtype))
    update, state = optimizer.update(jnp.full(1, 0.5, dtype), state)
    used = getattr(state, "hyperparams", {})
    return float(update[0]), [round(float(used[name]), 4) for name in ("b1", "b2") if name in used]


injected = optax.inject_hyperparams(optax.adam)(learning_rate=0.125)
in_float32 = optax.inject_hyperparams(optax.adam, hyperparam_dtype=jnp.float32)(learning_rate=0.125)
found = {
    "adam, bfloat16": first_update(optax.adam(0.125), jnp.bfloat16),
    "injected, float32": first_update(injected, jnp.float32),
    "injected, bfloat16": first_update(injected, jnp.bfloat16),
    "injected in float32, bfloat16": first_update(in_float32, jnp.bfloat16),
}
for name, value in found.items():
    print(f"{name}: {value}")
assert str(found["injected, bfloat16"]) == "(nan, [0.8984, 1.0])"
assert abs(found["adam, bfloat16"][0] + 0.125) < 0.001
assert abs(found["injected, float32"][0] + 0.125) < 0.001
assert abs(found["injected in float32, bfloat16"][0] + 0.125) < 0.001
PROGRAM
"$folder/venv/bin/python" "$folder/update.py"
# Seen on 2026-11-29:
# adam, bfloat16: (-0.125, [])
# injected, float32: (-0.125, [0.9, 0.999])
# injected, bfloat16: (nan, [0.8984, 1.0])
# injected in float32, bfloat16: (-0.125, [0.9, 0.999])
