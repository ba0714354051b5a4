"""Which files to translate, and where the translations go."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....errors import CommandError

_SUFFIXES = (".py", ".ipynb")
_LEFT_OUT = {"__pycache__", "node_modules", "site-packages"}


@dataclass(frozen=True)
class Task:
    """A file to translate.

    Attributes:
        source: The file.
        target: Where the translation goes, or None if it is only shown.
    """

    source: Path
    target: Path | None


def tasks_of(inputs: Sequence[Path], output: Path | None, in_place: bool) -> tuple[list[Task], list[Path], list[str]]:
    """The files to translate, the links in folders, which are left alone, and what is said of folders that cannot be read.

    Raises:
        CommandError: If the output would overwrite something, or does not fit the input.
    """
    if output is not None:
        _check_output(inputs, output)
    tasks: list[Task] = []
    links: list[Path] = []
    unread: list[str] = []
    for path in inputs:
        if not path.is_dir():
            tasks.append(Task(path, output or (path if in_place else None)))
            continue
        for file in _files_in(path, unread):
            if file.is_symlink():
                links.append(file)
            elif output is not None:
                tasks.append(Task(file, output / file.relative_to(path)))
            else:
                tasks.append(Task(file, file if in_place else None))
    if output is not None and (
        there := [task.target for task in tasks if task.target is not None and os.path.lexists(task.target)]
    ):
        raise CommandError(f"{there[0]} exists already. Remove it, or name another --output.")
    return tasks, links, unread


def _check_output(inputs: Sequence[Path], output: Path) -> None:
    if len(inputs) != 1:
        raise CommandError(f"--output takes one file or folder at a time; got {len(inputs)}. Put the files into one folder.")
    source, target = inputs[0].resolve(), output.resolve()
    if source == target:
        raise CommandError(f"--output is the input itself: {output}. Use --write to change it.")
    if source.is_dir() and source in target.parents:
        raise CommandError(f"--output {output} lies in the input folder {inputs[0]}. Name a folder outside of it.")
    if source.is_file() and target.suffix != source.suffix:
        raise CommandError(f"--output must be a {source.suffix} file, as the input is. Received: {output}.")
    if source.is_dir() and target.exists() and not target.is_dir():
        raise CommandError(f"{output} exists already, and is not a folder. Remove it, or name another --output.")


def _files_in(folder: Path, unread: list[str]) -> Iterator[Path]:
    """The scripts and notebooks in a folder, in order, without hidden folders, environments and what links lead to."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        unread.append(f"{folder} cannot be read: {error.strerror}.")
        return
    for path in paths:
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            if path.name not in _LEFT_OUT and not os.path.exists(path / "pyvenv.cfg"):  # noqa: PTH110 - Path.exists may raise
                yield from _files_in(path, unread)
        elif path.suffix in _SUFFIXES or (path.is_symlink() and path.is_dir()):
            yield path
