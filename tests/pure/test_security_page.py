"""The tables of docs/security.md about processes, parsers and unpickling name all that the code starts and uses, and no more."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "replicant"
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")

STARTS = re.compile(r"subprocess\.(?!PIPE|Timeout)\w+|os\.(?:exec|fork|posix_spawn|spawn|system|popen)\w*|ray\.init|pty\.\w+")
FLAGS = {"own_python": "`-P`", "bare_python": "`-I -S`", "users_python": "none", "agent_command": "`-I`, then `-P`"}
# Modules that start processes, and modules with which files are read. All that is imported of them must stand on the page.
STARTERS = {"subprocess", "multiprocessing", "pty", "concurrent.futures.process", "asyncio.subprocess"}
PARSERS = (
    "ast bz2 compression.zstd configparser cramjam csv dill flatbuffers google.protobuf gzip h5py html.parser joblib libcst",
    "lzma marshal msgpack netrc PIL plistlib pyarrow runpy safetensors shelve sqlite3 tarfile tokenize tomllib wave xml",
    "yaml zipfile zipimport zlib zstandard",
)


def table(heading: str) -> list[list[str]]:
    """The rows of the table below a heading, without its head."""
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 2, heading
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


class Names:
    """What a file calls and imports, and the attributes that it uses, as dotted names.

    Modules may also be imported by their names, as in ``importlib.import_module(name)``. Of zlib, only what unpacks counts.
    """

    def __init__(self, code: str):
        self.calls: list[str] = []
        self.imports: set[str] = set()
        self.attributes: set[str] = set()
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Call):
                called = dotted(node.func)
                self.calls.append(called)
                if "import_" in called:
                    self.imports |= {
                        each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
                    }
            elif isinstance(node, ast.Attribute):
                self.attributes.add(dotted(node))
            elif isinstance(node, ast.Import):
                self.imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                self.imports |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        if not any(call.startswith("zlib.decompress") for call in self.calls):
            self.imports -= {"zlib"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


@pytest.fixture(scope="module")
def files() -> dict[str, Names]:
    return {path.relative_to(SOURCE).as_posix(): Names(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def users(files: dict[str, Names], modules: list[str]) -> set[tuple[str, str]]:
    """Which of some modules each file imports, without what is below them."""
    return {
        (module, file)
        for file, names in files.items()
        for name in names.imports
        for module in modules
        if name == module or name.startswith(f"{module}.")
    }


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_process_that_is_started(files: dict[str, Names]) -> None:
    """As often as a file starts one, so often is it in the table."""
    found = sorted(file for file, names in files.items() for call in names.calls if STARTS.fullmatch(call))
    assert sorted(file for row in table("Every process that is started") for file in named(row[0])) == found
    assert {module for module, _ in users(files, sorted(STARTERS))} == {"subprocess"}


def test_the_flags_of_every_python(files: dict[str, Names]) -> None:
    """Those of the function that makes the command line, wherever it is called."""
    makers = {(file, flags) for file, names in files.items() for call in names.calls if (flags := FLAGS.get(call))}
    told = {(file, row[3]) for row in table("Every process that is started") for file in named(row[4])}
    assert told == {(file, flags) for file, flags in makers if file != "_python.py"}
    assert all(row[3] in FLAGS.values() or not named(row[4]) for row in table("Every process that is started"))


def test_the_interpreter_is_named_in_one_place(files: dict[str, Names]) -> None:
    """Elsewhere it is text for the user, or goes to another host."""
    found = {file for file, names in files.items() if "sys.executable" in names.attributes}
    assert found == {
        "_python.py",
        "cli/_checkup/_facts.py",
        "cli/_launch.py",  # for job files
        "kernels/xla/_flag_trial.py",  # whether it is a Python
        "launch/hosts/_facts.py",
        "launch/hosts/_node_ranks.py",  # the agent on this host
        "launch/hosts/_ssh.py",  # likewise, and the default on others
    }


def test_every_parser(files: dict[str, Names]) -> None:
    rows = table("Every parser of others")
    found = {(module, file) for module, file in users(files, " ".join(PARSERS).split()) if module != "libcst"}
    assert {(module, file) for row in rows for module in named(row[0]) for file in named(row[1])} == found | {
        ("libcst", "cli/_migration")
    }
    assert {"/".join(file.split("/")[:2]) for module, file in users(files, ["libcst"])} == {"cli/_migration"}
    read = {call for names in files.values() for call in names.calls}
    assert read & {"np.load", "numpy.load", "np.fromfile", "np.loadtxt", "eval", "np.genfromtxt", "numpy.fromfile"} == set()
    assert {file for file, names in files.items() if "exec" in names.calls} == {"cli/_under_strategy.py"}  # the user's program


def test_every_unpickling(files: dict[str, Names]) -> None:
    loads = re.compile(r"(?:pickle|cloudpickle)\.loads?")
    found = {file for file, names in files.items() if any(loads.fullmatch(call) for call in names.calls)}
    assert {file for row in table("Every unpickling") for file in named(row[0])} == found
