"""Compares the steps per second of Replicant and TensorFlow on parameter servers.

There are 2 servers and 2 workers, or ``--workers N``, all on this machine. The models are two dense layers of 100 KB or 50 MB with
batch 32, or two embeddings of 500,000 x 32 with 128 lookups each and a dense tower, all with SGD. Rounds alternate, and medians are
printed. With ``--slow``, one worker sleeps in each of its steps, and Replicant is compared with itself.

Run: ``python benchmarks/parameter_server.py --tensorflow PYTHON [small large embedding] [--rounds 5]``, where PYTHON is an
interpreter with TensorFlow. Without it, only Replicant is measured.
"""

import argparse
import statistics
import sys

from _rounds import Measured, alternate
from contenders._ps_cases import CASES, WORKERS


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare Replicant and TensorFlow on parameter servers.")
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="case", help="one of " + ", ".join(CASES))
    parser.add_argument("--tensorflow", help="a Python interpreter with TensorFlow")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=240, help="the time for each case")
    parser.add_argument("--workers", type=int, default=WORKERS, help="the number of workers")
    parser.add_argument("--slow", type=float, default=0.0, help="the seconds that one of the workers sleeps in each step")
    return parser.parse_args()


def rate(found: Measured, steps: int) -> float | None:
    """Return the median steps per second."""
    return steps / statistics.median(found.seconds) if found.seconds else None


def main() -> None:
    """Measure, and print the table."""
    args = parse()
    print(f"{'case':<10} {'contender':<22} {'steps/s':>9} {'spread':>17}   ratio")
    for name in args.cases:
        options = [name, "--workers", str(args.workers)]
        commands = {"replicant": (sys.executable, "with_replicant_ps.py", options)}
        if args.slow:
            commands["one slow worker"] = (sys.executable, "with_replicant_ps.py", [*options, "--slow", str(args.slow)])
        elif args.tensorflow:
            commands["tensorflow"] = (args.tensorflow, "with_tensorflow_ps.py", options)
        found = alternate(commands, rounds=args.rounds, seconds=args.seconds, deadline=200)
        steps = CASES[name].steps
        ours = rate(found["replicant"], steps)
        for contender, measured in found.items():
            theirs = rate(measured, steps)
            if theirs is None or ours is None:
                print(f"{name:<10} {contender:<22} {measured.failed}")
                continue
            spread = f"{steps / max(measured.seconds):.0f} to {steps / min(measured.seconds):.0f}"
            ratio = "" if contender == "replicant" else f"{ours / theirs:.2f}"
            print(f"{name:<10} {contender:<22} {theirs:>9.1f} {spread:>17}   {ratio}", flush=True)


if __name__ == "__main__":
    main()
