"""What workers write reaches the console, whole and once, whenever the supervisor writes into the same log."""

import io
from pathlib import Path

import pytest

from replicant.launch.console import _console
from replicant.launch.console._console import Console, LogTail
from replicant.launch.console._logs import Logs


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path, 2)


def write(logs: Logs, rank: int, text: str) -> None:
    with logs.paths[rank].open("a") as file:
        file.write(text)


def shown(logs: Logs, *, to_the_end: bool = False) -> list[str]:
    out = io.StringIO()
    logs.show(Console(out, io.StringIO()), to_the_end=to_the_end)
    return out.getvalue().splitlines()


def test_the_last_lines_of_a_worker_are_shown_though_the_supervisor_writes_after_them(logs: Logs) -> None:
    write(logs, 0, "step 39\ndone\n")
    logs.tell_all("the workers form a new group")
    write(logs, 0, "bye")
    logs.tell_all("the job ends")
    assert shown(logs, to_the_end=True) == ["[0] step 39", "[0] done", "[0] bye"]
    logs.close()


def test_the_supervisors_lines_are_in_the_logs_and_not_among_the_workers_lines(logs: Logs) -> None:
    logs.tell_all("one")
    write(logs, 1, "a\n")
    logs.tell_all("two")
    write(logs, 1, "b\n")
    assert shown(logs) == ["[1] a", "[1] b"]
    logs.tell_all("three")
    assert shown(logs, to_the_end=True) == []
    assert logs.paths[1].read_text() == "replicant launch: one\na\nreplicant launch: two\nb\nreplicant launch: three\n"
    logs.close()


def test_a_line_that_the_supervisor_writes_into_is_put_together_again(logs: Logs) -> None:
    write(logs, 0, "half a ")
    assert shown(logs) == []
    logs.tell_all("now")
    write(logs, 0, "line\n")
    assert shown(logs) == ["[0] half a line"]
    logs.close()


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, 1000])
def test_whatever_is_read_at_a_time(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_console, "_CHUNK", chunk)
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    tail = LogTail(path)
    with path.open("ab", buffering=0) as file:
        for own, text in ((False, b"a\nb"), (True, b"OUT\n"), (True, b"AGAIN\n"), (False, b"c\n\nd"), (True, b"LAST")):
            file.write(text)
            if own:
                tail.leave_out(file.tell() - len(text), file.tell())
    assert list(tail.all_lines()) == [b"a", b"bc", b"", b"d"]
    assert list(tail.all_lines()) == []
    tail.close()


def test_a_log_that_somebody_truncates_is_read_from_its_beginning(logs: Logs) -> None:
    write(logs, 0, "long enough\n")
    logs.tell_all("and this")
    assert shown(logs) == ["[0] long enough"]
    logs.tell_all("more")
    logs.paths[0].write_text("new\n")
    assert shown(logs) == ["[0] new"]
    logs.close()
