#!/usr/bin/env bash
# optax 0.2.8 and keras 3.15.1 with jax 0.10.2 (and 0.12.0.1), a learning rate that is constant between boundaries.
#
# keras.optimizers.schedules.PiecewiseConstantDecay([2], [1.0, 0.5]) and optax.piecewise_constant_schedule(1.0, {2: 0.5}) read alike,
# and both count steps from 0, so one expects that a training moved from one to the other changes its rate at the same step. Keras has
# the first value up to and including the boundary, Optax only before it: with Keras, three updates are made at the first rate, with
# Optax two. (The numbers of Optax are factors: 0.5 twice makes 0.25.)
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 keras==3.15.1
cat > "$folder/rates.py" <<'PROGRAM'
import jax.numpy as jnp
import keras
import optax

variable = keras.Variable([0.0])
of_keras = keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([2], [1.0, 0.5]))
of_keras.build([variable])
of_optax = optax.sgd(optax.piecewise_constant_schedule(1.0, {2: 0.5}))
value = jnp.zeros(1)
state = of_optax.init(value)
seen = {"keras": [], "optax": []}
for _ in range(5):
    of_keras.apply([jnp.ones(1)], [variable])
    update, state = of_optax.update(jnp.ones(1), state)
    value = optax.apply_updates(value, update)
    seen["keras"].append(float(variable.value[0]))
    seen["optax"].append(float(value[0]))
print(seen)
assert seen == {"keras": [-1.0, -2.0, -3.0, -3.5, -4.0], "optax": [-1.0, -2.0, -2.5, -3.0, -3.5]}
PROGRAM
KERAS_BACKEND=jax "$folder/venv/bin/python" "$folder/rates.py"
# Seen on 2026-11-29:
# {'keras': [-1.0, -2.0, -3.0, -3.5, -4.0], 'optax': [-1.0, -2.0, -2.5, -3.0, -3.5]}
