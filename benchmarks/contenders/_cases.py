"""What all contenders train: the cases, their data, and initial weights that depend only on a weight's name. Uses only NumPy."""

import dataclasses
import os
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

VOCABULARY, WORDS = 256, 20_000  # of the transformer and of the text classifier
CATEGORIES = (50_000, 30_000, 20_000, 10_000, 5_000, 1_000, 500, 100, 50, 10)  # the sizes of the categorical columns
CROSSED = 20_000  # the size of the column that crosses two others
COUNTS = 4  # columns of numbers
COLUMNS = (len(CATEGORIES) + 1 + COUNTS,)

MOBILENET_BLOCKS = ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1))  # filters and stride
UNET_LEVELS = (16, 32, 64)  # filters
VIT_WIDTH, VIT_LAYERS = 192, 6
RESNET50_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # filters of the 3x3 convolutions, and blocks
RESNET50_CLASSES, SQUARE = 1000, 32  # classes, and the size of a square of one colour
GPT2_VOCABULARY, GPT2_LENGTH, GPT2_WIDTH, GPT2_HEADS, GPT2_LAYERS = 50_304, 1024, 768, 12, 12
DRY = bool(os.environ.get("BENCHMARK_DRY"))  # tiny cases in place of those for a GPU, on the CPU
if DRY:
    RESNET50_STAGES = ((8, 1), (16, 1))
    GPT2_VOCABULARY, GPT2_LENGTH, GPT2_WIDTH, GPT2_HEADS, GPT2_LAYERS = 512, 32, 64, 2, 1


@dataclasses.dataclass(frozen=True)
class Case:
    """One model, and how it is trained.

    Args:
        name: The name of the case.
        title: The title in tables.
        shape: The shape of an example.
        batch: The global batch size.
        steps: The number of steps of a round, which is one epoch.
        milliseconds: What a step takes on two cores, roughly, for the estimate of the time.
        dtype: The dtype of an example.
        tolerance: By how much the first losses of contenders may differ, as a share of their median.
        all_contenders: Whether contenders that are left out elsewhere take part without being asked for.
        steps_per_execution: The argument of the same name in ``compile``.
        network: The name of the network, if it is not that of the case.
        gpu: Whether it is measured on one GPU. All others are measured on CPUs.
        policy: The dtype policy of Keras. PyTorch uses its autocast where this is "mixed_bfloat16".
    """

    name: str
    title: str
    shape: tuple[int, ...]
    batch: int
    steps: int
    milliseconds: float
    dtype: str = "float32"
    tolerance: float = 0.002
    all_contenders: bool = False
    steps_per_execution: int = 1
    network: str | None = None
    gpu: bool = False
    policy: str = "float32"


CASES = {
    case.name: case
    for case in (
        Case("cnn", "Fashion-MNIST CNN of the guides", (28, 28, 1), 128, 20, 40),
        Case("mlp", "MLP 784-512-512-10", (784,), 128, 50, 10),
        Case("resnet", "ResNet, 8 layers, 32x32x3, BatchNorm", (32, 32, 3), 128, 6, 220, tolerance=0.02),
        Case("transformer", "Transformer, 4 layers, width 128, 128 tokens", (128,), 32, 4, 380, "int32", tolerance=0.02),
        Case("tiny", "MLP 16-32-10, fit with steps_per_execution=10", (16,), 32, 500, 1.5, steps_per_execution=10),
        Case("lstm", "LSTM text classifier, 128 units, 200 of 20,000 words", (200,), 32, 6, 200, "int32", all_contenders=True),
        Case("mobilenet", "MobileNet-like, 96x96x3", (96, 96, 3), 32, 6, 150, tolerance=0.02, all_contenders=True),
        Case("unet", "U-Net, 3 levels, 128x128x3", (128, 128, 3), 4, 6, 250, all_contenders=True),
        Case("wide_deep", "Wide & deep, 10 embeddings", COLUMNS, 512, 20, 40, "int32", 0.01, all_contenders=True),
        Case("vit", "ViT-tiny, 6 layers, 64x64x3, patches of 8x8", (64, 64, 3), 16, 6, 250, tolerance=0.01, all_contenders=True),
    )
}


def _on_a_gpu(*args: Any, network: str | None = None) -> Case:
    """Make a case in bfloat16 for one GPU.

    Its tolerance is larger than in float32. Libraries round to bfloat16 (8 bits) at different places, and the loss is the mean of
    the first round, in which Adam makes these differences larger.
    """
    return Case(*args, tolerance=0.02, all_contenders=True, network=network, gpu=True, policy="mixed_bfloat16")


# Cases that take part only if they are named. Six contenders share the memory of one GPU, so their batches are not larger.
GPU_CASES = {
    case.name: case
    for case in (
        _on_a_gpu("cnn_bf16", "Fashion-MNIST CNN, bfloat16", (28, 28, 1), 1024, 50, 4, network="cnn"),
        _on_a_gpu("resnet50", "ResNet-50 v1.5, bfloat16, 224x224x3", (224, 224, 3), 128, 10, 60, "uint8"),
        _on_a_gpu("gpt2", "GPT-2 small, bfloat16, 1024 tokens", (GPT2_LENGTH,), 8, 10, 60, "int32"),
    )
}
if DRY:
    _SIZES: dict[str, dict[str, Any]] = {
        "cnn_bf16": {"batch": 64, "steps": 4},
        "resnet50": {"batch": 4, "steps": 2, "shape": (64, 64, 3)},
        "gpt2": {"batch": 2, "steps": 2, "shape": (GPT2_LENGTH,)},
    }
    GPU_CASES = {
        name: dataclasses.replace(case, title=f"{case.title}, dry", gpu=False, tolerance=0.1, **_SIZES[name])
        for name, case in GPU_CASES.items()
    }
ALL_CASES = CASES | GPU_CASES


def data(case: Case, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Make examples for so many steps, with labels that can be learned."""
    rng = np.random.default_rng(0)
    return (DATA | GPU_DATA).get(case.name, _classified)(case, rng, steps * case.batch)


def _classified(case: Case, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Make float32 examples of ten classes."""
    x = rng.normal(size=(rows, *case.shape)).astype(np.float32)
    projection = rng.normal(size=(x[0].size, 10)).astype(np.float32)
    return x, (x.reshape(rows, -1) @ projection).argmax(1).astype(np.int32)


def _next_tokens(case: Case, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Make tokens, and the next token at each position."""
    tokens = rng.integers(0, VOCABULARY, (rows, *case.shape), dtype=np.int32)
    return tokens, (3 * tokens + 1) % VOCABULARY


def _images(case: Case, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Make images of squares of one colour each, in bytes. The first square tells the class.

    Deep layers see no difference between images of noise. BatchNorm would make their rounding errors large instead.
    """
    height, width, channels = case.shape
    squares = rng.integers(0, 256, (rows, height // SQUARE, width // SQUARE, channels), dtype=np.uint8)
    y = (4 * squares[:, 0, 0, 0].astype(np.int32) + squares[:, 0, 0, 1] % 4) % RESNET50_CLASSES
    return squares.repeat(SQUARE, axis=1).repeat(SQUARE, axis=2), y


def _words(case: Case, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Make tokens of a large vocabulary, and the next token at each position."""
    tokens = rng.integers(0, GPT2_VOCABULARY, (rows, *case.shape), dtype=np.int32)
    return tokens, (3 * tokens + 1) % GPT2_VOCABULARY


def _texts(case: Case, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Make texts of two classes, which have one word in ten from a vocabulary of their own."""
    y = rng.integers(0, 2, rows, dtype=np.int32)
    x = rng.integers(0, WORDS, (rows, *case.shape), dtype=np.int32)
    return np.where(rng.random(x.shape) < 0.1, x % 100 + 100 * y[:, None], x), y


def _segmented(case: Case, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Make images, and the strongest colour of each pixel."""
    x = rng.normal(size=(rows, *case.shape)).astype(np.float32)
    return x, x.argmax(-1).astype(np.int32)


def _columns(_: Case, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Make rows of categories, of a category that crosses two of them, and of counts, with two classes."""
    categories = np.stack([rng.integers(0, size, rows) for size in CATEGORIES], 1)
    crossed = (categories[:, 5] * CATEGORIES[6] + categories[:, 6]) % CROSSED
    counts = rng.poisson(5, (rows, COUNTS))
    y = (categories[:, -1] + counts.sum(1) > CATEGORIES[-1] / 2 + 5 * COUNTS).astype(np.int32)
    return np.column_stack([categories, crossed, counts]).astype(np.int32), y


DATA: dict[str, Callable[[Case, np.random.Generator, int], tuple[np.ndarray, np.ndarray]]] = {
    "transformer": _next_tokens,
    "lstm": _texts,
    "unet": _segmented,
    "wide_deep": _columns,
}
GPU_DATA: dict[str, Callable[[Case, np.random.Generator, int], tuple[np.ndarray, np.ndarray]]] = {
    "resnet50": _images,
    "gpt2": _words,
}


def draw(layer: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw the initial weights of a layer, which are the same for every library. `shape` is Keras's, most often outputs last."""
    rng = np.random.default_rng(zlib.crc32(layer.encode()))
    return (0.05 * rng.normal(size=shape)).astype(np.float32)
