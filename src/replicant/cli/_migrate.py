"""``replicant migrate SCRIPT``: translates programs from tf.distribute to Replicant."""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CommandError

if TYPE_CHECKING:
    from ._migration import Migration

SUMMARY = "Translate tf.distribute scripts, notebooks, pages and folders to Replicant and Keras 3."
_TITLES = {"left": "Not translated", "check": "Translated, but check the assumption"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``replicant migrate``."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="a script (.py), a notebook (.ipynb), a page with Python blocks (.md), or a folder with scripts and notebooks",
    )
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--write", action="store_true", help="write the changes to the files instead of only showing them")
    target.add_argument("--output", type=Path, metavar="PATH", help="write the translation to this new file or folder")


def main(arguments: argparse.Namespace) -> int:
    """Show or write the translation, and list what is left to do. Returns 1 if something could not be translated.

    Raises:
        CommandError: If libcst is not installed, if a file cannot be read or is not valid Python, or if the output exists already.
    """
    if importlib.util.find_spec("libcst") is None:
        raise CommandError("libcst is not installed: pip install 'replicant[migrate]'.")
    from ._migration import migrate, tasks_of

    tasks, links = tasks_of(arguments.files, arguments.output, arguments.write)
    in_folder = any(path.is_dir() for path in arguments.files)
    migrations: list[Migration] = []
    refused: list[str] = []
    for task in tasks:
        try:
            migration = migrate(task.source)
        except CommandError as error:
            if not in_folder:
                raise
            refused.append(str(error))
            continue
        migrations.append(migration)
        if task.target is None:
            sys.stdout.write(migration.diff())
        else:
            _write(migration, task.target)
    return _report(migrations, refused, links, in_folder)


def _write(migration: "Migration", target: Path) -> None:
    if target != migration.source.path:
        target.parent.mkdir(parents=True, exist_ok=True)
        migration.write(target)
        print(f"{target}: written")
    elif migration.text != migration.source.text:
        migration.write(target)
        print(f"{target}: written")
    else:
        print(f"{target}: nothing to change")


def _report(migrations: "list[Migration]", refused: list[str], links: list[Path], in_folder: bool) -> int:
    """List what a person has to do. Returns the exit status."""
    for migration in migrations:
        for kind, title in _TITLES.items():
            found = [finding for finding in migration.findings if finding.kind == kind]
            if found:
                print(f"\n{migration.source.path}: {title}:")
            for finding in found:
                print(f"  {migration.source.place(finding.line)}: {finding.construct}\n      {finding.advice}")
    for title, lines in (("Not read", refused), ("Links, which were left alone", [str(link) for link in links])):
        if lines:
            print(f"\n{title}:", *lines, sep="\n  ")
    left = sum(finding.kind == "left" for migration in migrations for finding in migration.findings)
    if in_folder or len(migrations) > 1:
        checks = sum(finding.kind == "check" for migration in migrations for finding in migration.findings)
        changed = sum(migration.text != migration.source.text for migration in migrations)
        print(f"\nFiles: {len(migrations)}, changed: {changed}, not read: {len(refused)}. To write: {left}, to check: {checks}.")
    return int(bool(left or refused))
