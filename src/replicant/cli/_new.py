"""``replicant new NAME``: writes a training project to start from."""

import argparse
import importlib.util
import keyword
import shutil
from importlib.resources import files
from pathlib import Path

from ..errors import CommandError

SUMMARY = "Write a training project to start from: program, tests, Makefile and requirements."

# What each template is, and the modules that its tests need.
TEMPLATES = {
    "loop": ("a training loop of its own, with Keras models", "pytest, replicant, sklearn, tensorboardX"),
    "fit": ("Keras's fit", "pytest, replicant, sklearn, tensorboardX"),
    "jax": ("pure JAX and optax", "optax, pytest, replicant, sklearn"),
    "lm": ("a small language model, with Keras's fit", "pytest, replicant"),
    "nnx": ("a training loop of its own, with Flax NNX", "flax, optax, pytest, replicant, sklearn"),
    "ps": ("parameter servers", "cloudpickle, pytest, replicant, sklearn"),
}
_PLACEHOLDER, _MODULES = "PROJECT", "IMPORTS"
_FILES = {
    "{template}/project.py.txt": f"{_PLACEHOLDER}.py",
    "{template}/test_project.py.txt": f"test_{_PLACEHOLDER}.py",
    "{template}/requirements.txt": "requirements.txt",
    "Makefile.txt": "Makefile",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``replicant new``."""
    parser.add_argument("name", metavar="NAME", help="name of the project, its folder and its module: a Python identifier")
    told = "; ".join(f"{name}: {what}" for name, (what, _) in TEMPLATES.items())
    parser.add_argument("--template", choices=list(TEMPLATES), default="loop", help=f"{told} (default: %(default)s)")
    parser.add_argument("--into", type=Path, default=Path(), metavar="DIR", help="where to make the folder (default: here)")


def main(arguments: argparse.Namespace) -> int:
    """Write the project and say how to run it."""
    folder = write_project(arguments.name, arguments.into, arguments.template)
    print(f"Wrote {', '.join(sorted(path.name for path in folder.iterdir()))} into {folder}. Next:")
    print(f"  cd {folder}")
    print("  pip install -r requirements.txt")
    print(f"  python {arguments.name}.py{'' if arguments.template == 'ps' else ' --virtual-devices 2'}")
    print(f"  python -m pytest test_{arguments.name}.py")
    print("`make test` does the first and the last of these. ", end="")
    print("Then change the places that are marked with ADAPT.")
    return 0


def write_project(name: str, parent: Path, template: str = "loop") -> Path:
    """Write a template's files into the new folder `parent` / `name`, and return the folder.

    Raises:
        CommandError: If the name is not valid for a module, if the folder exists, or if it cannot be written.
    """
    _check_name(name)
    folder = parent / name
    templates = files(str(__package__)) / "templates"
    try:
        folder.mkdir()
        for source, file in _FILES.items():
            text = templates.joinpath(source.format(template=template)).read_text(encoding="utf-8")
            if template == "ps" and file == "Makefile":
                text = text.replace(" --virtual-devices 2", "")
            text = text.replace(_MODULES, TEMPLATES[template][1]).replace(_PLACEHOLDER, name)
            (folder / file.replace(_PLACEHOLDER, name)).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise CommandError(f"{folder} already exists, and nothing in it was changed. Remove it, or choose another name.") from None
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)  # which was made here
        raise CommandError(f"{folder} cannot be written ({error.strerror}). Choose another folder with --into.") from error
    return folder


def _check_name(name: str) -> None:
    if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name):
        raise CommandError(
            f"{name!r} cannot be the name of a Python module. Use letters, digits and underscores, do not begin with a digit, and "
            "do not use a keyword."
        )
    if importlib.util.find_spec(name) is not None:
        raise CommandError(f"{name!r} is the name of an installed module, which {name}.py would hide. Choose another name.")
