"""The table of docs/libraries.md names the versions with which `make test-libraries` runs."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ["KerasHub", "KerasRS", "KerasTuner", "BayesFlow", "SciKeras", "HGQ2", "Haiku", "flowjax", "chex", "Optax"]


def pins() -> list[str]:
    lines = (ROOT / "tests/libraries/requirements.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def rows() -> list[list[str]]:
    page = (ROOT / "docs/libraries.md").read_text()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]


def test_every_row_has_a_library_its_version_what_ran_and_a_result() -> None:
    head, line, *table = rows()
    assert head == ["library", "version", "what ran", "result"]
    assert set(line) == {"---"}
    assert [row[0] for row in table] == LIBRARIES
    assert [row[1] for row in table if row[1] not in pins()] == []
    assert [row for row in table if len(row) != 4 or not row[2] or not row[3].startswith("equal")] == []


def test_all_packages_are_pinned_and_named_once() -> None:
    names = [pin.partition("==")[0].lower() for pin in pins()]
    assert [pin for pin in pins() if not re.fullmatch(r"[\w.-]+==[\w.+]+", pin)] == []
    assert sorted(set(names)) == sorted(names)


def test_the_page_names_the_versions_of_jax_and_keras() -> None:
    page = (ROOT / "docs/libraries.md").read_text()
    found = re.search(r"with jax ([\d.]+\d), Keras ([\d.]+\d) and Python 3\.13", page)
    assert found is not None
    assert {f"jax=={found[1]}", f"keras=={found[2]}"} <= set(pins())
