"""``replicant checkpoint``: what is in a file of weights, how two of them differ, and the same weights in another format."""

import argparse

SUMMARY = "Look into checkpoints and files of weights of Replicant, TensorFlow, Keras and others: show, diff, convert."

_PATH = (
    "a checkpoint of Replicant, TensorFlow (its prefix, or a folder, of which it is the newest) or Orbax, a SavedModel, a .keras, "
    ".weights.h5 or .h5 file of Keras, or a file of safetensors"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``replicant checkpoint``."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print name, shape, dtype and size of every array", description=f"PATH: {_PATH}.")
    show.add_argument("path", metavar="PATH", help="what to look into")
    show.add_argument("--json", action="store_true", help="print JSON instead of a table")
    diff = actions.add_parser(
        "diff",
        help="compare two by name: shapes, dtypes and values; the exit status is 1 if they differ",
        description=f"A and B: {_PATH}. The exit status is 1 if they differ.",
    )
    diff.add_argument("first", metavar="A")
    diff.add_argument("second", metavar="B")
    diff.add_argument("--json", action="store_true", help="print JSON instead of a table")
    convert = actions.add_parser(
        "convert",
        help="write the same arrays in another format",
        description=f"SRC: {_PATH}.",
    )
    convert.add_argument("source", metavar="SRC")
    convert.add_argument(
        "destination",
        metavar="DST",
        help="what to write, which must not exist: NAME.safetensors, NAME.weights.h5, or a folder for a checkpoint of Replicant",
    )
    convert.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="a function that makes the Keras model whose weights are in SRC: DST has the names that this model gives them",
    )


def main(arguments: argparse.Namespace) -> int:
    """Do one of the three.

    Raises:
        CheckpointError: If a file is missing, damaged or unknown.
        CommandError: If DST exists, or cannot hold what is in SRC.
    """
    from . import _weights

    if arguments.action == "show":
        return _weights.show(arguments.path, as_json=arguments.json)
    if arguments.action == "diff":
        return _weights.diff(arguments.first, arguments.second, as_json=arguments.json)
    return _weights.convert(arguments.source, arguments.destination, arguments.model)
