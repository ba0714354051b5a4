#!/usr/bin/env bash
# webdataset 1.0.2, WebDataset.with_epoch(n) over shards that hold more than n samples.
#
# with_epoch gives all workers epochs of one length, so that none waits for another. One expects that an epoch takes the next n
# samples, and that after some epochs all samples were seen. But each epoch opens the shards anew, and ends after n samples: the
# samples that follow are never read, however long one trains. `.repeat()` before it changes nothing. With `resampled=True`, each epoch
# begins with shards that are drawn at random.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check webdataset==1.0.2
cat > "$folder/epochs.py" <<'PROGRAM'
import pathlib
import sys

import webdataset

FOLDER = pathlib.Path(sys.argv[1])
paths = [str(FOLDER / f"{shard}.tar") for shard in range(2)]
for shard, path in enumerate(paths):
    with webdataset.TarWriter(path) as writer:
        for number in range(5 * shard, 5 * shard + 5):
            writer.write({"__key__": f"{number:02d}", "cls": number})


def epochs(dataset):
    """The labels of three epochs of four samples."""
    dataset = dataset.with_epoch(4)
    return [[int(sample["cls"]) for sample in dataset] for _ in range(3)]


plain = epochs(webdataset.WebDataset(paths, shardshuffle=False))
repeated = epochs(webdataset.WebDataset(paths, shardshuffle=False).repeat())
print("with_epoch(4):          ", plain)
print("repeat().with_epoch(4): ", repeated)
assert plain == repeated == [[0, 1, 2, 3]] * 3
PROGRAM
"$folder/venv/bin/python" "$folder/epochs.py" "$folder"
# Seen on 2026-11-29:
# with_epoch(4):           [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
# repeat().with_epoch(4):  [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
