"""``replicant migrate SCRIPT``: translates programs from tf.distribute to Replicant."""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CommandError
from ._escaped import escaped

if TYPE_CHECKING:
    from ._migration import Translation

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
        raise CommandError("libcst is not installed: pip install 'replicant-jax[migrate]'.")
    from ._migration import Translator, tasks_of

    tasks, links, refused = tasks_of(arguments.files, arguments.output, arguments.write)
    in_folder = any(path.is_dir() for path in arguments.files)
    translations: list[Translation] = []
    with Translator() as translator:
        for task in tasks:
            try:
                translation = translator.translate(task.source, only_diff=task.target is None)
                if task.target is not None:
                    _write(translation, task.target)
            except CommandError as error:
                if len(arguments.files) == 1 and not in_folder:
                    raise
                refused.append(str(error))
                continue
            translations.append(translation)
            sys.stdout.write(translation.diff)
    return _report(translations, refused, links, in_folder)


def _write(translation: "Translation", target: Path) -> None:
    if target == translation.path and not translation.changed:
        print(escaped(f"{target}: nothing to change"))
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(translation.data)
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror}.") from error
    print(escaped(f"{target}: written"))


def _report(translations: "list[Translation]", refused: list[str], links: list[Path], in_folder: bool) -> int:
    """List what a person has to do. Returns the exit status."""
    for translation in translations:
        for kind, title in _TITLES.items():
            found = [place for place in translation.places if place.kind == kind]
            if found:
                print(escaped(f"\n{translation.path}: {title}:"))
            for place in found:
                print(escaped(f"  {place.where}: {place.construct}\n      {place.advice}"))
    for title, lines in (("Not read", refused), ("Links, which were left alone", [str(link) for link in links])):
        if lines:
            print(f"\n{title}:", *map(escaped, lines), sep="\n  ")
    left = sum(place.kind == "left" for translation in translations for place in translation.places)
    if in_folder or len(translations) + len(refused) > 1:
        checks = sum(place.kind == "check" for translation in translations for place in translation.places)
        changed = sum(translation.changed for translation in translations)
        print(f"\nFiles: {len(translations)}, changed: {changed}, not read: {len(refused)}. To write: {left}, to check: {checks}.")
    return int(bool(left or refused))
