"""PyTorch, eager or compiled: one process with all threads, or DistributedDataParallel over gloo with one process per replica.

Cases of a GPU have one process, which uses autocast, channels last for images, and pinned memory.
"""

import argparse
import atexit
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from _cases import data
from _serve import Round, parse, serve

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional

COMPILER = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # that torch.compile takes on CPUs
GPU_COMPILERS = (os.environ["CC"],) if "CC" in os.environ else ("gcc", "clang")  # of which Triton takes the first for GPUs
GPU = "cuda"


def make(args: argparse.Namespace) -> Callable[[], Round]:
    """Make a round of training by this process and those of the other replicas."""
    if args.compiled:
        check_compiler(on_gpu=args.case.gpu)
    if not args.case.gpu:  # the compiler reads it when it is first used
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes, which would have to be ended
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.replicas))
    if args.store is None:
        args.store = tempfile.mkstemp(prefix="replicant-bench-")[1]
        atexit.register(Path(args.store).unlink, missing_ok=True)
    others = [start(args, rank) for rank in range(1, args.replicas)] if args.rank == 0 else []
    train = training_on_gpu(args) if args.case.gpu else training(args)
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
        return Round(loss, sum(a["processor"] for a in answers), sum(a["memory"] for a in answers))

    return train_all


def check_compiler(*, on_gpu: bool) -> None:
    """End the process if ``torch.compile`` would not find its compiler."""
    compilers = GPU_COMPILERS if on_gpu else (COMPILER,)
    if not any(shutil.which(compiler.split()[0]) for compiler in compilers):
        sys.exit(f"torch.compile needs a {'C' if on_gpu else 'C++'} compiler, and there is no {' or '.join(compilers)}")


def start(args: argparse.Namespace, rank: int) -> subprocess.Popen[str]:
    """Start another replica. It ends with this process, because its standard input ends."""
    command = [sys.executable, __file__, args.case.name, "--replicas", str(args.replicas), "--steps", str(args.steps)]
    command += ["--deadline", str(args.deadline), "--rank", str(rank), "--store", args.store]
    command += ["--compiled"] if args.compiled else []
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def training(args: argparse.Namespace) -> Callable[[], float]:
    """Make this replica's share of a round."""
    x, y = map(torch.from_numpy, data(args.case, args.steps))
    if x.ndim == 4:
        x = x.permute(0, 3, 1, 2).contiguous()
    model: Any = importlib.import_module("_torch_models").make_model(args.case.network or args.case.name)
    if args.replicas > 1:
        timeout = timedelta(seconds=args.deadline)
        method = f"file://{args.store}"
        torch.distributed.init_process_group("gloo", method, timeout, world_size=args.replicas, rank=args.rank)
        model = torch.nn.parallel.DistributedDataParallel(model)
    if args.compiled:
        model = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), eps=1e-7, fused=True)
    share, random = args.case.batch // args.replicas, torch.Generator().manual_seed(1)
    first = True

    def train() -> float:
        nonlocal first
        total, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        order = torch.arange(len(x)) if first else torch.randperm(len(x), generator=random).long()
        first = False
        for rows in order.reshape(args.steps, args.replicas, share)[:, args.rank]:
            labels = y[rows].long()
            optimizer.zero_grad()
            logits = model(x[rows])
            if logits.ndim == 3:  # positions; cross_entropy wants the classes in the second place
                logits, labels = logits.flatten(0, 1), labels.flatten()
            loss = functional.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                total += loss.detach()
                correct += (logits.argmax(1) == labels).sum()
        return float(total) / args.steps

    return train


def training_on_gpu(args: argparse.Namespace) -> Callable[[], float]:
    """Make a round on one GPU. Nothing waits for a step before the round ends."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True  # as XLA, it tries the kernels of convolutions
    x, y = map(torch.from_numpy, data(args.case, args.steps))
    y, images = y.long(), x.ndim == 4
    model: Any = importlib.import_module("_torch_models").make_model(args.case.network or args.case.name)
    model = model.to(GPU, memory_format=torch.channels_last if images else torch.preserve_format)
    optimizer = torch.optim.Adam(model.parameters(), eps=1e-7, fused=True)
    random = torch.Generator().manual_seed(1)

    def put(values: Any, rows: Any) -> Any:
        pinned = torch.empty((len(rows), *values.shape[1:]), dtype=values.dtype, pin_memory=True)
        return torch.index_select(values, 0, rows, out=pinned).to(GPU, non_blocking=True)

    def forward(inputs: Any, labels: Any) -> tuple[Any, Any]:
        with torch.autocast(GPU, torch.bfloat16, enabled=args.case.policy == "mixed_bfloat16"):
            logits = model(inputs)
            if logits.ndim == 3:
                logits, labels = logits.flatten(0, 1), labels.flatten()
            return functional.cross_entropy(logits, labels), (logits.detach().argmax(1) == labels).sum()

    compute = torch.compile(forward) if args.compiled else forward
    first = True

    def train() -> float:
        nonlocal first
        total, correct = torch.zeros((), device=GPU), torch.zeros((), dtype=torch.int64, device=GPU)
        order = torch.arange(len(x)) if first else torch.randperm(len(x), generator=random)
        first = False
        for rows in order.reshape(args.steps, args.case.batch):
            inputs, labels = put(x, rows), put(y, rows)
            optimizer.zero_grad(set_to_none=True)
            loss, hits = compute(inputs.permute(0, 3, 1, 2) if images else inputs, labels)  # channels last stay last in memory
            loss.backward()
            optimizer.step()
            total += loss.detach()
            correct += hits
        return float(total) / args.steps

    return train


def ranks(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that one replica gives to another."""
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--store", help="the file through which the processes find each other")


if __name__ == "__main__":
    serve(parse(ranks), make)
