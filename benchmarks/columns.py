"""Reads the numeric columns of a Parquet file in batches: `ParquetDataset`, and `datasets` (Hugging Face) with its NumPy format.

Rounds alternate between the two, after one that does not count. `datasets` has converted the file to its own format before. Printed
are the medians of the processor time, and the median of the ratios of each pair. Run: ``python benchmarks/columns.py [--rows
400000] [--columns 8] [--batch 128 1024] [--rounds 7]``.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from replicant.data import ParquetDataset


def written(folder: Path, rows: int, columns: int) -> Path:
    """Write a file of so many columns of float32 and a label, in row groups of 50,000 rows."""
    random = np.random.default_rng(0)
    data = {f"x{i}": random.standard_normal(rows, dtype=np.float32) for i in range(columns)}
    path = folder / "numbers.parquet"
    pq.write_table(pa.table({**data, "y": random.integers(0, 10, rows)}), path, row_group_size=50_000)
    return path


def seconds(read: Callable[[], int], rows: int) -> float:
    """Return the processor time of one pass, which must give all rows."""
    begin = time.process_time()
    found = read()
    taken = time.process_time() - begin
    assert found == rows, f"{found} rows instead of {rows}"
    return taken


def main() -> None:
    """Print a line for each batch size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), options.rows, options.columns)
        theirs: Any = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=folder).with_format("numpy")
        for size in options.batch:
            ours = ParquetDataset(path, batch_rows=size)
            pairs = [
                (
                    seconds(lambda size=size: sum(len(batch["y"]) for batch in theirs.iter(batch_size=size)), options.rows),
                    seconds(lambda ours=ours: sum(len(batch["y"]) for batch in ours), options.rows),
                )
                for _ in range(options.rounds + 1)
            ][1:]
            their, our = (statistics.median(times) for times in zip(*pairs, strict=True))
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"batches of {size}: datasets {their:.3f} s, ParquetDataset {our:.3f} s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
