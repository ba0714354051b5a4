"""Knows with which versions of jaxlib XLA's option of _flags.py works and pays, and tries it with others.

XLA ends a process that has an option which it does not know, and what an option means may change. So an unknown jaxlib gets it only
after processes of their own have tried it (_trial_program.py), once for each version. What they found is kept in a file.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ..._python import own_python
from ..._whole_file import write_whole

# How many times as fast a step of the guides' CNN was with the option, in processor time: benchmarks/results/2026-11-22-kernels.md.
MEASURED: dict[tuple[int, ...], float] = {(0, 10): 1.3, (0, 11): 1.2, (0, 12): 1.2}
CACHE = "REPLICANT_COMPILATION_CACHE"
_PROGRAM = Path(__file__).with_name("_trial_program.py")
_LIMIT_SECONDS = 60.0
_SAME = 1e-3  # relative difference of two sums over a million products

Environ = Mapping[str, str]


def objection(version: str, option: str, environ: Environ = os.environ) -> str:
    """Say why the option is not for this jaxlib, or return an empty string if it pays.

    The first call with a jaxlib that this release does not know takes some seconds.

    Args:
        version: The version of jaxlib.
        option: The option, with its value.
        environ: The environment of the processes that try it.
    """
    gain = MEASURED.get(tuple(int(part) for part in version.split(".")[:2]))
    if gain is not None:
        return "" if gain > 1 else f"it does not pay with jaxlib {version}"
    unknown = f"it was not tested with jaxlib {version}"
    if environ.get(CACHE) == "0":
        return f"{unknown}, and {CACHE}=0 leaves no folder for the result of a trial"
    if getattr(sys, "frozen", False) or not Path(sys.executable or "").name.startswith("python"):
        return f"{unknown}, and no Python to try it with was found at {sys.executable!r}"
    try:
        return _kept_or_tried(_folder(environ) / f"conv-jaxlib-{version}.json", version, option, environ)
    except (OSError, ValueError) as error:
        return f"{unknown}, and the result of a trial cannot be kept ({error})"


def _folder(environ: Environ) -> Path:
    """The folder that the user names for compiled programs, else the one above the folders where they are kept by default."""
    if environ.get(CACHE) and "://" not in environ[CACHE]:  # nothing is kept at a URL
        return Path(environ[CACHE]).absolute()
    try:
        home = Path.home()
    except RuntimeError as error:
        raise FileNotFoundError("this user has no home directory") from error
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "replicant"
    return Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "replicant"


def _kept_or_tried(file: Path, version: str, option: str, environ: Environ) -> str:
    """Read the objection that a trial has found, or try.

    The file is there before the trial begins, so that nobody else tries meanwhile, and nobody ever again if the trial takes this
    process with it.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with file.open("x") as begun:
            try:
                begun.write(
                    json.dumps({"objection": f"it is being tried with jaxlib {version}, or that trial never ended ({file})"})
                )
                begun.flush()
            except OSError:
                file.unlink()  # otherwise nobody would ever try
                raise
    except FileExistsError:
        return str(json.loads(file.read_text() or "{}").get("objection", f"{file} is incomplete: remove it"))
    found = attempt(version, option, environ)
    write_whole(file, json.dumps({"objection": found}))
    return found


def attempt(version: str, option: str, environ: Environ, limit_seconds: float = _LIMIT_SECONDS) -> str:
    """Compute convolutions with the option and then without it, in a process each, and compare numbers and processor time.

    Returns:
        The objection, or an empty string.
    """
    flags = environ.get("XLA_FLAGS", "")
    results = []
    for added in (option, ""):
        environment = {**environ, "XLA_FLAGS": f"{flags} {added}".strip(), "JAX_ENABLE_COMPILATION_CACHE": "false"}
        try:
            done = subprocess.run(  # noqa: S603 - our own program
                own_python(str(_PROGRAM)),
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"a trial with jaxlib {version} took more than {limit_seconds:g} s"
        if done.returncode != 0:
            return f"a process that tried it with jaxlib {version} ended with {done.returncode}"
        results.append(json.loads(done.stdout))
    (fast, same), (plain, total) = ((result["seconds"], result["sum"]) for result in results)
    if abs(same - total) > _SAME * abs(total):
        return f"with jaxlib {version}, it changes the sum of a gradient from {total:g} to {same:g}"
    return "" if fast < plain else f"it does not pay with jaxlib {version}: {fast * 1e3:.1f} ms instead of {plain * 1e3:.1f}"
