"""A step that takes too long is reported once, and ended where that was asked for; steps in time are not."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replicant
from replicant.errors import ArgumentError, ContextError, StepTimeoutError
from replicant.runtime import _watchdog

LONG = 60.0  # far more than any of these tests takes
SHORT = 0.02


def until(happened: Callable[[], bool]) -> None:
    """Wait for something that must happen."""
    deadline = time.monotonic() + LONG
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("replicant-watchdog")]


def test_steps_in_time_are_not_reported(capfd: pytest.CaptureFixture[str]) -> None:
    with replicant.Watchdog(LONG) as watchdog:
        assert threads() == ["replicant-watchdog"]
        for _ in range(3):
            watchdog.beat()
        with watchdog.step():
            pass
    assert (watchdog.num_steps, watchdog.num_reports) == (4, 0)
    assert threads() == []
    assert capfd.readouterr().err == ""


def stuck(watchdog: replicant.Watchdog) -> None:
    """A step that ends once it was reported."""
    before = watchdog.num_reports
    until(lambda: watchdog.num_reports > before)


def test_a_long_step_is_reported_with_every_stack(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    done = threading.Event()
    other = threading.Thread(target=done.wait, args=(LONG,), name="reads the input")
    other.start()
    with replicant.Watchdog(SHORT) as watchdog:
        watchdog.beat("epoch 1, batch 2")
        stuck(watchdog)
    done.set()
    other.join()
    report = capfd.readouterr().err
    head = (
        rf"replicant: worker 1 of 2 \(process {os.getpid()} on .+\): step 2 \(epoch 1, batch 2\) has taken \d+\.\d s so far, "
        r"more than 0\.02 s\. What every thread does:\nThread \"MainThread\", most recent call last:\n"
    )
    assert re.match(head, report)
    assert re.search(r'test_watchdog\.py", line \d+, in stuck\n', report)
    assert re.search(
        r'Thread "reads the input", most recent call last:\n(  File .*\n)+  File ".*", line \d+, in Condition\.wait\n', report
    )
    assert "replicant-watchdog" not in report


def test_a_step_is_reported_once_and_the_next_one_again(tmp_path: Path) -> None:
    file = tmp_path / "reports"
    with replicant.Watchdog(SHORT, first_step_seconds=SHORT, file=file) as watchdog:
        stuck(watchdog)
        time.sleep(10 * SHORT)
        assert watchdog.num_reports == 1
        watchdog.beat()
        stuck(watchdog)
    found = re.findall(r"^replicant: process \d+ on .*: (step \d+) has taken", file.read_text(), re.MULTILINE)
    assert found == ["step 1", "step 2"]


def test_between_steps_there_is_no_deadline() -> None:
    with replicant.Watchdog(SHORT, first_step_seconds=LONG) as watchdog:
        with watchdog.step():
            pass
        time.sleep(5 * SHORT)
        watchdog.beat()
        watchdog.pause()
        time.sleep(5 * SHORT)
        assert watchdog.num_reports == 0
        with watchdog.step("evaluation"):
            stuck(watchdog)


def test_the_first_step_and_those_that_compile_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def is_compiling() -> bool:
        asked.set()
        return True

    with replicant.Watchdog(SHORT, first_step_seconds=LONG) as watchdog:
        time.sleep(5 * SHORT)
        monkeypatch.setattr(_watchdog, "_is_compiling", is_compiling)
        watchdog.beat()
        assert asked.wait(LONG)
        monkeypatch.setattr(_watchdog, "_is_compiling", lambda: False)  # it has compiled, and goes on
        time.sleep(5 * SHORT)
        assert watchdog.num_reports == 0
        watchdog.beat()
        stuck(watchdog)


def test_who_compiles_is_known_by_the_stack() -> None:
    import jax

    assert not _watchdog._is_compiling()
    seen = threading.Event()

    def compile_again_and_again() -> None:
        for i in range(1000):
            if seen.is_set():
                return
            jax.jit(lambda x, i=i: jax.numpy.linalg.svd(x * i)[0])(np.eye(3))

    thread = threading.Thread(target=compile_again_and_again)
    thread.start()
    until(_watchdog._is_compiling)
    seen.set()
    thread.join()


def test_it_raises_in_the_main_thread_whatever_that_waits_for(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGURG)
    watchdog = replicant.Watchdog(
        SHORT, first_step_seconds=SHORT, abort_seconds=2 * SHORT, on_abort="raise", file=tmp_path / "file"
    )
    message = r"process \d+ on .*: step 2 \(reading\) took more than \d+\.\d s \(abort_seconds=0\.04\)\. The report shows what"
    for wait in (lambda: threading.Event().wait(LONG), lambda: time.sleep(LONG)):
        with watchdog:
            watchdog.beat("reading")
            with pytest.raises(StepTimeoutError, match=message):
                wait()
        assert (tmp_path / "file").read_text().count("step 2 (reading) has taken") == 1
        (tmp_path / "file").unlink()
    assert signal.getsignal(signal.SIGURG) is before


def test_a_signal_that_comes_too_late_ends_nothing() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGURG, lambda number, frame: received.append(number))
    try:
        with replicant.Watchdog(LONG, abort_seconds=2 * LONG, on_abort="raise") as watchdog:
            watchdog._ended_step = 0
            watchdog.beat()
            signal.raise_signal(signal.SIGURG)
        assert received == [signal.SIGURG]
        assert callable(signal.getsignal(signal.SIGURG))
    finally:
        signal.signal(signal.SIGURG, before)


def test_it_ends_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """(tests/faults has a process that hangs.)"""
    codes: list[int] = []
    monkeypatch.setattr(_watchdog.os, "_exit", codes.append)
    watchdog = replicant.Watchdog(SHORT, first_step_seconds=SHORT, abort_seconds=2 * SHORT, exit_code=9, file=tmp_path / "file")
    with watchdog:
        until(lambda: bool(codes))
    assert codes[0] == 9
    assert re.search(
        r"step 1 has taken .*, too long \(abort_seconds=0\.04\): leaving with exit code 9\.\n", (tmp_path / "file").read_text()
    )


def test_who_cannot_write_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_watchdog, "_SECONDS_TO_WRITE", SHORT)
    done, codes = threading.Event(), []
    monkeypatch.setattr(_watchdog.Watchdog, "_write_now", lambda self, text: done.wait(LONG))
    monkeypatch.setattr(_watchdog.os, "_exit", codes.append)
    with replicant.Watchdog(SHORT, first_step_seconds=SHORT, abort_seconds=2 * SHORT):
        until(lambda: bool(codes))
    done.set()
    until(lambda: threads() == [])


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    with replicant.Watchdog(SHORT, first_step_seconds=SHORT, file=tmp_path / "no" / "such" / "folder") as watchdog:
        stuck(watchdog)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step_seconds": 0}, r"Watchdog: step_seconds must be a positive number of seconds\. Received: 0\."),
        ({"step_seconds": 1, "first_step_seconds": -1}, r"Watchdog: first_step_seconds must be a positive .* Received: -1\."),
        ({"step_seconds": 5, "abort_seconds": 5}, r"Watchdog: abort_seconds must be more than step_seconds=5, so .* Received: 5\."),
        ({"step_seconds": 5, "on_abort": "die"}, r"Watchdog: on_abort must be 'exit' or 'raise'\. Received: 'die'\."),
    ],
)
def test_times_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        replicant.Watchdog(**arguments)


def test_one_watchdog_watches_one_loop() -> None:
    with replicant.Watchdog(LONG) as watchdog, pytest.raises(ContextError, match=r"Watchdog: it is already watching"):
        watchdog.start()


def test_raising_is_for_the_main_thread() -> None:
    errors: list[str] = []

    def watch() -> None:
        try:
            replicant.Watchdog(LONG, abort_seconds=2 * LONG, on_abort="raise").start()
        except ContextError as error:
            errors.append(str(error))

    thread = threading.Thread(target=watch, name="trains")
    thread.start()
    thread.join()
    (error,) = errors
    assert error == (
        "Watchdog(on_abort='raise') must be entered in the main thread, where it raises. This thread is 'trains'. "
        "Train in the main thread, or use on_abort='exit'."
    )
