"""Reads rows of CSV files: `CsvDataset` with a file without quotes, and with the same rows where texts or all fields are quoted.

Rounds alternate between the files. Printed are the medians of the processor time, the rows in a
second, and the median of the ratios to the file without quotes of the same round. Run: ``python benchmarks/csv_quotes.py
[--megabytes 100] [--rounds 3]``.
"""

import argparse
import csv
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from replicant.data import CsvDataset

QUOTING = {"none": csv.QUOTE_NONE, "texts": csv.QUOTE_NONNUMERIC, "all fields": csv.QUOTE_ALL}


def written(path: Path, megabytes: int, quoting: Any) -> int:
    """Write rows of two numbers and two texts, as many as take so many megabytes without quotes. Return their number."""
    rows = [(number, number / 64, f"user {number % 977}", "one of a few words that a review may hold") for number in range(10_000)]
    each = sum(len(",".join(map(str, row))) + 1 for row in rows)
    times = max(1, round(megabytes * 1e6 / each))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=quoting, lineterminator="\n")
        for _ in range(times):
            writer.writerows(rows)
    return times * len(rows)


def seconds(path: Path, rows: int) -> float:
    """Return the processor time of one pass, which must give all rows."""
    begin = time.process_time()
    found = sum(len(batch[0]) for batch in CsvDataset(path, ["int32", "float32", str, str]).batch(1024))
    taken = time.process_time() - begin
    assert found == rows, f"{found} rows instead of {rows}"
    return taken


def main() -> None:
    """Print a line for each file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{number}.csv" for number, name in enumerate(QUOTING)}
        rows = {name: written(path, options.megabytes, QUOTING[name]) for name, path in paths.items()}
        rounds = [{name: seconds(path, rows[name]) for name, path in paths.items()} for _ in range(options.rounds)]
        for name, path in paths.items():
            taken = statistics.median(each[name] for each in rounds)
            speed = statistics.median(each["none"] / each[name] for each in rounds)
            print(
                f"quotes: {name}: {path.stat().st_size / 1e6:.0f} MB, {taken:.2f} s, {rows[name] / taken:,.0f} rows a second, "
                f"{speed:.2f} of the speed without quotes"
            )


if __name__ == "__main__":
    main()
