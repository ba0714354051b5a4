"""The command line that the Keras examples share."""

from __future__ import annotations

import argparse
from pathlib import Path

from _datasets import NAMES


def parse(description: str, argv: list[str] | None, *, epochs: int, replicas: int, batch_size: int) -> argparse.Namespace:
    """Read the options. The numbers are their defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", choices=NAMES, default="digits", help="the images (default: %(default)s)")
    parser.add_argument(
        "--data-dir", type=Path, help="folder with the four IDX .gz files of mnist or fashion_mnist (default: download)"
    )
    parser.add_argument("--epochs", type=positive_int, default=epochs, help="number of epochs (default: %(default)s)")
    parser.add_argument(
        "--replicas", type=positive_int, default=replicas, help="use at most this many devices (default: %(default)s)"
    )
    parser.add_argument(
        "--batch-size-per-replica", type=positive_int, default=batch_size, help="examples per replica (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    if options.data == "digits" and options.data_dir is not None:
        parser.error("--data-dir works only with --data mnist and --data fashion_mnist: the digits come with scikit-learn")
    return options


def positive_int(text: str) -> int:
    """Read a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
