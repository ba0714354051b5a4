#!/usr/bin/env bash
# orbax-checkpoint 0.12.8, CheckpointManager with `best_fn` and `max_to_keep`, for a training that may be interrupted.
#
# With `max_to_keep=2` alone, the newest two steps are kept. With `best_fn`, one expects that the best two are kept as well as the
# newest, since `latest_step()` is where a training continues. But the newest is deleted as soon as it is written, unless it is among
# the best: `save` returns True and `latest_step()` then names an older step. The longer no step is among the best, the further a
# restart goes back: here from step 6 to step 3, and after each restart again.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 orbax-checkpoint==0.12.8
cat > "$folder/best.py" <<'PROGRAM'
import pathlib
import sys

import jax.numpy as jnp
import orbax.checkpoint as ocp

FOLDER = pathlib.Path(sys.argv[1]).resolve()
ACCURACY = {1: 0.9, 2: 0.1, 3: 0.8, 4: 0.2, 5: 0.3, 6: 0.4}


def latest_steps(name, **options):
    """After each save that returned True, the newest step there is; and the steps at the end."""
    latest = []
    with ocp.CheckpointManager(FOLDER / name, options=ocp.CheckpointManagerOptions(max_to_keep=2, **options)) as manager:
        for step, accuracy in ACCURACY.items():
            assert manager.save(step, args=ocp.args.StandardSave({"w": jnp.ones(1)}), metrics={"accuracy": accuracy})
            manager.wait_until_finished()
            latest.append(manager.latest_step())
        return latest, list(manager.all_steps())


newest = latest_steps("newest")
best = latest_steps("best", best_fn=lambda metrics: metrics["accuracy"], best_mode="max")
print("without best_fn:", *newest)
print("with best_fn:   ", *best)
assert newest == ([1, 2, 3, 4, 5, 6], [5, 6])
assert best == ([1, 2, 3, 3, 3, 3], [1, 3])
PROGRAM
"$folder/venv/bin/python" "$folder/best.py" "$folder"
# Seen on 2026-11-29:
# without best_fn: [1, 2, 3, 4, 5, 6] [5, 6]
# with best_fn:    [1, 2, 3, 3, 3, 3] [1, 3]
