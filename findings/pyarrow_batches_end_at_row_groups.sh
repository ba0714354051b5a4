#!/usr/bin/env bash
# pyarrow 26.0.1, batches of 4 rows from a Parquet file with row groups of 3.
#
# Both `ParquetFile.iter_batches(batch_size=4)` and `dataset.to_batches(batch_size=4)` read a file in batches, and one expects the same
# ones: 4, 4, 2 for ten rows. The first does so across row groups. For the second, the size is a limit only: each batch ends with its
# row group, so it yields 3, 3, 3, 1, and for a size of 2, 2, 1, 2, 1, 2, 1, 1. A training step per batch then weighs rows unequally,
# and how many steps an epoch has depends on who wrote the file.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
cat > "$folder/batches.py" <<'PROGRAM'
import sys

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

path = f"{sys.argv[1]}/ten.parquet"
pyarrow.parquet.write_table(pa.table({"x": list(range(10))}), path, row_group_size=3)
found = {}
for size in (2, 4, 100):
    of_file = [len(batch) for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=size)]
    found[size] = of_file, [len(batch) for batch in pyarrow.dataset.dataset(path).to_batches(batch_size=size)]
    print(f"batch_size={size}: iter_batches {found[size][0]}, to_batches {found[size][1]}")
assert found == {
    2: ([2, 2, 2, 2, 2], [2, 1, 2, 1, 2, 1, 1]),
    4: ([4, 4, 2], [3, 3, 3, 1]),
    100: ([10], [3, 3, 3, 1]),
}
PROGRAM
"$folder/venv/bin/python" "$folder/batches.py" "$folder"
# Seen on 2026-11-29:
# batch_size=2: iter_batches [2, 2, 2, 2, 2], to_batches [2, 1, 2, 1, 2, 1, 1]
# batch_size=4: iter_batches [4, 4, 2], to_batches [3, 3, 3, 1]
# batch_size=100: iter_batches [10], to_batches [3, 3, 3, 1]
