"""The command ``replicant``, with one module per subcommand.

The module of a subcommand has ``SUMMARY`` (one line for ``--help``), ``add_arguments(parser)``, and ``main(arguments) -> int``,
which returns the exit status.
"""

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence

from ..errors import ReplicantError
from ._escaped import escaped

COMMANDS = ("checkpoint", "doctor", "launch", "migrate", "new", "plan", "report", "run")  # names; the module of "new" is `_new`


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``replicant ARGUMENTS``.

    Args:
        argv: The arguments. By default those of the process.

    Returns:
        The exit status: 0 for success, 1 for a failed check or an error, 2 for wrong usage, 130 after Ctrl-C, and 141 if nobody
        reads the output.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may hold what no encoding has
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = make_parser().parse_args(argv)
    try:
        status = importlib.import_module(f"._{arguments.command}", __name__).main(arguments)
        sys.stdout.flush()
    except ReplicantError as error:
        print(escaped(f"replicant {arguments.command}: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads the output has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the rest would fail again at the end
        return 128 + signal.SIGPIPE
    return status


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command and of all subcommands."""
    parser = argparse.ArgumentParser(prog="replicant", description="The tf.distribute programming model on JAX and Keras 3.")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"._{name}", __name__)
        module.add_arguments(subparsers.add_parser(name, help=module.SUMMARY, description=module.SUMMARY))
    return parser
