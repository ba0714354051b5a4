"""``replicant new``: what it writes, and the names and folders that it refuses."""

import re

import pytest

from replicant import cli, errors
from replicant.cli import _new


def test_three_files_and_what_to_do_next(tmp_path, capsys):
    assert cli.main(["new", "fish", "--into", str(tmp_path)]) == 0
    assert sorted(path.name for path in (tmp_path / "fish").iterdir()) == ["fish.py", "requirements.txt", "test_fish.py"]
    assert capsys.readouterr().out.splitlines() == [
        f"Wrote fish.py, requirements.txt, test_fish.py into {tmp_path}/fish. Next:",
        f"  cd {tmp_path}/fish",
        "  pip install -r requirements.txt",
        "  python fish.py --virtual-devices 2",
        "  python -m pytest test_fish.py",
        "Then change the places that are marked with ADAPT.",
    ]


def test_the_program_is_short_and_marks_what_to_adapt(tmp_path):
    folder = _new.write_project("fish", tmp_path)
    program = (folder / "fish.py").read_text()
    assert len(program.splitlines()) < 250
    assert "PROJECT" not in program + (folder / "test_fish.py").read_text()
    for place in ("load_data", "create_model", "create_losses", "create_metrics", "create_task", "train_step", "parse_options"):
        body = re.search(rf"^def {place}\(.*?(?=^def |\Z)", program, re.DOTALL | re.MULTILINE)
        assert body is not None
        assert "ADAPT" in body[0], place


@pytest.mark.parametrize("name", ["", "2fish", "my-fish", "fish.py", "a/b", "class", "poisson_été"])
def test_a_name_that_no_module_can_have(tmp_path, name):
    with pytest.raises(errors.CommandError, match=r"cannot be the name of a Python module\. Use letters, digits and underscores"):
        _new.write_project(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["keras", "json"])
def test_a_name_that_would_hide_a_module(tmp_path, name):
    with pytest.raises(errors.CommandError, match=f"'{name}' is the name of an installed module, which {name}.py would hide"):
        _new.write_project(name, tmp_path)


def test_a_folder_that_exists_is_not_touched(tmp_path, capsys):
    (tmp_path / "fish").mkdir()
    (tmp_path / "fish" / "fish.py").write_text("mine")
    assert cli.main(["new", "fish", "--into", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"replicant new: {tmp_path}/fish already exists, and nothing in it was changed. Remove it, or choose another name.\n"
    )
    assert (tmp_path / "fish" / "fish.py").read_text() == "mine"


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(errors.CommandError, match=r"fish cannot be written \(No such file or directory\)\. Choose another folder"):
        _new.write_project("fish", tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.CommandError, match=r"cannot be written \(Not a directory\)\. Choose another folder with --into"):
        _new.write_project("fish", tmp_path / "file")
