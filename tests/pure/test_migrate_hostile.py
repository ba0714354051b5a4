"""`replicant migrate` and files that no parser gets through with, that are no files, or whose names no terminal should obey."""

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replicant import cli
from replicant._python import own_python
from replicant.cli import _migration
from replicant.cli._escaped import escaped
from replicant.cli._migration import Translator, _child, _translator, migrate
from replicant.cli._migration.sources import _sources
from replicant.errors import CommandError

SMALL = "import tensorflow as tf\nx = tf.ones(2)\n"
LARGE = "x = [1, 2, 3]\n" * 20_000  # an ordinary script, for which the limits below are too tight
BY_HAND = "Translate it by hand, or divide it into smaller files."


@pytest.fixture
def one_process(translator, monkeypatch):
    """Command lines share a process, which takes seconds to start."""
    monkeypatch.setattr(_migration, "Translator", lambda: contextlib.nullcontext(translator))


@pytest.fixture(scope="module")
def translator():
    with Translator() as translator:
        yield translator


@pytest.fixture
def folder(tmp_path):
    for name, text in {"a.py": SMALL, "b.py": LARGE, "c.py": SMALL}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def refusal(translator, path):
    with pytest.raises(CommandError) as caught:
        translator.translate(path, only_diff=True)
    return str(caught.value)


def is_translated(translator, path):
    translation = translator.translate(path, only_diff=False)
    return translation.changed and b"keras.ops.ones(2)" in translation.data


@pytest.mark.long
def test_a_file_that_takes_too_long_or_ends_the_process_is_refused_and_the_next_one_is_translated(folder):
    with Translator(seconds=lambda size: 0.01 if size > 1000 else 60.0) as translator:
        assert is_translated(translator, folder / "a.py")
        first = translator._process
        assert refusal(translator, folder / "b.py") == f"{folder / 'b.py'} was not translated: it took more than 0.01 s. {BY_HAND}"
        assert first.poll() == -9
        assert is_translated(translator, folder / "c.py")
        second = translator._process
        assert is_translated(translator, folder / "a.py")
        assert translator._process is second  # one for all files, until it ends
        second.kill()
        assert refusal(translator, folder / "a.py") == (
            f"{folder / 'a.py'} was not translated: the process was ended by SIGKILL. {BY_HAND}"
        )
        assert is_translated(translator, folder / "a.py")
        third = translator._process
    assert third.poll() == -9


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep to the limit")
def test_a_file_that_needs_too_much_memory_is_refused_and_the_next_one_is_translated(folder):
    (folder / "b.py").write_text(LARGE * 4)
    (folder / "a.py").write_text("x = 1\n")  # is translated without Keras, which would need memory itself
    with Translator(memory=256 << 20) as translator:
        said = refusal(translator, folder / "b.py")
        assert said in (
            f"{folder / 'b.py'} was not translated: it needs more than 0.268 GB of memory. {BY_HAND}",
            f"{folder / 'b.py'} was not translated: the process was ended by SIGABRT. {BY_HAND}",  # libcst gives up in this way
        )
        assert translator.translate(folder / "a.py", only_diff=False).data == b"x = 1\n"


@pytest.mark.long
def test_nobody_needs_to_wait_for_the_process_to_end(folder):
    """It ends by itself, even in the middle of a file, when its time is up."""
    process = subprocess.Popen(
        own_python("-m", _child.__name__, str(1 << 32)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "{}\n"
        request = {"path": str(folder / "b.py"), "only diff": True, "seconds": 1.0 - _child._SPARE_SECONDS}
        (folder / "b.py").write_text(LARGE * 10)
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        assert process.wait(60) == -14  # SIGALRM


def test_a_process_that_does_not_start(folder, monkeypatch):
    monkeypatch.setattr(_translator, "START_SECONDS", 0.001)
    with Translator() as translator:
        assert refusal(translator, folder / "a.py") == "The process that translates does not start: it took more than 0.001 s."
    monkeypatch.setattr(_translator, "START_SECONDS", 60.0)
    monkeypatch.setattr(_translator, "own_python", lambda *_: [sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"])
    with Translator() as translator:
        assert refusal(translator, folder / "a.py") == (
            "The process that translates does not start: the process ended with exit code 3."
        )


def test_a_process_that_closes_its_output_and_stays(folder, monkeypatch):
    monkeypatch.setattr(_translator, "_END_SECONDS", 0.1)
    code = "import os, time; os.close(1); time.sleep(60)"
    monkeypatch.setattr(_translator, "own_python", lambda *_: [sys.executable, "-I", "-S", "-c", code])
    with Translator() as translator:
        assert refusal(translator, folder / "a.py") == (
            "The process that translates does not start: the process gives no answers any more."
        )


@pytest.mark.parametrize(("size", "seconds"), [(0, 60.0), (10_000, 80.0), (1 << 20, 2157.152), (1 << 40, 3600.0)])
def test_the_deadline_grows_with_the_file(size, seconds):
    assert math.isclose(_translator.seconds_for(size), seconds)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (MemoryError(), {"memory": True}),
        (RecursionError(), {"error": "x.py was not translated: its code is nested too deeply. Translate it by hand."}),
        (ZeroDivisionError("a"), {"error": "x.py was not translated: ZeroDivisionError: a. Please report this."}),
        (CommandError("told"), {"error": "told"}),
    ],
)
def test_what_the_process_says_of_errors(monkeypatch, error, answer):
    def fail(path):
        raise error

    monkeypatch.setattr(_child, "migrate", fail)
    assert _child._answer(Path("x.py"), only_diff=True) == answer


def test_code_that_is_nested_too_deeply_for_the_limit(folder):
    """An ordinary script, and a limit that is lower than Python's."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 40)
    try:
        answer = _child._answer(folder / "a.py", only_diff=True)
    finally:
        sys.setrecursionlimit(limit)
    assert answer == {"error": f"{folder / 'a.py'} was not translated: its code is nested too deeply. Translate it by hand."}


def refused(path):
    with pytest.raises(CommandError) as caught:
        migrate(path)
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".py", ".ipynb", ".md"])
def test_what_is_no_file_is_not_opened(tmp_path, suffix):
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"zero{suffix}").symlink_to("/dev/zero")
    (tmp_path / f"folder{suffix}").mkdir()
    for name in ("pipe", "zero"):
        path = tmp_path / f"{name}{suffix}"
        why = "[Errno 22] It is not a regular file but a pipe, a device or a socket"
        assert refused(path) == f"{path} cannot be read: {why}: '{path}'."
    assert refused(tmp_path / f"folder{suffix}").startswith(f"{tmp_path / 'folder'}{suffix} cannot be read: ")


def test_a_file_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(_sources, "MOST_BYTES", 2 << 20)
    path = tmp_path / "large.py"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # it takes no place on the disk
    assert refused(path) == f"{path} has more than 2 MiB, which is the most that is read. Divide it."


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"# coding: nonsense\nx = 1\n", "unknown encoding: nonsense"),
        (b"# coding: hex\n", "'hex' is not a text encoding; use codecs.decode() to handle arbitrary codecs"),
        (b"# coding: undefined\n", "undefined encoding"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "encoding problem: utf-8"),
        (b"# coding: ascii\nx = '\xe9'\n", "'ascii' codec can't decode byte 0xe9 in position 21: ordinal not in range(128)"),
        (b"x = '\xe9'\n", "'utf-8' codec can't decode byte 0xe9 in position 5: invalid continuation byte"),
    ],
)
def test_encodings_that_do_not_exist_or_do_not_fit(tmp_path, data, said):
    path = tmp_path / "x.py"
    path.write_bytes(data)
    assert refused(path) == f"{path} cannot be read: {said}."


def test_halves_of_characters_in_a_notebook(tmp_path):
    """JSON may hold them. The cell that has one is kept, and the file stays JSON of UTF-8."""
    path = tmp_path / "x.ipynb"
    cells = ["import tensorflow as tf\nx = tf.ones(2)", "print('\ud83d')", "print('\xe9')"]
    book = {"cells": [{"cell_type": "code", "source": cell, "outputs": [], "execution_count": None} for cell in cells]}
    path.write_text(json.dumps(book).replace("\\u00e9", "\xe9"), encoding="utf-8")
    migration = migrate(path)
    new = [cell["source"] for cell in json.loads(migration.data())["cells"]]
    assert new == ["import replicant  # before Keras, which then runs on JAX\nimport keras\nx = keras.ops.ones(2)", *cells[1:]]
    assert "\\ud83d" in migration.text
    assert "\xe9" in migration.text


def test_a_cell_that_holds_the_mark_between_cells(tmp_path):
    """However JSON writes it."""
    cells = ["x = 1\n__replicant_cell__\n", "__replicant_cell___ = tf.ones(2)"]
    path = tmp_path / "x.ipynb"
    book = {"cells": [{"cell_type": "code", "source": cell, "outputs": [], "execution_count": None} for cell in cells]}
    path.write_text(json.dumps(book).replace("_", "\\u005f").replace("cell\\u005ftype", "cell_type").replace("n\\u005fc", "n_c"))
    migration = migrate(path)
    assert [cell.code for cell in migration.source.cells] == cells
    assert migration.source.split(migration.source.joined()) == ["x = 1\n__replicant_cell__", f"{cells[1]}\n"]
    assert migration.source.first_lines == [1, 4]
    assert [migration.source.place(line) for line in (1, 2, 4)] == ["cell 1, line 1", "cell 1, line 2", "cell 2, line 1"]


@pytest.mark.parametrize(
    ("page", "code"),
    [
        ("```python\na\n```\n", ["a\n"]),
        ("```py x\na\n``` \t\r\n```python\nb\n```", ["a\n", "b\n"]),
        ("```python\n```\n", [""]),
        ("```python\n```python\na\n```\n", ["```python\na\n"]),
        ("```\na\n```\n```pythonic\nb\n```\n", ["b\n"]),
        (" ```python\na\n```\n```python\nb", []),
        ("", []),
    ],
)
def test_the_blocks_of_a_page(page, code):
    assert [page[begin:end] for begin, end in _sources._blocks(page)] == code


def test_blocks_that_do_not_end_take_no_longer_than_others():
    """Half a million of them, each of which was looked through to the end of the page."""
    begin = time.process_time()
    assert list(_sources._blocks("```python\nx\n" * 500_000)) == []
    assert len(list(_sources._blocks("```python\nx\n```\n" * 50_000))) == 50_000
    assert time.process_time() - begin < 5.0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b.py", "a b.py"),
        (
            "\N{LATIN SMALL LETTER E WITH ACUTE}\N{SLIGHTLY SMILING FACE}",
            "\N{LATIN SMALL LETTER E WITH ACUTE}\N{SLIGHTLY SMILING FACE}",
        ),
        ("\x1b[2J\r\x07", r"\x1b[2J\r\x07"),
        ("\x9b31m\u202e\u2028", r"\x9b31m\u202e\u2028"),
        ("\udcff", r"\udcff"),
        ("\U000e0001", r"\U000e0001"),
        ("a\n\tb", "a\n\tb"),
    ],
)
def test_what_is_shown_of_texts_of_others(text, shown):
    assert escaped(text) == shown


@pytest.mark.long
def test_a_folder_of_bad_files_is_translated_to_the_end(one_process, tmp_path, capsys):
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    os.mkfifo(source / "a.py")
    (source / "b.py").write_bytes(b"# coding: nonsense\n")
    (source / "c\x1b[2J.py").write_text("def f(:\n")
    (source / "d\udcff.py").write_text("import tensorflow as tf\nx = tf.bitcast(2)\n")
    (source / "e\x1b.py").symlink_to(source / "b.py")
    (source / "f.py").write_text(SMALL)
    assert cli.main(["migrate", str(source), "--output", str(target)]) == 1
    assert sorted(path.name for path in target.iterdir()) == ["d\udcff.py", "f.py"]
    out = capsys.readouterr().out
    assert out.startswith(
        rf"{target}/d\udcff.py: written" + "\n"
        f"{target}/f.py: written\n\n"
        rf"{source}/d\udcff.py: Not translated:" + "\n"
        "  2: tf.bitcast\n      there is no equivalent: write it with keras.ops, jax.numpy or Python\n"
        "\nNot read:\n"
        f"  {source}/a.py cannot be read: [Errno 22] It is not a regular file but a pipe, a device or a socket: '{source}/a.py'.\n"
        f"  {source}/b.py cannot be read: unknown encoding: nonsense.\n"
        rf"  {source}/c\x1b[2J.py is not valid Python, at 1: parser error: "
    )
    assert out.endswith(rf"{source}/e\x1b.py" + "\n\nFiles: 2, changed: 1, not read: 3. To write: 1, to check: 0.\n")
    assert cli.main(["migrate", str(source / "c\x1b[2J.py")]) == 1
    assert capsys.readouterr().err.startswith(rf"replicant migrate: {source}/c\x1b[2J.py is not valid Python, at 1: ")
    (source / "g\x1b.py").write_text(SMALL)
    assert cli.main(["migrate", str(source / "g\x1b.py"), str(source / "a.py")]) == 1  # the first is shown, the second one named
    out = capsys.readouterr().out
    assert out.splitlines()[:3] == [rf"--- {source}/g\x1b.py", rf"+++ {source}/g\x1b.py (Replicant)", "@@ -1,2 +1,3 @@"]
    assert out.endswith("\nFiles: 1, changed: 1, not read: 1. To write: 0, to check: 0.\n")


@pytest.mark.long
def test_folders_and_targets_that_cannot_be_used_end_nothing(one_process, tmp_path, capsys, monkeypatch):
    """As root, who may read everything, the system cannot refuse: one error stands in for its own."""
    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "x.py").write_text("x = 1\n")
    listed = Path.iterdir
    denied = PermissionError(13, "Permission denied")

    def iterdir(path):
        if path.name == "a":
            raise denied
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    (tmp_path / "file").touch()
    source = tmp_path / "in"
    assert cli.main(["migrate", str(source), "--output", str(tmp_path / "file" / "out")]) == 1
    assert capsys.readouterr().out == (
        f"\nNot read:\n  {source}/a cannot be read: Permission denied.\n"
        f"  {tmp_path}/file/out/b/x.py cannot be written: Not a directory.\n"
        "\nFiles: 0, changed: 0, not read: 2. To write: 0, to check: 0.\n"
    )
