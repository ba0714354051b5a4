"""Reads files of other libraries: ArrayRecord, LitData, MDS and token ids, by Replicant and by those libraries.

Each reads the files in a process of its own, once before the pass that counts. The processes alternate. Printed are examples per
second of processor time, by the medians, and the median of the ratios of each pair. The peers' Python needs litdata,
mosaicml-streaming, grain and array_record. Run: ``python benchmarks/readers.py --peers-python /tmp/peers/bin/python [--rounds 5]
[--case litdata]``.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

_PROGRAM = Path(__file__).parent / "contenders" / "reads_shards.py"
_SECONDS = 600


class Case(NamedTuple):
    """A format, whose files the peers' Python writes, the reader to compare with, ours, and how many times as fast it should be."""

    name: str
    files: str
    theirs: str
    ours: str
    size: int
    goal: float


CASES = [
    Case("array_record", "array_record", "array record by grain", "array record by replicant", 64, 1.0),
    Case("litdata", "litdata", "litdata by litdata", "litdata by replicant", 64, 2.0),
    Case("litdata one by one", "litdata", "litdata by litdata", "litdata by replicant", 1, 2.0),
    Case("mds", "mds", "mds by streaming", "mds by replicant", 64, 2.0),
    Case("mds one by one", "mds", "mds by streaming", "mds by replicant", 1, 2.0),
    Case("tokens", "tokens", "tokens by memmap", "tokens by replicant", 64, 0.8),
    Case("shuffled tokens", "tokens", "shuffled tokens by memmap", "shuffled tokens by replicant", 64, 0.8),
]


def call(python: str, *arguments: str) -> str:
    """Return the last line that a process prints."""
    done = subprocess.run([python, str(_PROGRAM), *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return (done.stdout.splitlines() or [""])[-1]


def rate(python: str, reader: str, folder: Path, size: int) -> float:
    """Return the examples per second of processor time of a process."""
    found = json.loads(call(python, reader, str(folder), str(size)))
    return found["examples"] / found["seconds"]


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers-python", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", choices=[case.files for case in CASES])
    options = parser.parse_args()
    print("| files | batch | compared with | theirs | Replicant | ratio | goal |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        for case in CASES:
            if options.case not in (None, case.files):
                continue
            folder = Path(place) / case.files
            if not folder.exists():
                folder.mkdir()
                call(options.peers_python, f"write {case.files}", str(folder), "0")
            pairs = [
                (rate(options.peers_python, case.theirs, folder, case.size), rate(sys.executable, case.ours, folder, case.size))
                for _ in range(options.rounds)
            ]
            theirs, ours = (statistics.median(rates) for rates in zip(*pairs, strict=True))
            ratio = statistics.median(our / their for their, our in pairs)
            what = f"| {case.name} | {case.size} | {case.theirs.rpartition(' ')[2]} | {theirs:,.0f}/s | {ours:,.0f}/s"
            print(f"{what} | {ratio:.2f} | {case.goal} |", flush=True)


if __name__ == "__main__":
    main()
