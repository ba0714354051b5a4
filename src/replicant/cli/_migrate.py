"""``replicant migrate SCRIPT``: translates programs from tf.distribute to Replicant."""

import argparse
import importlib.util
import sys
from pathlib import Path

from ..errors import CommandError

SUMMARY = "Translate tf.distribute scripts, notebooks and pages to Replicant and Keras 3."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``replicant migrate``."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="SCRIPT",
        help="a script (.py), a notebook (.ipynb), or a page with Python blocks (.md)",
    )
    parser.add_argument("--write", action="store_true", help="write the changes to the files instead of only showing them")


def main(arguments: argparse.Namespace) -> int:
    """Show or write the translation, and list what is left to do. Returns 1 if something could not be translated.

    Raises:
        CommandError: If libcst is not installed, or if a file cannot be read or is not valid Python.
    """
    if importlib.util.find_spec("libcst") is None:
        raise CommandError("libcst is not installed: pip install 'replicant[migrate]'.")
    from ._migration import migrate

    status = 0
    for path in arguments.files:
        migration = migrate(path)
        if arguments.write:
            path.write_text(migration.text, encoding="utf-8", newline="")
            print(f"{path}: written" if migration.text != migration.source.text else f"{path}: nothing to change")
        else:
            sys.stdout.write(migration.diff())
        for kind, title in (("left", "Not translated"), ("check", "Translated, but check the assumption")):
            found = [finding for finding in migration.findings if finding.kind == kind]
            if found:
                print(f"\n{path}: {title}:")
            for finding in found:
                print(f"  {migration.source.place(finding.line)}: {finding.construct}\n      {finding.advice}")
            status |= bool(found) and kind == "left"
    return int(status)
