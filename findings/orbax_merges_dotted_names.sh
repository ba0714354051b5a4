#!/usr/bin/env bash
# orbax-checkpoint 0.12.8, StandardCheckpointer, a tree in which one name holds a dot.
#
# {"a": {"b": ...}, "a.b": ...} has two leaves. Flattened dicts of weights have names with dots, and one keeps them next to nested
# ones. One expects two arrays back, or an error. But both leaves are stored under "a.b". If their shapes and dtypes are equal, save
# and restore succeed, with a target as well as without one, and both leaves get the same values: the array of one of them is lost.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 orbax-checkpoint==0.12.8
cat > "$folder/save.py" <<'PROGRAM'
import pathlib
import sys

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

FOLDER = pathlib.Path(sys.argv[1]).resolve()


def saved(name, tree):
    """The tree, saved and restored without and with a target."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(FOLDER / name, tree)
        checkpointer.wait_until_finished()
        restored = (checkpointer.restore(FOLDER / name), checkpointer.restore(FOLDER / name, jax.tree.map(jnp.zeros_like, tree)))
    return [jax.tree.map(lambda leaf: leaf.tolist(), tree) for tree in restored]


one, two = jnp.full(2, 1.0), jnp.full(2, 2.0)
merged = saved("merged", {"a": {"b": one}, "a.b": two})
apart = saved("apart", {"a": {"b": one}, "a/b": two})
print("a.b:", *merged)
print("a/b:", *apart)
assert all(tree["a"]["b"] == tree["a.b"] for tree in merged)
assert all(tree == {"a": {"b": [1.0, 1.0]}, "a/b": [2.0, 2.0]} for tree in apart)
PROGRAM
"$folder/venv/bin/python" "$folder/save.py" "$folder"
# Seen on 2026-11-29:
# a.b: {'a': {'b': [1.0, 1.0]}, 'a.b': [1.0, 1.0]} {'a': {'b': [1.0, 1.0]}, 'a.b': [1.0, 1.0]}
# a/b: {'a': {'b': [1.0, 1.0]}, 'a/b': [2.0, 2.0]} {'a': {'b': [1.0, 1.0]}, 'a/b': [2.0, 2.0]}
