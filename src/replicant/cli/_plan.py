"""``replicant plan``: predicts what a training step will do on devices that need not be there."""

import argparse
import contextlib
import io
import os
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._whole_file import write_whole
from ..errors import ArgumentError, CommandError
from ._named_function import named_function

SUMMARY = "Predict what a program's training step will do on a topology: memory, exchanges, time and scaling."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``replicant plan``."""
    parser.add_argument("program", metavar="SCRIPT|MODULE:FUNCTION", help="the training program, which ends at its first step")
    parser.add_argument("--topology", required=True, help="the devices: cpu:8, gpu:8xh100, v5e:16x16, or v6e:16x16*4 (4 slices)")
    parser.add_argument(
        "--args", default="", metavar="'ARG ...'", help="arguments for the script, as one string: --args='--epochs 3'"
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--quick", action="store_true", help="for TPUs: compile with less effort, in a tenth of the time")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the scaling curve into this file")


def main(arguments: argparse.Namespace) -> int:
    """Make the plan and print it. Returns 1 if the step does not fit into memory."""
    _start_no_devices()
    program = _program(arguments.program, shlex.split(arguments.args))
    from ..plan import make_plan
    from ..plan._plot import scaling_plot
    from ..plan._waiting import waiting

    printed = io.StringIO()  # what the program prints
    with waiting("replicant plan", in_logs=True), contextlib.redirect_stdout(printed):
        plan = make_plan(program, arguments.topology, quick=arguments.quick)
    if arguments.plot is not None:
        try:
            write_whole(arguments.plot, scaling_plot(plan))
        except OSError as error:
            raise CommandError(f"--plot {str(arguments.plot)!r} cannot be written: {error.strerror}.") from error
    print(plan.to_json() if arguments.json else plan)
    return 0 if plan.fits else 1


def _start_no_devices() -> None:
    """Make JAX use the CPU: the devices of the plan need not be there, and other programs may use those that are."""
    import jax

    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # for processes that the program starts
    config: Any = jax.config  # type checkers do not know its options, and it has already read the environment
    if not config.jax_platforms:
        config.update("jax_platforms", os.environ["JAX_PLATFORMS"])


def _program(text: str, arguments: list[str]) -> Callable[[], Any]:
    path = Path(text)
    if path.suffix == ".py":
        if not path.is_file():
            raise ArgumentError(f"The script {text!r} does not exist.")
        return lambda: _run_script(path, arguments)
    return named_function(text, "neither a script (SCRIPT.py) nor MODULE:FUNCTION")


def _run_script(path: Path, arguments: list[str]) -> None:
    before = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if end.code:  # otherwise it has ended without an error, and without a training step
            raise
    finally:
        sys.argv, sys.path[:] = before
