"""Compiled programs on disk: the second process compiles nothing, and nothing broken or strange is ever used."""

import os
import sys
from pathlib import Path

import jax
import jaxlib
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages

from _quiet import printed

from replicant.runtime import _compile_cache

PROGRAM = """
import jax, replicant
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
strategy = replicant.MirroredStrategy(["cpu:0"])
print(strategy.run(lambda x: x * 2 + 1, args=(jax.numpy.arange(3.0),)), len(hits) > 0, replicant.compile_cache().reason)
"""


def run(folder: Path | str, **changes: str) -> str:
    environ = {k: v for k, v in os.environ.items() if k not in {"XLA_FLAGS", "NPROC", "JAX_COMPILATION_CACHE_DIR"}}
    return printed(PROGRAM, environ | {"REPLICANT_COMPILATION_CACHE": str(folder)} | changes)


@pytest.mark.long
def test_the_second_process_compiles_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    assert run(folder) == "[1. 3. 5.] False on"
    written = sorted(folder.glob("*-cache"))
    assert written
    assert folder.stat().st_mode & 0o777 == 0o700
    assert run(folder) == "[1. 3. 5.] True on"
    assert sorted(folder.glob("*-cache")) == written


@pytest.mark.long
def test_what_a_killed_process_wrote_half_is_removed(tmp_path: Path) -> None:
    run(tmp_path)
    for path in tmp_path.glob("*-cache"):
        path.write_bytes(path.read_bytes()[:-20])
    assert run(tmp_path, JAX_RAISE_PERSISTENT_CACHE_ERRORS="1") == "[1. 3. 5.] False on"  # compiled anew
    assert run(tmp_path) == "[1. 3. 5.] True on"


@pytest.mark.long
def test_what_another_process_is_just_writing_is_compiled_quietly(tmp_path: Path) -> None:
    run(tmp_path)
    empty = f"[path.write_bytes(b'') for path in __import__('pathlib').Path({str(tmp_path)!r}).glob('*-cache')]"
    program = PROGRAM.replace("import jax, replicant", f"import jax, replicant\n{empty}")
    environ = {k: v for k, v in os.environ.items() if k not in {"XLA_FLAGS", "NPROC", "JAX_COMPILATION_CACHE_DIR"}}
    assert printed(program, environ | {"REPLICANT_COMPILATION_CACHE": str(tmp_path)}) == "[1. 3. 5.] False on"


@pytest.mark.long
def test_switched_off() -> None:
    assert run("0") == "[1. 3. 5.] False REPLICANT_COMPILATION_CACHE=0"


@pytest.mark.long
def test_the_users_own_setting_is_left_alone(tmp_path: Path) -> None:
    answer = run(tmp_path / "ours", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "theirs"))
    assert answer == f"[1. 3. 5.] False JAX's own setting is used: {tmp_path / 'theirs'}"
    assert not (tmp_path / "ours").exists()


@pytest.mark.long
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert run(tmp_path).startswith(f"[1. 3. 5.] False no folder to keep compiled programs in ({tmp_path} belongs to user ")
    assert not list(tmp_path.glob("*-cache"))


@pytest.mark.long
def test_a_folder_that_others_can_replace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    refusal = f"[1. 3. 5.] False no folder to keep compiled programs in ({tmp_path / 'open'} has mode 777: others could replace"
    assert run(tmp_path / "open" / "folder").startswith(refusal)
    (tmp_path / "open").chmod(0o1777)  # like /tmp: everybody may add to it, and nobody may replace what others added
    assert run(tmp_path / "open" / "folder") == "[1. 3. 5.] False on"


def test_a_link_on_the_way_is_followed_once(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    assert _compile_cache._prepared(tmp_path / "link" / "programs") == tmp_path / "mine" / "programs"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_folder_in_somebody_elses_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, -1)
    with pytest.raises(PermissionError, match=r"theirs belongs to user 12345, who could replace what is in it"):
        _compile_cache._prepared(tmp_path / "theirs" / "programs")


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "no folder to keep compiled programs in ([Errno" in run(tmp_path / "file" / "folder")


def test_a_url_is_no_place_for_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "REPLICANT_COMPILATION_CACHE=s3://b/x is a URL, and compiled programs are machine code, which is kept in a folder of"
    with pytest.warns(
        UserWarning, match=rf"^{expected} this machine only\. Every start compiles everything again: name a folder\.$"
    ):
        found = _compile_cache._configured({"REPLICANT_COMPILATION_CACHE": "s3://b/x"})
    assert found.folder is None
    assert found.reason == f"{expected} this machine only"


def test_the_default_folder_is_the_users_and_names_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    folder = _compile_cache.default_folder({"XDG_CACHE_HOME": str(tmp_path)})
    assert folder.parent == tmp_path / "replicant"
    assert folder.name.startswith(f"jax-{jax.__version__}-jaxlib-{jaxlib.__version__}-")


def test_the_oldest_entries_go_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_compile_cache, "MAX_BYTES", 250)
    for age, name in enumerate(["young", "middle", "old"]):
        path = tmp_path / f"{name}-cache"
        path.write_bytes(b"x" * 100)
        os.utime(path, (1e9 - age, 1e9 - age))
    _compile_cache._drop_oldest(_compile_cache._entries(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["middle-cache", "young-cache"]


def test_a_user_without_a_home_directory_can_import_replicant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # whom the system does not know
    of_the_tests = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        found = _compile_cache._configured({})
    finally:
        jax.config.update("jax_compilation_cache_dir", of_the_tests)
    assert found.folder is None
    assert found.reason == (
        "no folder to keep compiled programs in (this user has no home directory: set HOME, or REPLICANT_COMPILATION_CACHE to a "
        "folder)"
    )


def test_an_entry_that_cannot_be_looked_at_does_not_turn_the_cache_off(tmp_path: Path) -> None:
    (tmp_path / "a-cache").symlink_to("a-cache")  # ELOOP for everybody who looks
    (tmp_path / "b-cache").write_bytes(b"half")
    (tmp_path / "gone-cache").symlink_to("nowhere")
    assert _compile_cache._prepared(tmp_path) == tmp_path
    assert not (tmp_path / "b-cache").exists()  # the others are looked at
