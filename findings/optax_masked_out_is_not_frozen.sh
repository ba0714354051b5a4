#!/usr/bin/env bash
# optax 0.2.8 with jax 0.10.2 (and 0.12.0.1), optax.masked around an optimizer to train some of the parameters.
#
# optax.masked(optax.sgd(0.1), mask) applies the optimizer where the mask is True. One expects that the rest stays as it is. But the
# gradients of the rest pass through unchanged and are the updates: apply_updates adds them, so these parameters move by a whole
# gradient at once, uphill. Nothing is raised; after fine-tuning a head this way, the frozen backbone is lost. optax.partition with
# optax.set_to_zero for the rest does freeze it.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
cat > "$folder/train.py" <<'PROGRAM'
import jax
import jax.numpy as jnp
import optax


def steps(optimizer):
    """The loss backbone**2 + head**2 before and after each of two steps from 1, and the parameters."""
    loss = lambda weights: sum(jnp.sum(weight**2) for weight in weights.values())  # noqa: E731
    weights = {"backbone": jnp.ones(1), "head": jnp.ones(1)}
    state = optimizer.init(weights)
    losses = [float(loss(weights))]
    for _ in range(2):
        updates, state = optimizer.update(jax.grad(loss)(weights), state, weights)
        weights = optax.apply_updates(weights, updates)
        losses.append(round(float(loss(weights)), 4))
    return losses, {name: round(float(weight[0]), 4) for name, weight in weights.items()}


masked = steps(optax.masked(optax.sgd(0.25), {"backbone": False, "head": True}))
labels = {"backbone": "frozen", "head": "trained"}
frozen = steps(optax.partition({"trained": optax.sgd(0.25), "frozen": optax.set_to_zero()}, labels))
print("masked:   ", *masked)
print("partition:", *frozen)
assert masked == ([2.0, 9.25, 81.0625], {"backbone": 9.0, "head": 0.25})
assert frozen == ([2.0, 1.25, 1.0625], {"backbone": 1.0, "head": 0.25})
PROGRAM
"$folder/venv/bin/python" "$folder/train.py"
# Seen on 2026-11-29:
# masked:    [2.0, 9.25, 81.0625] {'backbone': 9.0, 'head': 0.25}
# partition: [2.0, 1.25, 1.0625] {'backbone': 1.0, 'head': 0.25}
