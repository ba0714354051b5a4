"""Plans the decoders of ``examples/large_model.py`` with all their layers, for TPUs that are not there: memory, exchanges and time.

Compiling dozens of equal layers takes hours. So programs with two and with three layers are compiled, and what the third one adds
counts for each further one. Only temporaries differ too much from one program to the next: for each further layer, they grow by
two inputs of a block (without rematerialization, as with the third layer). Weights and state follow from the shapes. Operations
are counted by the compiler, and the time follows from them and from the data sheet of the chip (``replicant.plan``). Without
--full, the compiler makes little effort and exchanges otherwise than the program that will run; then the exchanges follow from
the shapes, too: weights are gathered for the forward and for the backward pass, and gradients are summed, all in the dtype in
which layers compute. What stands after ``--`` goes to ``large_model.py``. With a model axis, a device gathers its share of each
weight, and the all-reduces of activations are those of the compiled programs. With micro-batches, weights are gathered for each of
them, a device keeps the gradients of all weights in float32, and the operations of the compiled loop count once for each of its
rounds. The exchanges of a program with --mirrored are known with --full alone.

Run: ``python benchmarks/large_models.py --size 7b --topology v5e:16x16 [v6e:8x8 ...] [--full] [-- --batch-size-per-replica 2]``.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import large_model
from replicant.plan import make_plan
from replicant.plan._chips import parse_target
from replicant.plan._estimate import times_of
from replicant.plan._exchanges import Exchange, ring_bytes

GIB = 1 << 30
COMPILED = (2, 3)  # layers
COLUMNS = "size, devices, options, parameters, state, temporaries, in all, of, fits, sent, compute, exchange, step, tokens/s"
TITLE = f"| {COLUMNS.replace(', ', ' | ')} |\n{'|---' * (COLUMNS.count(',') + 1)}|"


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one device holds and does in a step, in bytes and operations.

    Args:
        state: The weights, the optimizer's state and the batch.
        temporary: Temporary arrays.
        flops: Operations.
        traffic: Bytes to and from the memory.
        ring: Bytes of an all-reduce that sends as much as all exchanges.
    """

    state: float
    temporary: float
    flops: float
    traffic: float
    ring: float

    def with_layers(self, three: "Figures", layers: int, kept: float) -> "Figures":
        """Return the figures for `layers` layers, of which `self` has two and `three` has three. A layer keeps `kept` bytes."""
        more = layers - COMPILED[0]
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(three), strict=True)
        line = Figures(*[two + more * (other - two) for two, other in pairs])
        return dataclasses.replace(line, temporary=self.temporary + more * kept) if kept else line


def figures_of(options: argparse.Namespace, *, full: bool) -> Figures:
    """Compile a program."""
    plan = make_plan(lambda: large_model.train(options), options.plan, quick=not full)
    state = plan.bytes_per_device - plan.compiled.temporary_bytes - plan.compiled.code_bytes
    exchanges = plan.compiled.exchanges
    ring = ring_bytes(exchanges if full else by_rule(options, plan.target.num_devices, exchanges))
    rounds = options.accumulate_steps  # of a loop, whose body the compiler counts once
    flops, traffic = rounds * plan.compiled.flops, rounds * plan.compiled.memory_bytes
    return Figures(state, plan.compiled.temporary_bytes, flops, traffic, ring)


def by_rule(options: argparse.Namespace, num_devices: int, compiled: Iterable[Exchange]) -> list[Exchange]:
    """Return the exchanges of a step: all but the embedding is gathered in both directions, and replicas share activations."""
    k, steps = options.model_parallel_size, options.accumulate_steps
    n, shares = num_devices // k, parameters(options) // k
    gathered = steps * (2 * shares - options.vocabulary * options.width // k) * size_of(options)
    summed = shares * (size_of(options) if steps == 1 else 4)
    shared = [x for x in compiled if x.kind == "all-reduce" and x.group_size == k and k > 1]
    return [Exchange("all-gather", gathered, 0), Exchange("reduce-scatter", summed // n, n), *shared]


def kept_by_layer(options: argparse.Namespace) -> float:
    """Return the bytes by which each further layer lets temporaries grow; 0: as the third one does.

    That is two inputs of a block, of one micro-batch, and its gradients if they are added up.
    """
    if not options.remat:
        return 0
    inputs = options.batch_size_per_replica // options.accumulate_steps * options.length * options.width * size_of(options)
    gradients = 4 * (12 * options.width**2 + 9 * options.width) // options.model_parallel_size
    return 2 * inputs + (gradients if options.accumulate_steps > 1 else 0)


def size_of(options: argparse.Namespace) -> int:
    """Return the bytes of a number in the dtype in which layers compute."""
    return 4 if options.policy == "float32" else 2


def parameters(options: argparse.Namespace) -> int:
    """Return the number of parameters: attention, two dense layers with biases and two normalizations in each block."""
    width = options.width
    return options.layers * (12 * width**2 + 9 * width) + 2 * width + 2 * options.vocabulary * width


def row(size: str, topology: str, extra: list[str], *, full: bool) -> str:
    """Plan one size on one topology, as a row of the table."""
    given = ["--size", size, "--plan", topology, *extra]
    options = large_model.parse(given)
    two, three = (figures_of(large_model.parse([*given, "--layers", str(n)]), full=full) for n in COMPILED)
    all_layers = two.with_layers(three, options.layers, kept_by_layer(options))
    target = parse_target(topology)
    chip, n = target.chip, target.num_devices
    assert chip is not None, "a CPU has no data sheet here"
    known = full or not options.mirrored
    work: dict[str, Any] = {"flops": all_layers.flops, "memory_bytes": all_layers.traffic, "num_devices": n}
    times = times_of(chip, **work, exchanged_bytes=all_layers.ring if known else 0)
    needed = all_layers.state + all_layers.temporary
    tokens = options.batch_size_per_replica * options.length * n // options.model_parallel_size
    cells = [
        size,
        topology,
        " ".join(extra) or "-",
        f"{parameters(options) / 1e9:.1f} B",
        f"{all_layers.state / GIB:.2f} GiB",
        f"{all_layers.temporary / GIB:.1f} GiB",
        f"{needed / GIB:.1f} GiB",
        f"{chip.memory / GIB:.0f} GiB",
        "yes" if needed <= chip.memory else "no",
        f"{2 * all_layers.ring / 1e9:.1f} GB" if known else "-",
        f"{max(times.compute, times.memory):.2f} s",
        f"{times.network:.2f} s" if known else "-",
        f"{times.step:.2f} s" if known else "-",
        f"{tokens / times.step:,.0f}" if known else "-",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Print the table."""
    arguments, extra = sys.argv[1:], list[str]()
    if "--" in arguments:
        arguments, extra = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    parser = argparse.ArgumentParser(description="Plan decoders with all their layers.")
    parser.add_argument("--size", nargs="+", choices=large_model.SIZES, default=["1.3b", "7b", "70b"])
    parser.add_argument("--topology", nargs="+", default=["v5e:16x16"])
    parser.add_argument("--full", action="store_true", help="compile with full effort, and count the compiled exchanges")
    options = parser.parse_args(arguments)
    print(TITLE, flush=True)
    for size in options.size:
        for topology in options.topology:
            print(row(size, topology, extra, full=options.full), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
