"""Measures what checkpoints cost: how long they hold a step, and bytes per second against the disk, Keras and Orbax.

A model of 400 MB is saved and restored in alternating rounds, with ``fsync`` in every write. "held" is the time until the next step
can begin while writing continues in the background. Orbax is measured if it is installed. Then the CNN of the guide is trained by
turns with a backup every 50 steps, with other callbacks that watch it, and without callbacks. Their cost is the median over the
rounds of the difference within a round. Run: ``python benchmarks/checkpoint.py [--rounds 5] [--megabytes 400] [--only fit]``.
"""

import argparse
import importlib.util
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import numpy as np

import replicant
from replicant.data import Dataset

ASYNC = replicant.CheckpointOptions(enable_async=True)
UNITS = 2000  # for layers of 16 MB
WARM_UP = 10  # steps of the CNN that do not count


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure the cost of checkpoints.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--steps", type=int, default=200, help="the steps of the CNN per round (default: %(default)s)")
    parser.add_argument("--only", choices=["files", "fit", "slices"], help="print only one of the tables")
    parser.add_argument("--dir", type=Path, default=None, help="the folder to write to (default: the temporary directory)")
    return parser.parse_args()


def timed(action: Callable[[], Any]) -> float:
    """Return the seconds that `action` takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def sync(file: Path) -> None:
    """Wait until the file is on the disk."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


class Ways:
    """The ways to write and read one model. Each method returns seconds by name."""

    def __init__(self, folder: Path, megabytes: int):
        self.folder = folder
        num_layers = max(1, round(megabytes * 1e6 / (4 * UNITS * UNITS)))
        layers = [keras.layers.Dense(UNITS, use_bias=False) for _ in range(num_layers)]
        self.model = keras.Sequential([keras.Input((UNITS,)), *layers])
        self.num_bytes = 4 * UNITS * UNITS * num_layers
        self.checkpoint = replicant.Checkpoint(model=self.model)
        self.bump = replicant.function(lambda: [w.assign(w.value * 1.0) for w in self.model.weights] and None)

    def disk(self) -> dict[str, float]:
        """Write and read the bytes alone."""
        arrays, file = [np.asarray(w.value) for w in self.model.weights], self.folder / "raw"

        def write() -> None:
            with file.open("wb") as stream:
                for array in arrays:
                    stream.write(array.data)
                stream.flush()
                os.fsync(stream.fileno())

        seconds = {"disk write": timed(write), "disk read": timed(lambda: np.fromfile(file, np.uint8))}
        file.unlink()
        return seconds

    def replicant(self) -> dict[str, float]:
        """Use Replicant's checkpoints, at once and in the background, between two steps that own the variables."""
        self.bump()
        seconds = {"replicant write": timed(lambda: self.checkpoint.write(self.folder / "now"))}
        seconds["replicant restore"] = timed(lambda: self.checkpoint.read(self.folder / "now").assert_consumed())
        self.bump()
        seconds["step"] = timed(lambda: (self.bump(), self.model.weights[0].value.block_until_ready()))
        self.bump()
        seconds["replicant held"] = timed(lambda: self.checkpoint.write(self.folder / "later", ASYNC))
        seconds["step while writing"] = timed(lambda: (self.bump(), self.model.weights[0].value.block_until_ready()))
        self.checkpoint.sync()
        for name in ("now", "later"):
            shutil.rmtree(self.folder / name)
        return seconds

    def keras(self) -> dict[str, float]:
        """Use Keras's own file, which has no checksums."""
        file = self.folder / "keras.weights.h5"
        seconds = {"keras write": timed(lambda: (self.model.save_weights(file), sync(file)))}
        seconds["keras restore"] = timed(lambda: self.model.load_weights(file))
        file.unlink()
        return seconds

    def orbax(self) -> dict[str, float]:
        """Use Orbax, if it is installed."""
        if importlib.util.find_spec("orbax") is None:
            return {}
        import orbax.checkpoint as ocp  # pyright: ignore[reportMissingImports] - only where it is installed

        tree = {str(i): w.value for i, w in enumerate(self.model.weights)}
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)
        checkpointer = ocp.StandardCheckpointer()
        path = self.folder / "orbax"
        seconds = {"orbax held": timed(lambda: checkpointer.save(path, tree))}
        seconds["orbax write"] = seconds["orbax held"] + timed(checkpointer.wait_until_finished)
        seconds["orbax restore"] = timed(lambda: jax.block_until_ready(checkpointer.restore(path, like)))
        checkpointer.close()
        shutil.rmtree(path)
        return seconds


class Cnn:
    """The CNN of the guide, trained on the same rows in every round."""

    def __init__(self, num_steps: int):
        self.num_steps = num_steps
        self.model = keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Conv2D(64, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        self.model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(64 * (num_steps + WARM_UP), 28, 28, 1)).astype(np.float32)
        self.dataset = Dataset.from_tensor_slices((rows, rng.integers(0, 10, len(rows)))).batch(64)

    def train(self, callbacks: list[Any]) -> float:
        """Return the seconds per step, after the first few."""
        times: list[float] = []

        class Clock(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                if batch == WARM_UP:
                    times.append(time.perf_counter())

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                times.append(time.perf_counter())

        self.model.fit(self.dataset, verbose=0, callbacks=[Clock(), *callbacks])  # pyright: ignore[reportArgumentType] - Keras annotates no datasets
        return (times[1] - times[0]) / self.num_steps


def compare_fits(folder: Path, rounds: int, num_steps: int) -> None:
    """Train by turns without callbacks, with a backup every 50 steps, and with other callbacks. All are compiled before."""
    callbacks = replicant.keras.callbacks
    ways: dict[str, Callable[[], list[Any]]] = {
        "plain": list,
        "backup every 50 steps": lambda: [callbacks.BackupAndRestore(folder / "backup", save_freq=50)],
        "TerminateOnNaN, stop": lambda: [callbacks.TerminateOnNaN("stop")],
        "StepWatchdog": lambda: [callbacks.StepWatchdog(300)],
    }
    cnns = {name: Cnn(num_steps) for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, rounds):  # the first round compiles
        for name in list(ways) if number % 2 else list(reversed(ways)):  # so that none is always the first
            took = cnns[name].train(ways[name]())
            if number >= 0:
                seconds[name].append(took)
    print(f"CNN, {rounds} rounds of {num_steps} steps; ms per step, and more than plain in the same round")
    for name, own in seconds.items():
        over = [100 * (a / b - 1) for a, b in zip(own, seconds["plain"], strict=True)]
        print(f"{name:<24} median {1e3 * statistics.median(own):7.3f}   min {1e3 * min(own):7.3f}   ", end="")
        print(f"median of the rounds {statistics.median(over):+6.2f} %   ({min(over):+.1f} to {max(over):+.1f})")


def compare_files(folder: Path, rounds: int, megabytes: int) -> None:
    """Write and read a large model in all ways by turns."""
    ways = Ways(folder, megabytes)
    found = [{**ways.disk(), **ways.replicant(), **ways.keras(), **ways.orbax()} for _ in range(rounds + 1)][1:]
    print(f"{ways.num_bytes / 1e6:.0f} MB, {rounds} rounds after one to warm up; seconds")
    for key in found[0]:
        seconds = [each[key] for each in found]
        median = statistics.median(seconds)
        print(f"{key:<20} median {median:7.3f}   min {min(seconds):7.3f}   {ways.num_bytes / median / 1e6:8.0f} MB/s")
    held = statistics.median(each["replicant held"] / each["replicant write"] for each in found)
    print(f"held / synchronous write: {100 * held:.1f} %")


class Taken(threading.Thread):
    """What an action takes: seconds, processor seconds, and megabytes of memory that the process did not have before."""

    def __init__(self, action: Callable[[], Any]):
        super().__init__()
        self._ends = threading.Event()
        began = self._most = resident()
        self.start()
        clock, processor = time.perf_counter(), time.process_time()
        action()
        self.seconds, self.processor = time.perf_counter() - clock, time.process_time() - processor
        self._ends.set()
        self.join()
        self.megabytes = (self._most - began) / 1e6

    def run(self) -> None:
        """Watch the memory."""
        while not self._ends.wait(0.005):
            self._most = max(self._most, resident())


def resident() -> int:
    """Return the bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def compare_slices(folder: Path, rounds: int, megabytes: int) -> None:
    """Save and restore a model that is mirrored on four virtual devices, and one in slices on them, by turns."""
    replicant.set_virtual_devices(4)
    cpus = [f"cpu:{i}" for i in range(4)]
    strategies = {"mirrored": replicant.MirroredStrategy(cpus), "slices": replicant.FullyShardedStrategy(cpus)}
    ways: dict[str, tuple[Any, replicant.Checkpoint]] = {}
    for name, strategy in strategies.items():
        with strategy.scope():
            ways[name] = Ways(folder, megabytes).model, replicant.Checkpoint()
        ways[name][1].model = ways[name][0]

    def step(name: str) -> None:
        weights = ways[name][0].weights
        strategies[name].run(lambda: [w.assign(w.value * 1.0) for w in weights] and None)
        jax.block_until_ready([w._value for w in weights])

    found: dict[tuple[str, str], list[Taken]] = {}
    for number in range(rounds + 1):
        for name in list(ways) if number % 2 else list(reversed(ways)):
            step(name)
            step(name)  # now the variables are the program's own
            checkpoint, path = ways[name][1], folder / name
            save = Taken(lambda c=checkpoint, p=path: c.write(p))
            restore = Taken(lambda c=checkpoint, p=path: c.read(p).assert_consumed())
            shutil.rmtree(path)
            if number:
                found.setdefault(("save", name), []).append(save)
                found.setdefault(("restore", name), []).append(restore)
    print(f"{megabytes} MB on 4 virtual devices, {rounds} rounds after one to warm up; medians")
    for (what, name), each in found.items():
        seconds, processor, memory = (
            statistics.median(getattr(t, key) for t in each) for key in ("seconds", "processor", "megabytes")
        )
        print(f"{what:<9}{name:<10}{seconds:7.2f} s {processor:7.2f} s of processor {memory:7.0f} MB more")
    for what in ("save", "restore"):
        pairs = list(zip(found[what, "slices"], found[what, "mirrored"], strict=True))
        clock, processor = (
            statistics.median(getattr(a, key) / getattr(b, key) for a, b in pairs) for key in ("seconds", "processor")
        )
        print(f"{what}: slices / mirrored, median of the pairs: {clock:.2f} by the clock, {processor:.2f} of processor time")


def main() -> None:
    """Print the tables of files and of fits, or one table."""
    options = parse()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        if options.only == "slices":  # before anything computes
            compare_slices(Path(name), options.rounds, options.megabytes)
            return
        if options.only != "fit":
            compare_files(Path(name), options.rounds, options.megabytes)
        if options.only != "files":
            compare_fits(Path(name), options.rounds, options.steps)


if __name__ == "__main__":
    main()
