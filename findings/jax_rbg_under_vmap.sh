#!/usr/bin/env bash
# jax 0.10.2 (and 0.12.0.1) on CPUs, jax.vmap over keys of the generators "rbg" and "unsafe_rbg".
#
# These generators are chosen for their speed on TPUs (jax_default_prng_impl). One gives each replica or example a key of its own,
# draws under jax.vmap, and expects what a loop over the keys gives, as with the usual "threefry2x32". But the numbers of all come
# from the first key: the other keys do not matter at all. Replicas still differ from each other, and so nobody notices; but the
# numbers of a key depend on its neighbours, and two steps whose first keys are equal draw the same for every replica.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat > "$folder/draw.py" <<'PROGRAM'
import jax
import jax.numpy as jnp


def draw(kind, seeds):
    """Numbers from the keys of these seeds: each alone, and under vmap."""
    keys = [jax.random.key(seed, impl=kind) for seed in seeds]
    alone = [round(float(jax.random.uniform(key)), 4) for key in keys]
    return alone, [round(float(value), 4) for value in jax.vmap(jax.random.uniform)(jnp.stack(keys))]


found = {}
for kind in ("threefry2x32", "rbg", "unsafe_rbg"):
    found[kind] = [draw(kind, seeds) for seeds in ((0, 1, 2), (0, 7, 8))]
    print(kind)
    for seeds, (alone, together) in zip(((0, 1, 2), (0, 7, 8)), found[kind], strict=True):
        print(f"  seeds {seeds}: alone {alone}, under vmap {together}")
assert all(alone == together for alone, together in found["threefry2x32"])
for kind in ("rbg", "unsafe_rbg"):
    (alone, together), (other_alone, other_together) = found[kind]
    assert together == other_together  # although two of the three keys are others
    assert alone[1:] != other_alone[1:] and alone[1:] != together[1:] and alone[0] == together[0]
PROGRAM
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/draw.py"
# Seen on 2026-11-29:
# threefry2x32
#   seeds (0, 1, 2): alone [0.9477, 0.4386, 0.6408], under vmap [0.9477, 0.4386, 0.6408]
#   seeds (0, 7, 8): alone [0.9477, 0.6741, 0.2906], under vmap [0.9477, 0.6741, 0.2906]
# rbg
#   seeds (0, 1, 2): alone [0.399, 0.5056, 0.5382], under vmap [0.399, 0.8805, 0.7357]
#   seeds (0, 7, 8): alone [0.399, 0.724, 0.7806], under vmap [0.399, 0.8805, 0.7357]
# unsafe_rbg
#   seeds (0, 1, 2): alone [0.399, 0.5056, 0.5382], under vmap [0.399, 0.8805, 0.7357]
#   seeds (0, 7, 8): alone [0.399, 0.724, 0.7806], under vmap [0.399, 0.8805, 0.7357]
