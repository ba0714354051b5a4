"""Command lines of the Python processes that this package starts. What no user has named must not run in them.

By default, Python looks for modules in the folder of a script, and with ``-c`` and ``-m`` in the current folder, before it looks
anywhere else. A file named like a module, such as ``json.py``, would run there in place of that module. PYTHONPATH, the user's own
site-packages and the other variables of Python have their usual effect, because the user has set them.
"""

import sys

from .errors import ConfigurationError


def own_python(*arguments: str) -> list[str]:
    """The command line of a process that runs code of this package, and finds no modules in the current folder.

    Args:
        arguments: What Python is given: ``-c`` and code, ``-m`` and a module, or a script.

    Raises:
        ConfigurationError: If this process is not run by a Python interpreter.
    """
    flags = ["-P"]
    flags += ["-E"] if sys.flags.ignore_environment else []
    flags += ["-s"] if sys.flags.no_user_site else []
    return [_interpreter(), *flags, *arguments]


def bare_python(code: str, *arguments: str) -> list[str]:
    """The command line of a process whose code needs the standard library only, and which nothing else can change.

    Raises:
        ConfigurationError: If this process is not run by a Python interpreter.
    """
    return [_interpreter(), "-I", "-S", "-c", code, *arguments]


def users_python(*arguments: str) -> list[str]:
    """The command line of a user's program, which finds its modules as if the user had started it with ``python``.

    Raises:
        ConfigurationError: If this process is not run by a Python interpreter.
    """
    return [_interpreter(), *arguments]


def _interpreter() -> str:
    if not sys.executable or getattr(sys, "frozen", False):
        raise ConfigurationError(
            f"There is no Python to start a process with: sys.executable is {sys.executable!r}"
            f"{', which is a program made from Python code' if sys.executable else ''}. Run the program with python."
        )
    return sys.executable
