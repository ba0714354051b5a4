"""PyTorch: one process with all threads, or DistributedDataParallel over gloo with one process per replica."""

import argparse
import atexit
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from _cases import VOCABULARY, data, draw
from _serve import Round, parse, serve

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
torch: Any = importlib.import_module("torch")
nn: Any = torch.nn
relu: Any = nn.functional.relu


class CNN(nn.Module):
    """The network of ``_models.py``, with channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dense0, self.logits = nn.Linear(1600, 64), nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        x = nn.functional.max_pool2d(relu(self.conv0(x)), 2)
        x = nn.functional.max_pool2d(relu(self.conv1(x)), 2)
        return self.logits(relu(self.dense0(x.flatten(1))))


class MLP(nn.Module):
    """The network of ``_models.py``."""

    def __init__(self, inputs: int, *units: int) -> None:
        super().__init__()
        for i, n in enumerate(units):
            setattr(self, f"dense{i}", nn.Linear(inputs, n))
            inputs = n
        self.logits, self._depth = nn.Linear(inputs, 10), len(units)

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        for i in range(self._depth):
            x = relu(getattr(self, f"dense{i}")(x))
        return self.logits(x)


class ResNet(nn.Module):
    """The network of ``_models.py``, except that a convolution with stride 2 pads both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), norm2d(16)
        channels, self._blocks = 16, ((16, 1), (32, 2), (64, 2))
        for i, (filters, stride) in enumerate(self._blocks):
            setattr(self, f"block{i}_conv0", nn.Conv2d(channels, filters, 3, stride, 1, bias=False))
            setattr(self, f"block{i}_conv1", nn.Conv2d(filters, filters, 3, padding=1, bias=False))
            setattr(self, f"block{i}_norm0", norm2d(filters))
            setattr(self, f"block{i}_norm1", norm2d(filters))
            if stride > 1:
                setattr(self, f"block{i}_shortcut", nn.Conv2d(channels, filters, 1, stride, bias=False))
            channels = filters
        self.logits = nn.Linear(channels, 10)

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        x = relu(self.norm(self.conv(x)))
        for i, (_, stride) in enumerate(self._blocks):
            y = relu(getattr(self, f"block{i}_norm0")(getattr(self, f"block{i}_conv0")(x)))
            y = getattr(self, f"block{i}_norm1")(getattr(self, f"block{i}_conv1")(y))
            x = relu(y + (x if stride == 1 else getattr(self, f"block{i}_shortcut")(x)))
        return self.logits(x.mean((2, 3)))


def norm2d(channels: int) -> Any:
    """Make a batch normalization with Keras's settings."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class Attention(nn.Module):
    """Causal attention with four heads of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.attention_output = (nn.Linear(128, 128) for _ in range(4))

    def forward(self, x: Any) -> Any:
        """Return the attention's output, in the shape of `x`."""
        q, k, v = (project(x).unflatten(-1, (4, 32)).transpose(1, 2) for project in (self.query, self.key, self.value))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attention_output(y.transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """The network of ``_models.py``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 128)
        for i in range(4):
            setattr(self, f"block{i}_norm0", nn.LayerNorm(128, eps=1e-3))
            setattr(self, f"block{i}_attention", Attention())
            setattr(self, f"block{i}_norm1", nn.LayerNorm(128, eps=1e-3))
            setattr(self, f"block{i}_dense0", nn.Linear(128, 512))
            setattr(self, f"block{i}_dense1", nn.Linear(512, 128))
        self.norm, self.logits = nn.LayerNorm(128, eps=1e-3), nn.Linear(128, VOCABULARY)

    def forward(self, x: Any) -> Any:
        """Return the logits of each position."""
        x = self.embedding(x)
        for i in range(4):
            x = x + getattr(self, f"block{i}_attention")(getattr(self, f"block{i}_norm0")(x))
            y = getattr(self, f"block{i}_dense0")(getattr(self, f"block{i}_norm1")(x))
            x = x + getattr(self, f"block{i}_dense1")(relu(y))
        return self.logits(self.norm(x))


MODELS: dict[str, Callable[[], Any]] = {
    "cnn": CNN,
    "mlp": lambda: MLP(784, 512, 512),
    "tiny": lambda: MLP(16, 32),
    "resnet": ResNet,
    "transformer": Transformer,
}


def initialise(model: Any) -> None:
    """Set the initial weights of all contenders, in PyTorch's layouts."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            layer, what = name.rsplit(".", 1)
            if weight.ndim > 1:
                weight.copy_(initial(layer.replace(".", "/"), tuple(weight.shape)))
            elif what == "bias":
                weight.zero_()


def initial(layer: str, shape: tuple[int, ...]) -> Any:
    """Return the initial weights of one layer. `shape` is in PyTorch's layout."""
    if len(shape) == 4:
        return torch.from_numpy(draw(layer, (*shape[2:], shape[1], shape[0]))).permute(3, 2, 0, 1)
    if layer == "embedding":
        return torch.from_numpy(draw(layer, shape))
    drawn = torch.from_numpy(draw(layer, shape[::-1]))
    if shape[1] == 1600:  # after a flattened image, in which channels come first here
        drawn = drawn.reshape(5, 5, 64, -1).permute(2, 0, 1, 3).reshape(1600, -1)
    return drawn.T


def make(args: argparse.Namespace) -> Callable[[], Round]:
    """Make a round of training by this process and those of the other replicas."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.replicas))
    if args.store is None:
        args.store = tempfile.mkstemp(prefix="replicant-bench-")[1]
        atexit.register(Path(args.store).unlink, missing_ok=True)
    others = [start(args, rank) for rank in range(1, args.replicas)] if args.rank == 0 else []
    train = training(args)
    first = True

    def train_all() -> Round:
        nonlocal first
        for process in [] if first else others:  # they begin the first round without being asked
            assert process.stdin
            print("go", file=process.stdin, flush=True)
        first = False
        loss = train()
        answers = [json.loads(process.stdout.readline()) for process in others if process.stdout]
        loss = (loss + sum(a["loss"] for a in answers)) / (1 + len(answers))
        return Round(loss, sum(a["processor"] for a in answers))

    return train_all


def start(args: argparse.Namespace, rank: int) -> subprocess.Popen[str]:
    """Start another replica. It ends with this process, because its standard input ends."""
    command = [sys.executable, __file__, args.case.name, "--replicas", str(args.replicas), "--steps", str(args.steps)]
    command += ["--deadline", str(args.deadline), "--rank", str(rank), "--store", args.store]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def training(args: argparse.Namespace) -> Callable[[], float]:
    """Make this replica's share of a round."""
    x, y = map(torch.from_numpy, data(args.case, args.steps))
    if x.ndim == 4:
        x = x.permute(0, 3, 1, 2).contiguous()
    model = MODELS[args.case.name]()
    initialise(model)
    if args.replicas > 1:
        timeout = timedelta(seconds=args.deadline)
        method = f"file://{args.store}"
        torch.distributed.init_process_group("gloo", method, timeout, world_size=args.replicas, rank=args.rank)
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), eps=1e-7, fused=True)
    share, random = args.case.batch // args.replicas, torch.Generator().manual_seed(1)

    def train() -> float:
        total, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        order = torch.randperm(len(x), generator=random).long()
        for rows in order.reshape(args.steps, args.replicas, share)[:, args.rank]:
            labels = y[rows].long()
            optimizer.zero_grad()
            logits = model(x[rows])
            loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                total += loss.detach()
                correct += (logits.argmax(-1) == labels).sum()
        return float(total) / args.steps

    return train


def ranks(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that one replica gives to another."""
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--store", help="the file through which the processes find each other")


if __name__ == "__main__":
    serve(parse(ranks), make)
