#!/usr/bin/env bash
# orbax-checkpoint 0.12.8, CheckpointManager.save of a step that is not newer than the newest.
#
# After a loss has exploded, one restores an older step and trains on from there, with other data. One expects that the saves of the
# steps that follow replace those of the bad run, as files of the same name do, or that they raise. They do neither: `save` returns
# False and writes nothing until the step exceeds the newest one there is. A program that restarts in between gets the weights of the
# bad run back. `force=True` raises StepAlreadyExistsError; deleting the newer steps first helps.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 orbax-checkpoint==0.12.8
cat > "$folder/steps.py" <<'PROGRAM'
import pathlib
import sys

import jax.numpy as jnp
import orbax.checkpoint as ocp

with ocp.CheckpointManager(pathlib.Path(sys.argv[1]).resolve() / "steps") as manager:

    def save(step, value, **options):
        written = manager.save(step, args=ocp.args.StandardSave({"w": jnp.full(1, value)}), **options)
        manager.wait_until_finished()
        return written

    bad_run = [save(step, -1.0) for step in (10, 20, 30)]
    again = [save(step, 1.0) for step in (15, 20, 30)]  # trained on from 10
    kept = float(manager.restore(manager.latest_step())["w"][0])
    print(f"bad run: {bad_run}; again from 10: {again}; steps {manager.all_steps()}; the newest has {kept}")
    assert (bad_run, again, list(manager.all_steps()), kept) == ([True] * 3, [False] * 3, [10, 20, 30], -1.0)
    try:
        save(20, 1.0, force=True)
        raise SystemExit("force=True wrote a step that was there")
    except ocp.checkpoint_manager.StepAlreadyExistsError:
        print("force=True: StepAlreadyExistsError")
    for step in (20, 30):
        manager.delete(step)
    assert [save(step, 1.0) for step in (15, 20, 30)] == [True] * 3
    assert float(manager.restore(30)["w"][0]) == 1.0
PROGRAM
"$folder/venv/bin/python" "$folder/steps.py" "$folder"
# Seen on 2026-11-29:
# bad run: [True, True, True]; again from 10: [False, False, False]; steps [10, 20, 30]; the newest has -1.0
# force=True: StepAlreadyExistsError
