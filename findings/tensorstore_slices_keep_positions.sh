#!/usr/bin/env bash
# tensorstore 0.1.86, a slice of an array, and a slice of that.
#
# A host takes its rows, `rows = array[4:8]`, and reads them in batches, rows[0:2] and rows[2:4], as one would from NumPy. But a slice
# keeps the positions of the whole array: row 4 is rows[4], and rows[0:2] raises IndexError, on every host except the first, where it
# works. Where the two ranges overlap, other rows come without an error: the last two of `rows = array[2:8]` are not rows[4:6]. A slice
# with a step divides the first position by the step, so the shards array[rank::3] begin at 0, but array[5::3] begins at 1.
# `rows[ts.d[:].translate_to[0]]` counts from 0.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorstore==0.1.86 numpy==2.4.6
cat > "$folder/slices.py" <<'PROGRAM'
import numpy as np
import tensorstore as ts

numbers = np.arange(12)
array = ts.array(numbers)


def read(rows):
    return rows.read().result().tolist()


def first(rows):
    return rows.domain.inclusive_min[0]


print("array[4:8] begins at", first(array[4:8]), "and array[5::3] at", first(array[5::3]))
assert [first(array[rank::3]) for rank in range(3)] == [0, 0, 0] and first(array[5::3]) == 1
assert first(array[4:8]) == 4 and read(array[4:8][4:6]) == [4, 5]
assert read(array[0:4][0:2]) == [0, 1]  # on the first host
try:
    read(array[4:8][0:2])
    raise SystemExit("positions count from the slice")
except IndexError:
    print("array[4:8][0:2]: IndexError")
print("array[2:8][4:6]:", read(array[2:8][4:6]), "and with NumPy", numbers[2:8][4:6].tolist())
assert read(array[2:8][4:6]) == [4, 5] and numbers[2:8][4:6].tolist() == [6, 7]
assert read(array[4:8][ts.d[:].translate_to[0]][0:2]) == [4, 5]
PROGRAM
"$folder/venv/bin/python" "$folder/slices.py"
# Seen on 2026-11-29:
# array[4:8] begins at 4 and array[5::3] at 1
# array[4:8][0:2]: IndexError
# array[2:8][4:6]: [4, 5] and with NumPy [6, 7]
