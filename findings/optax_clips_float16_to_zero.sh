#!/usr/bin/env bash
# optax 0.2.8 with jax 0.10.2 (and 0.12.0.1), clip_by_global_norm of gradients in float16.
#
# Clipping is there for gradients that are large, and one expects that it shortens them and keeps their direction. The norm is computed
# in the gradients' dtype: in float16, the square of 256 is infinite already, and so is the norm of gradients of which each could be
# held well. They are divided by it, and all updates are 0: nothing is trained, and nothing is NaN that a check would find. Under a loss
# scale, as it is used with float16, gradients of this size are usual. Gradients in bfloat16 and float32 are clipped as one expects.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
cat > "$folder/clip.py" <<'PROGRAM'
import jax.numpy as jnp
import optax

clip = optax.clip_by_global_norm(1.0)


def clipped(dtype, value):
    """The norm of four such gradients, and what is left of each."""
    gradients = jnp.full(4, value, dtype)
    updates, _ = clip.update(gradients, clip.init(gradients))
    return float(optax.global_norm(gradients)), [float(update) for update in updates]


found = {(dtype.__name__, value): clipped(dtype, value) for dtype in (jnp.float32, jnp.bfloat16, jnp.float16) for value in (64.0, 256.0)}
for (dtype, value), (norm, updates) in found.items():
    print(f"{dtype}, four times {value}: norm {norm}, clipped to {updates}")
assert found["float32", 256.0] == found["bfloat16", 256.0] == (512.0, [0.5] * 4)
assert found["float16", 64.0] == (128.0, [0.5] * 4)
assert found["float16", 256.0] == (float("inf"), [0.0] * 4)
PROGRAM
"$folder/venv/bin/python" "$folder/clip.py"
# Seen on 2026-11-29:
# float32, four times 64.0: norm 128.0, clipped to [0.5, 0.5, 0.5, 0.5]
# float32, four times 256.0: norm 512.0, clipped to [0.5, 0.5, 0.5, 0.5]
# bfloat16, four times 64.0: norm 128.0, clipped to [0.5, 0.5, 0.5, 0.5]
# bfloat16, four times 256.0: norm 512.0, clipped to [0.5, 0.5, 0.5, 0.5]
# float16, four times 64.0: norm 128.0, clipped to [0.5, 0.5, 0.5, 0.5]
# float16, four times 256.0: norm inf, clipped to [0.0, 0.0, 0.0, 0.0]
