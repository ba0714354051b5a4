"""Tokenizes texts and packs the tokens into rows: `pack_sequences` against Grain's first fit and `datasets.map`.

All use the same tokenizer of `tokenizers`, in one thread and in several, and make rows of the same length. `datasets` packs 1,000
texts at a time, with a function of its own, and writes its result to a file. Rounds alternate, after one that does not count.
Printed are tokens per second, the share of padding, and the median of the ratios of each round. Needs `pip install grain datasets
tokenizers`. Run: ``python benchmarks/packing.py [--texts 20000] [--length 512] [--rounds 5]``.
"""

import argparse
import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from replicant.data import Dataset

grain: Any = importlib.import_module("grain.python")  # it is not installed for development
packing: Any = importlib.import_module("grain.experimental")

THREADS = 2
BINS = 9  # open packs: those of lookback=8 and the newest one


def made(count: int) -> list[str]:
    """Texts of 5 to 600 words, most of them short."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(map(chr, rng.integers(97, 123, rng.integers(2, 9)))) for _ in range(3000)])
    sizes = np.clip(rng.lognormal(4.5, 0.9, count), 5, 600).astype(int)
    return [" ".join(words[rng.zipf(1.3, size) % len(words)]) for size in sizes]


def trained(texts: list[str]) -> Tokenizer:
    """A byte-pair encoding of these texts."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))  # noqa: S106 - a token of another kind
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(special_tokens=["[UNK]"], vocab_size=4000, show_progress=False)
    tokenizer.train_from_iterator(texts[:2000], trainer)
    return tokenizer


class Ways:
    """What is measured: each method yields arrays of token ids, in which 0 is padding."""

    def __init__(self, texts: list[str], length: int, folder: Path):
        self.texts, self.length, self.folder = texts, length, folder
        tokenizer = trained(texts)
        self.encode: Callable[[Any], np.ndarray] = lambda text: np.asarray(tokenizer.encode(str(text)).ids[:length], np.int32) + 1
        self.number = 0

    def replicant(self, threads: int | None = None) -> Iterator[np.ndarray]:
        """`pack_sequences`."""
        encoded = Dataset.from_tensor_slices(self.texts).map(self.encode, num_parallel_calls=threads)
        return (pack["tokens"] for pack in encoded.pack_sequences(self.length, lookback=BINS - 1))

    def replicant_threads(self) -> Iterator[np.ndarray]:
        """The same, tokenized in threads."""
        return self.replicant(THREADS)

    def grain(self) -> Iterator[np.ndarray]:
        """Grain's first fit, which emits all open packs together; its threads tokenize."""
        encoded = grain.MapDataset.source(self.texts).map(lambda text: {"tokens": self.encode(text)})
        read = encoded.to_iter_dataset(grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=64))
        packs = packing.FirstFitPackIterDataset(
            read, length_struct={"tokens": self.length}, num_packing_bins=BINS, shuffle_bins=False
        )
        return (pack["tokens"] for pack in packs)

    def mapped(self) -> Iterator[np.ndarray]:
        """`datasets.map`: tokens first, then first fit in each batch of 1,000."""
        source = datasets.Dataset.from_dict({"text": self.texts})
        self.number += 1
        encoded = source.map(
            lambda batch: {"tokens": [self.encode(text) for text in batch["text"]]},
            batched=True,
            remove_columns="text",
            cache_file_name=str(self.folder / f"encoded-{self.number}.arrow"),
        )
        packed = encoded.map(
            lambda batch: {"tokens": first_fit(batch["tokens"], self.length)},
            batched=True,
            cache_file_name=str(self.folder / f"packed-{self.number}.arrow"),
        )
        rows: Any = packed.with_format("numpy")
        return (row["tokens"] for row in rows)


def first_fit(sequences: list[list[int]], length: int) -> list[np.ndarray]:
    """Rows of these sequences, of which each lies in the first row with room for it."""
    rows: list[list[int]] = []
    for sequence in sequences:
        row = next((row for row in rows if len(row) + len(sequence) <= length), None)
        if row is None:
            rows.append(list(sequence))
        else:
            row.extend(sequence)
    return [np.pad(np.asarray(row, np.int32), (0, length - len(row))) for row in rows]


def measured(rows: Iterator[np.ndarray], began: float) -> tuple[float, int, float]:
    """Return seconds, tokens and the share of padding."""
    num_rows = tokens = size = 0
    for row in rows:
        num_rows, size = num_rows + 1, len(row)
        tokens += int(np.count_nonzero(row))
    return time.perf_counter() - began, tokens, 1 - tokens / (num_rows * size)


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    datasets.disable_progress_bars()
    names = ["replicant", "replicant_threads", "grain", "mapped"]
    with tempfile.TemporaryDirectory() as folder:
        ways = Ways(made(options.texts), options.length, Path(folder))
        rounds = []
        for _ in range(options.rounds + 1):
            results = {}
            for name in names:
                began = time.perf_counter()
                results[name] = measured(getattr(ways, name)(), began)
            assert len({tokens for _, tokens, _ in results.values()}) == 1, "all pack the same tokens"
            rounds.append(results)
    for name in names:
        speeds = [each[name][1] / each[name][0] for each in rounds[1:]]
        print(f"{name:18} {statistics.median(speeds):12,.0f} tokens/s   padding {rounds[0][name][2]:.1%}")
    for name in ("grain", "mapped"):
        ratios = sorted(each[name][0] / each["replicant_threads"][0] for each in rounds[1:])
        print(f"replicant_threads / {name}: {statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]")


if __name__ == "__main__":
    main()
