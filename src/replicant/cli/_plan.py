"""``replicant plan``: what a training step will do on devices that are not there."""

import argparse
import contextlib
import importlib
import io
import os
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ArgumentError

SUMMARY = "Tell what a program's training step will do on a topology: memory, exchanges, time, scaling."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    parser.add_argument("program", metavar="SCRIPT|MODULE:FUNCTION", help="what trains; left at its first training step")
    parser.add_argument("--topology", required=True, help="cpu:8, gpu:8xh100, v5e:16x16, v6e:16x16*4 (slices)")
    parser.add_argument(
        "--args", default="", metavar="'ARG ...'", help="the script's own arguments, as one text: --args='--epochs 3'"
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--quick", action="store_true", help="for TPUs: compile with little effort, in a tenth of the time")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the scaling curve")


def main(arguments: argparse.Namespace) -> int:
    """Plan, and print the plan; exit status 1 if the step does not fit."""
    _start_no_devices()
    program = _program(arguments.program, shlex.split(arguments.args))
    from ..plan import make_plan
    from ..plan._plot import scaling_plot
    from ..plan._waiting import waiting

    printed = io.StringIO()  # by the program
    with waiting("replicant plan", in_logs=True), contextlib.redirect_stdout(printed):
        plan = make_plan(program, arguments.topology, quick=arguments.quick)
    if arguments.plot is not None:
        arguments.plot.write_text(scaling_plot(plan), encoding="utf-8")
    print(plan.to_json() if arguments.json else plan)
    return 0 if plan.fits else 1


def _start_no_devices() -> None:
    """The devices of the plan need not be there, and those that are there belong to others."""
    import jax

    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # for processes that the program starts
    config: Any = jax.config  # its options are not known to type checkers; it has read the environment already
    if not config.jax_platforms:
        config.update("jax_platforms", os.environ["JAX_PLATFORMS"])


def _program(text: str, arguments: list[str]) -> Callable[[], Any]:
    path = Path(text)
    if path.suffix == ".py":
        if not path.is_file():
            raise ArgumentError(f"There is no script {text!r}.")
        return lambda: _run_script(path, arguments)
    module, _, function = text.partition(":")
    if not function:
        raise ArgumentError(f"{text!r} is neither a script (SCRIPT.py) nor MODULE:FUNCTION.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        raise ArgumentError(f"There is no module {module!r} here: {error}.") from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise ArgumentError(f"Module {module!r} has no function {function!r}.")
    return found


def _run_script(path: Path, arguments: list[str]) -> None:
    before = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if end.code:  # else it has ended well, without a training step
            raise
    finally:
        sys.argv, sys.path[:] = before
