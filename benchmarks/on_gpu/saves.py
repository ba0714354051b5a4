"""Prints for how long a checkpoint that is written in the background holds a step."""

import statistics
import tempfile
from pathlib import Path

import _cases_here as here

MEGABYTES, ROUNDS = (16, 2) if here.DRY else (1000, 3)


def main() -> None:
    """Save and restore in rounds, and print medians."""
    import checkpoint

    with tempfile.TemporaryDirectory() as folder:
        ways = checkpoint.Ways(Path(folder), MEGABYTES)
        found = [ways.replicant() for _ in range(ROUNDS + 1)][1:]
    print(f"{ways.num_bytes / 1e6:,.0f} MB, medians of {ROUNDS} rounds\n\n| | ms |\n|---|---|")
    names = {
        "replicant held": "`write` in the background returns after",
        "step": "a step before it",
        "step while writing": "the step after it",
        "replicant write": "`write` at once",
        "replicant restore": "`read`",
    }
    for name, title in names.items():
        print(f"| {title} | {statistics.median(each[name] for each in found) * 1e3:.1f} |")


if __name__ == "__main__":
    main()
