#!/usr/bin/env bash
# grain 0.2.18, DataLoader with grain.transforms.Batch and several worker processes.
#
# `worker_count` says how many processes prepare the batches. One expects that it changes how fast they come, not which they are. But
# each worker makes batches of its own, from every n-th record: 10 records in batches of 4 are [0..3], [4..7], [8, 9] without
# workers, four batches with two workers, and three batches of 4, 3 and 3 records with three. With `drop_remainder=True`, each worker
# drops a remainder of its own: 8 records are seen in two steps without workers, and 4 in a single step with three. An epoch has
# another number of steps on a machine with more cores, and a learning rate schedule, or hosts with unequal counts, follow it.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check grain==0.2.18
cat > "$folder/load.py" <<'PROGRAM'
import grain
import numpy as np
from absl import app


def batches(workers, drop_remainder):
    loader = grain.DataLoader(
        data_source=np.arange(10),
        sampler=grain.samplers.SequentialSampler(10),
        operations=[grain.transforms.Batch(4, drop_remainder=drop_remainder)],
        worker_count=workers,
    )
    return [batch.tolist() for batch in loader]


def main(_):
    found = {(workers, drop): batches(workers, drop) for drop in (False, True) for workers in (0, 2, 3)}
    for (workers, drop), value in found.items():
        print(f"worker_count={workers}, drop_remainder={drop}: {value}")
    assert found == {
        (0, False): [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]],
        (2, False): [[0, 2, 4, 6], [1, 3, 5, 7], [8], [9]],
        (3, False): [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]],
        (0, True): [[0, 1, 2, 3], [4, 5, 6, 7]],
        (2, True): [[0, 2, 4, 6], [1, 3, 5, 7]],
        (3, True): [[0, 3, 6, 9]],
    }


if __name__ == "__main__":
    app.run(main)
PROGRAM
"$folder/venv/bin/python" "$folder/load.py"
# Seen on 2026-11-29:
# worker_count=0, drop_remainder=False: [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
# worker_count=2, drop_remainder=False: [[0, 2, 4, 6], [1, 3, 5, 7], [8], [9]]
# worker_count=3, drop_remainder=False: [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
# worker_count=0, drop_remainder=True: [[0, 1, 2, 3], [4, 5, 6, 7]]
# worker_count=2, drop_remainder=True: [[0, 2, 4, 6], [1, 3, 5, 7]]
# worker_count=3, drop_remainder=True: [[0, 3, 6, 9]]
