"""Writes the folders of this folder. Run it with a Python that has litdata 0.2.76: `python tests/pure/litdata/_write.py`."""

import pathlib
import shutil

import numpy as np
import torch
from litdata import Jpeg, TokensLoader, optimize


def sample(i):
    return {
        "array": np.float32([[i, -i]]),
        "b": bytes([i]) * i,
        "f": i / 3,
        "jpg": Jpeg(bytes=b"\xff\xd8" + bytes([i])),
        "n": i - 5 * 10**12,
        "name": f"é{i}",
        "nested": (i, {"ok": i % 2 == 0}),
        "row": np.arange(i + 1, dtype=np.int16),
        "tensor": torch.tensor([[i, 2 * i]] * (i % 3 + 1)),
        "vector": torch.arange(3, dtype=torch.float16) * i,
    }


def text(i):
    return {"text": f"text {i}", "label": f"{i}"}


def lists(i):
    return {"n": i, "list": [1, 2]}


def tokens(i):
    return torch.arange(10 * i, 10 * i + 10, dtype=torch.int32)


if __name__ == "__main__":
    folder = pathlib.Path(__file__).parent
    for name, fn, settings in [
        ("plain", sample, {}),
        ("chunk", sample, {"compression": "zstd", "compression_level": "chunk"}),
        ("batch", sample, {"compression": "zstd", "compression_batch_size": 2}),
        ("sample", sample, {"compression": "zstd", "compression_level": "sample"}),
        ("arrow", text, {}),
        ("lists", lists, {}),
        ("tokens", tokens, {"item_loader": TokensLoader(block_size=8)}),
    ]:
        shutil.rmtree(folder / name, ignore_errors=True)
        size = 30 if name == "tokens" else 3
        optimize(fn, list(range(8)), str(folder / name), num_workers=1, chunk_size=size, **settings)
