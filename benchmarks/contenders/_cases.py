"""What all contenders train: the cases, their data, and initial weights that depend only on a weight's name. Uses only NumPy."""

import dataclasses
import zlib

import numpy as np

VOCABULARY = 256


@dataclasses.dataclass(frozen=True)
class Case:
    """One model, and how it is trained.

    Args:
        name: The name of the case.
        title: The title in tables.
        shape: The shape of an example.
        batch: The global batch size.
        steps: The number of steps of a round, which is one shuffled epoch.
        steps_per_execution: The argument of the same name in ``compile``.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    batch: int
    steps: int
    steps_per_execution: int = 1


CASES = {
    case.name: case
    for case in (
        Case("cnn", "Fashion-MNIST CNN of the guides", (28, 28, 1), 128, 20),
        Case("mlp", "MLP 784-512-512-10", (784,), 128, 50),
        Case("resnet", "ResNet, 8 layers, 32x32x3, BatchNorm", (32, 32, 3), 128, 6),
        Case("transformer", "Transformer, 4 layers, width 128, 128 tokens", (128,), 32, 4),
        Case("tiny", "MLP 16-32-10, fit with steps_per_execution=10", (16,), 32, 500, steps_per_execution=10),
    )
}


def data(case: Case, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Make examples for so many steps: float32 images with a class that can be learned, or int32 tokens and the next tokens."""
    rng = np.random.default_rng(0)
    rows = steps * case.batch
    if case.name == "transformer":
        tokens = rng.integers(0, VOCABULARY, (rows, *case.shape), dtype=np.int32)
        return tokens, (3 * tokens + 1) % VOCABULARY
    x = rng.normal(size=(rows, *case.shape)).astype(np.float32)
    projection = rng.normal(size=(x[0].size, 10)).astype(np.float32)
    return x, (x.reshape(rows, -1) @ projection).argmax(1).astype(np.int32)


def draw(layer: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw the initial weights of a layer, which are the same for every library. `shape` has the outputs last."""
    rng = np.random.default_rng(zlib.crc32(layer.encode()))
    return (0.05 * rng.normal(size=shape)).astype(np.float32)
