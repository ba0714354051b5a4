"""The first line of each page says what to install, and its programs need nothing else."""

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {path.stem: path.read_text() for path in sorted(DOCS.glob("*.md"))}
# They explain, and show neither programs nor commands to run with Replicant.
WITHOUT_PROGRAMS = {"design", "differences", "formats", "how_it_works", "performance", "ported", "reports", "scope", "security"}

tool = runpy.run_path(str(DOCS / "installs.py"))


@pytest.mark.parametrize("name", sorted(set(PAGES) - WITHOUT_PROGRAMS))
def test_the_first_line_of_a_page_covers_its_programs(name: str) -> None:
    installed, needed = tool["installed"](PAGES[name]), tool["needed"](PAGES[name])
    assert "replicant-jax" in installed, f"{name}.md: write `Install: ...` right below the title"
    assert needed <= installed, f"{name}.md needs {sorted(needed - installed)}, which its first line does not install"


@pytest.mark.parametrize("name", sorted(set(PAGES) - WITHOUT_PROGRAMS))
def test_a_page_installs_no_other_package_in_vain(name: str) -> None:
    extras = {each for extra in tool["extras"]().values() for each in extra}
    of_replicant = extras | tool["installed"]("# Page\n\nInstall: `pip install replicant-jax`.\n") | {"."}
    assert tool["installed"](PAGES[name]) - of_replicant <= tool["needed"](PAGES[name])


def test_pages_without_programs_have_none() -> None:
    for name in WITHOUT_PROGRAMS:
        assert "```python\n" not in PAGES[name], f"{name}.md has a program now: say on it what to install"


def test_the_tool_finds_what_is_missing() -> None:
    block = "```python\nimport os\n\nimport keras\nfrom sklearn import datasets\n```\n"
    assert tool["needed"](block) == {"keras", "scikit-learn"}
    assert tool["installed"](f"# Page\n\n{block}") == set()
    page = f"# Page\n\nInstall: `pip install 'replicant-jax[ps]' scikit-learn`.\n\n{block}"
    assert {"replicant-jax", "keras", "jax", "cloudpickle", "ray", "scikit-learn"} <= tool["installed"](page)
    assert {"optax", "tensorboardX"} <= set(tool["absent"](page))
    assert not {"sklearn", "ray", "keras"} & set(tool["absent"](page))


def test_nothing_installs_a_distribution_of_another_name() -> None:
    """The name replicant on the public index is another project's."""
    root = DOCS.parent
    texts = [path for folder in ("docs", "src", "examples", "tests") for path in (root / folder).rglob("*") if path.is_file()]
    texts += [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")]
    texts = [
        path
        for path in texts
        if path.suffix in {".md", ".py", ".txt", ".toml", ".ipynb", ".yaml", ""} and path.name != Path(__file__).name
    ]
    wrong = re.compile(r"pip install (?:-[-\w]+ )*['\"]?replicant(?!-jax|[\w.-])|[`'\"\[ ]replicant\\?\[(?!-)[a-z]")
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in texts
        for line in path.read_text(errors="replace").splitlines()
        if wrong.search(line)
    ]
    assert found == []
    assert wrong.search("pip install replicant")
    assert wrong.search("    pip install --upgrade 'replicant[ps]'")
    templates = [path.read_text().splitlines()[0] for path in (root / "src/replicant/cli/templates").rglob("requirements.txt")]
    assert len(templates) == 6
    assert all(re.fullmatch(r"replicant-jax(\[[a-z]+\])?", line) or "replicant" not in line for line in templates)


def test_the_table_of_extras_is_complete() -> None:
    listed = set(re.findall(r"`replicant-jax\[([a-z0-9-]+)\]`", PAGES["index"].partition("| extra | for |")[2]))
    assert listed == set(tool["extras"]()) - {"dev"}
