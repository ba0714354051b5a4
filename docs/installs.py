"""What each page says to install, and what its programs import: python docs/installs.py prints both."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).resolve().parent
_PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINE = re.compile(r"\A# .+\n\n(?:Install: `|    (?=pip))(.+\n)+")  # the first paragraph
_COMMAND = re.compile(r"pip install ([^`\n]+)")
_DISTRIBUTIONS = {  # by module, where the names differ
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "array_record": "array-record",
    "replicant": "replicant-jax",
}
# What needs a package although no program imports it: words of a page -> distribution.
_WORDS = {
    "= replicant.ParameterServerStrategy(": "cloudpickle",
    "StatsWriter(": "tensorboardX",
    "= image_dataset_from_directory(": "pillow",
    "callbacks.TensorBoard(": "tensorboardX",
    "$ replicant migrate": "libcst",
    "launch --engine ray --workers": "ray",
    "--topology v5e": "jax[tpu]",
}


def extras() -> dict[str, set[str]]:
    """The extras of the package, with the distributions that they install."""
    return {extra: {_name(each) for each in needed} for extra, needed in _PROJECT["optional-dependencies"].items()}


def installed(page: str) -> set[str]:
    """The distributions that the page's first line installs. Without such a line: none."""
    found = _LINE.match(page)
    commands = [] if found is None else _COMMAND.findall(found[0])
    words = " ".join(commands).replace("'", "").split()
    result: set[str] = set()
    for word in words:
        name, _, named = word.rstrip("]").partition("[")
        result.add(name)
        if name in {".", "replicant-jax"}:
            result |= {"replicant-jax", *map(_name, _PROJECT["dependencies"])}
            result |= {each for extra in named.split(",") if extra for each in extras()[extra]}
    return result


def imported(page: str) -> set[str]:
    """The distributions that the page's programs import."""
    modules: set[str] = set()
    for block in _BLOCK.findall(page):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                modules.add(node.module.partition(".")[0])
    return {_DISTRIBUTIONS.get(module, module) for module in modules - sys.stdlib_module_names}


def needed(page: str) -> set[str]:
    """The distributions that the page's programs and commands need."""
    return imported(page) | {distribution for words, distribution in _WORDS.items() if words in page}


def absent(page: str) -> list[str]:
    """Modules of extras and tools that this machine may have, but not a reader who has installed just what the page says."""
    others = {each for extra in extras().values() for each in extra} - _with_requirements(installed(page))
    modules = {distribution: module for module, distribution in _DISTRIBUTIONS.items()}
    return sorted(modules.get(each, each) for each in others if each.isidentifier() or each in modules)


def _with_requirements(names: set[str]) -> set[str]:
    """These distributions and, where they are installed here, what they bring with them."""
    found, left = set[str](), set(names)
    while left:
        found |= left
        left = {_name(each).partition("[")[0] for name in left for each in _requires(name)} - found
    return found


def _requires(name: str) -> list[str]:
    if name == "replicant-jax":  # `installed` knows which of its extras are asked for
        return []
    try:
        return [each for each in importlib.metadata.requires(name) or [] if "extra ==" not in each]
    except importlib.metadata.PackageNotFoundError:
        return []


def _name(requirement: str) -> str:
    return re.split(r"[>=<~!;( ]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text()
        print(f"{path.name}: installs {sorted(installed(page))}; needs {sorted(needed(page))}")
