"""What a plan keeps of a compiler's analysis, and what it says while it is being made."""

import io
import sys
import time
from pathlib import Path

import pytest

from replicant.errors import ConfigurationError
from replicant.plan import _analysis_cache
from replicant.plan._compile import Analysis
from replicant.plan._exchanges import Exchange
from replicant.plan._stages import stage
from replicant.plan._waiting import Waiting, waiting
from replicant.runtime._compile_cache import CompileCache, _whole

ANALYSIS = Analysis("compiled for 8 x TPU v5e", 1.5e9, 3.0e8, 100, 7, (Exchange("all-reduce", 32, 8),), 2.0)


def test_an_analysis_is_kept_for_the_same_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_analysis_cache, "compile_cache", lambda: CompileCache(tmp_path, "on"))
    key = _analysis_cache.key_of("a program", "v5e:2x4", False)
    assert _analysis_cache.find(key) is None
    _analysis_cache.keep(key, ANALYSIS)
    assert Analysis(**_analysis_cache.find(key) or {}) == ANALYSIS
    assert (
        len({key, _analysis_cache.key_of("a program", "v5e:2x4", True), _analysis_cache.key_of("another", "v5e:2x4", False)}) == 3
    )
    (file,) = tmp_path.iterdir()
    assert file.name.endswith("-cache")  # one of the entries of which the oldest are dropped
    assert _whole(file.read_bytes())
    file.write_bytes(b"half")
    assert _analysis_cache.find(key) is None


def test_nothing_is_kept_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (None, tmp_path / "gone"):
        monkeypatch.setattr(_analysis_cache, "compile_cache", lambda folder=folder: CompileCache(folder, ""))
        _analysis_cache.keep("key", ANALYSIS)
        assert _analysis_cache.find("key") is None


@pytest.mark.parametrize("where", ["memory://plans/of-tests", "new/folder"])
def test_analyses_are_kept_where_a_variable_says(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPLICANT_PLAN_CACHE", where)
    assert _analysis_cache.find("key") is None
    _analysis_cache.keep("key", ANALYSIS)
    assert Analysis(**_analysis_cache.find("key") or {}) == ANALYSIS
    assert [path.name for path in tmp_path.glob("new/folder/*")] == (["plan-key-cache"] if where == "new/folder" else [])
    monkeypatch.setenv("REPLICANT_PLAN_CACHE", "0")
    assert _analysis_cache.find("key") is None
    _analysis_cache.keep("key", ANALYSIS)


def test_a_store_that_does_not_answer_costs_only_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICANT_PLAN_CACHE", "http://127.0.0.1:9/plans")  # where nobody listens
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.2")
    with pytest.warns(UserWarning, match=r"^The plan is made again, because REPLICANT_PLAN_CACHE cannot be read: could not "):
        assert _analysis_cache.find("key") is None
    with pytest.warns(UserWarning, match=r"^The compiler's answers are not kept, because REPLICANT_PLAN_CACHE cannot be written: "):
        _analysis_cache.keep("key", ANALYSIS)


def test_a_url_without_a_bucket_is_no_place_for_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICANT_PLAN_CACHE", "s3://")
    with pytest.raises(
        ConfigurationError, match=r"^REPLICANT_PLAN_CACHE: 's3://' names no bucket\. Write s3://bucket/name, say\.$"
    ):
        _analysis_cache.find("key")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_waited_for_is_redrawn_on_a_terminal() -> None:
    stream = Terminal()
    with Waiting("plan", stream, seconds=0.01) as line:
        line.begin("compiling")
        deadline = time.monotonic() + 120
        while stream.getvalue().count("compiling") < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert stream.getvalue().startswith("\r\033[Kplan: compiling ...\r\033[Kplan: compiling")
    assert stream.getvalue().endswith("\r\033[K")


def test_in_a_log_what_is_waited_for_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with waiting("plan"):
        stage("not said, because nobody looks at a library's log for it")
    with waiting("plan", in_logs=True), waiting("another"):
        stage("compiling")
    assert log.getvalue() == "plan: compiling ...\n"


def test_a_line_in_a_notebook_leaves_only_blanks():
    """Notebooks know no code that clears a line."""
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    with Waiting("plan", stream, seconds=100.0) as line:
        line.begin("compiling for 8 devices")
        line.begin("done")
    long, short = "plan: compiling for 8 devices ...", "plan: done ..."
    assert stream.getvalue() == f"\r{long}\r{short}{' ' * (len(long) - len(short))}\r{' ' * len(long)}\r"
