"""``replicant new``: what it writes, and the names and folders that it refuses."""

import re

import pytest

from replicant import cli, errors
from replicant.cli import _new


def test_four_files_and_what_to_do_next(tmp_path, capsys):
    assert cli.main(["new", "fish", "--into", str(tmp_path)]) == 0
    files = ["Makefile", "fish.py", "requirements.txt", "test_fish.py"]
    assert sorted(path.name for path in (tmp_path / "fish").iterdir()) == files
    assert capsys.readouterr().out.splitlines() == [
        f"Wrote {', '.join(files)} into {tmp_path}/fish. Next:",
        f"  cd {tmp_path}/fish",
        "  pip install -r requirements.txt",
        "  python fish.py --virtual-devices 2",
        "  python -m pytest test_fish.py",
        "`make test` does the first and the last of these. Then change the places that are marked with ADAPT.",
    ]


@pytest.mark.parametrize("template", _new.TEMPLATES)
def test_every_template_is_whole(tmp_path, capsys, template):
    assert cli.main(["new", "fish", "--into", str(tmp_path), "--template", template]) == 0
    written = {path.name: path.read_text() for path in (tmp_path / "fish").iterdir()}
    assert sorted(written) == ["Makefile", "fish.py", "requirements.txt", "test_fish.py"]
    assert not [name for name, text in written.items() if "PROJECT" in text or "IMPORTS" in text]
    assert ("python fish.py --virtual-devices 2" in capsys.readouterr().out) == (template != "ps")
    assert ("--virtual-devices" in written["Makefile"]) == (template != "ps")
    for part in ("ADAPT", "--plan", "killed", "epochs"):
        assert part in written["fish.py"] or part in written["test_fish.py"], part


def test_a_template_that_does_not_exist(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["new", "fish", "--into", str(tmp_path), "--template", "torch"])
    assert "invalid choice: 'torch'" in capsys.readouterr().err


def test_the_program_is_short_and_marks_what_to_adapt(tmp_path):
    folder = _new.write_project("fish", tmp_path)
    program = (folder / "fish.py").read_text()
    assert len(program.splitlines()) < 270
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
