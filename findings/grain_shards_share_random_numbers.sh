#!/usr/bin/env bash
# grain 0.2.18, MapDataset.random_map after the dataset was sliced into shards.
#
# Each host takes its shard, `dataset[rank::world]`, and augments it with random_map under one seed for all. One expects that
# every record gets random numbers of its own, because the slices are of one dataset. But random_map seeds the generator with the
# position in the dataset that it is called on: the first records of all hosts get the same random numbers, the second ones as well,
# and so on. A global batch has as many different augmentations as a host has records, not as it has records itself. Where
# random_map comes before the slice, all numbers differ.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check grain==0.2.18
cat > "$folder/augment.py" <<'PROGRAM'
import grain

WORLD = 2


class Augment(grain.transforms.RandomMap):
    def random_map(self, element, rng):
        return int(rng.integers(1_000_000))


records = grain.MapDataset.range(8).seed(0)
sliced_first = [list(records[rank::WORLD].random_map(Augment())) for rank in range(WORLD)]
sliced_last = [list(records.random_map(Augment())[rank::WORLD]) for rank in range(WORLD)]
print("slice, random_map:", sliced_first)
print("random_map, slice:", sliced_last)
assert sliced_first[0] == sliced_first[1] and len(set(sliced_first[0])) == 4
assert len(set(sliced_last[0] + sliced_last[1])) == 8
PROGRAM
"$folder/venv/bin/python" "$folder/augment.py"
# Seen on 2026-11-29:
# slice, random_map: [[926688, 268409, 599826, 855920], [926688, 268409, 599826, 855920]]
# random_map, slice: [[822696, 239988, 970350, 419262], [869547, 787744, 384398, 189866]]
