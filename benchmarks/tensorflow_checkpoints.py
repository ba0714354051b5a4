"""Measures how fast a checkpoint of TensorFlow is read, by turns: with Replicant, and with TensorFlow if a Python has it.

Each reader reads all tensors of one bundle, in a process of its own that has read one of them before: in turn, as when a model is
restored, or all of them are held, for which the system must provide fresh memory. Given are the medians of processor and wall
seconds, the ratios of both in pairs, and the memory at the peak beyond the values that are held.
Run: ``python benchmarks/tensorflow_checkpoints.py [--mb 1000] [--tensors 50] [--rounds 5] [--peers-python /tmp/peers/bin/python]``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HOW = ("in turn", "held")
READ = """
import json, os, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
if sys.argv[1] == "tensorflow":
    import tensorflow as library
    load = library.train.load_checkpoint
else:
    import replicant as library
    load = library.load_checkpoint

def resident(what):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(what))

reader = load(sys.argv[2])
reader.get_tensor(next(iter(reader.get_variable_to_shape_map())))
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before, processor, wall = resident("VmRSS"), time.process_time(), time.perf_counter()
reader = load(sys.argv[2])
values = []
for name in reader.get_variable_to_shape_map():
    value = reader.get_tensor(name)
    if sys.argv[3] == "held":
        values.append(value)
seconds = time.process_time() - processor, time.perf_counter() - wall
beyond = resident("VmHWM") - before - sum(value.nbytes for value in values)
print(json.dumps([*seconds, beyond / 2**20]))
"""


def _write(prefix: Path, num_tensors: int, num_bytes: int) -> None:
    """Write a bundle of so many float32 tensors with so many bytes in all."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "pure"))
    import _tensorflow_files as tf  # pyright: ignore[reportMissingImports]

    generator, records = np.random.default_rng(0), {b"": tf.header()}
    with prefix.with_name(f"{prefix.name}.data-00000-of-00001").open("wb") as file:
        for i in range(num_tensors):
            values = generator.standard_normal(num_bytes // num_tensors // 4, np.float32)
            data, checksum = tf.raw(values)
            records[f"v{i:05d}".encode()] = tf.entry(1, values.shape, len(data), offset=file.tell(), checksum=tf.masked(checksum))
            file.write(data)
    prefix.with_name(f"{prefix.name}.index").write_bytes(tf.table(sorted(records.items())))


def _measure(python: str, reader: str, prefix: Path, how: str) -> list[float]:
    done = subprocess.run([python, "-c", READ, reader, str(prefix), how], capture_output=True, text=True, check=True, timeout=600)
    return json.loads(done.stdout.splitlines()[-1])


def _parsed() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=1000, help="MB of the bundle")
    parser.add_argument("--tensors", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers-python", help="a Python in which TensorFlow is installed")
    return parser.parse_args()


def main() -> None:
    """Print the table."""
    arguments = _parsed()
    os.environ.setdefault("KERAS_BACKEND", "jax")
    pythons = {"replicant": sys.executable} | ({"tensorflow": arguments.peers_python} if arguments.peers_python else {})
    found: dict[tuple[str, str], list[list[float]]] = {(how, reader): [] for how in HOW for reader in pythons}
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "ckpt"
        _write(prefix, arguments.tensors, arguments.mb * 1_000_000)
        for _ in range(arguments.rounds):
            for (how, reader), each in found.items():
                each.append(_measure(pythons[reader], reader, prefix, how))
    print(f"{arguments.mb} MB in {arguments.tensors} tensors, {arguments.rounds} rounds")
    print(f"{'':12}{'':12}{'processor s':>12}{'wall s':>9}{'MB beyond':>11}{'of replicant: processor':>26}{'wall':>7}")
    for (how, reader), each in found.items():
        processor, wall, beyond = (statistics.median(column) for column in zip(*each, strict=True))
        pairs = list(zip(found[how, "replicant"], each, strict=True))
        ratios = [statistics.median(other[i] / own[i] for own, other in pairs) for i in range(2)]
        print(f"{how:12}{reader:12}{processor:12.3f}{wall:9.3f}{beyond:11.0f}{ratios[0]:26.2f}{ratios[1]:7.2f}")


if __name__ == "__main__":
    main()
