"""SIGTERM in the midst of training: saved and gone in time, and the next run goes on with the next step."""

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replicant
from replicant.checkpoint.policy._termination import Termination
from replicant.errors import ArgumentError, ContextError

FIT = """
import os, sys, time
os.environ["KERAS_BACKEND"] = "jax"
import replicant
replicant.set_virtual_devices(2)
import keras, numpy as np
folder, where = sys.argv[1:]
with replicant.MirroredStrategy().scope():
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
rows = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
def said(*words):
    print(*words, flush=True)
    if ' '.join(map(str, words)) == where:
        time.sleep(0.5)  # the signal comes now
class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        said("step", batch)
    def on_test_batch_end(self, batch, logs=None):
        said("test", batch)
config = replicant.TerminationConfig(grace_period=60)
model.fit(
    rows, rows[:, 0], batch_size=8, epochs=2, verbose=0, validation_data=(rows, rows[:, 0]), validation_batch_size=8,
    callbacks=[replicant.keras.callbacks.PreemptionHandler(folder, termination_config=config), Tell()],
)
"""

LOOP = """
import sys, time
import replicant
replicant.set_virtual_devices(2)
import jax.numpy as jnp
folder, _ = sys.argv[1:]
strategy = replicant.MirroredStrategy()
total = replicant.Variable(0)
dataset = replicant.data.Dataset.range(40).shuffle(40, seed=1).batch(4)
iterator = iter(strategy.experimental_distribute_dataset(dataset))
step = replicant.function(lambda batch: strategy.run(lambda b: total.assign_add(strategy_sum(b)), args=(batch,)))
def strategy_sum(rows):
    return replicant.get_replica_context().all_reduce("SUM", rows.sum()).astype(total.dtype)
manager = replicant.CheckpointManager(replicant.Checkpoint(total=total, iterator=iterator), folder, 2)
with manager, iterator, replicant.PreemptionCheckpointHandler(manager) as handler:
    for batch in iterator:
        handler.run(step, batch)
        print("step", handler.total_run_calls - 1, flush=True)
        time.sleep(0.1)
print("total", int(total))
"""

STUBBORN = """
import signal, sys, time
from replicant.checkpoint.policy._termination import Termination, TerminationConfig
termination = Termination(TerminationConfig(grace_period=float(sys.argv[1])))
termination.start()
print("ready", flush=True)
time.sleep(120)
"""

# A call into a library that neither holds Python's lock nor looks at signals, as reading a loss from a device that hangs.
STUCK = STUBBORN.replace("time.sleep(120)", "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)")


def lines_until(process: subprocess.Popen[str], last: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.strip())
        if lines[-1] == last:
            break
    return lines


def terminated(program: str, folder: Path, where: str) -> list[str]:
    """What the program said until it was asked to leave, and afterwards."""
    with subprocess.Popen([sys.executable, "-c", program, str(folder), where], stdout=subprocess.PIPE, text=True) as process:
        try:
            said = lines_until(process, where)
            began = time.monotonic()
            process.terminate()
            rest, _ = process.communicate(timeout=60)
            assert time.monotonic() - began < 60
            assert process.returncode == 143
        finally:
            process.kill()
    return said + rest.splitlines()


def finished(program: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), "-"], stdout=subprocess.PIPE, text=True, timeout=240, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("where", [["test 2"], pytest.param(["step 1", "test 2"], marks=pytest.mark.slow)], ids=" and ".join)
def test_fit_loses_no_step(tmp_path: Path, where: list[str]) -> None:
    """Terminated in the midst of an epoch, and in its validation; every step is taken once."""
    folder = tmp_path / "backup"
    said = [line for place in where for line in terminated(FIT, folder, place)] + finished(FIT, folder)
    steps = [line for line in said if line.startswith("step")]
    # "step 4" again: the epoch that ended in the broken validation is ended again, by a step that changes nothing.
    assert steps == [f"step {i}" for i in (0, 1, 2, 3, 4, 4, 0, 1, 2, 3, 4)]
    assert [line for line in said if line.startswith("test")] == [f"test {i}" for i in (0, 1, 2, *range(5), *range(5))]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_loop_loses_no_step(tmp_path: Path) -> None:
    said = terminated(LOOP, tmp_path, "step 2") + finished(LOOP, tmp_path)
    steps = [int(line.split()[1]) for line in said if line.startswith("step")]
    assert sorted(set(steps) | {3}) == list(range(10))  # the step in which it was terminated says nothing any more
    assert len(steps) == len(set(steps))
    assert said[-1] == f"total {sum(range(40))}"


@pytest.mark.cases("the grace period ends", "a second SIGTERM")
@pytest.mark.parametrize(
    ("grace_period", "signals", "code"),
    [("0.3", [signal.SIGTERM], 143), ("60", [signal.SIGTERM, signal.SIGTERM], -15), ("60", [signal.SIGTERM, signal.SIGINT], -2)],
    ids=["the grace period ends", "a second SIGTERM", "Ctrl-C"],
)
def test_who_cannot_save_is_gone_all_the_same(grace_period: str, signals: list[signal.Signals], code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN, grace_period], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            lines_until(process, "ready")
            for number in signals:
                process.send_signal(number)
                time.sleep(0.2)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == code
    if code == 143:
        assert errors == "replicant: SIGTERM: not saved within 0.3 s, leaving all the same.\n"


@pytest.mark.cases("the grace period ends")
@pytest.mark.parametrize(
    ("grace_period", "num_signals"), [("0.3", 1), ("60", 2)], ids=["the grace period ends", "a second SIGTERM"]
)
def test_who_is_stuck_in_a_library_is_gone_all_the_same(grace_period: str, num_signals: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, grace_period], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            lines_until(process, "ready")
            for _ in range(num_signals):
                time.sleep(0.2)
                process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 143
    assert errors == ("replicant: SIGTERM: not saved within 0.3 s, leaving all the same.\n" if num_signals == 1 else "")


def test_who_listened_to_signals_before_still_does() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        assert asked(replicant.TerminationConfig(), act=lambda: os.kill(os.getpid(), signal.SIGTERM)) == "SIGTERM"
        assert os.read(reader, 10) == bytes([signal.SIGTERM])
        assert signal.set_wakeup_fd(before) == writer
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


# The watchers, in this process


def asked(config: replicant.TerminationConfig, act: Any = None) -> str | None:
    termination = Termination(config)
    termination.start()
    termination.start()  # once is enough
    try:
        if act is not None:
            act()
        deadline = time.monotonic() + 5
        while termination.asked_by is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return termination.asked_by
    finally:
        termination.stop()
        termination.stop()


def test_a_function_or_a_file_may_ask(tmp_path: Path) -> None:
    answers = iter([False, False, True])
    assert "says so" in str(asked(replicant.TerminationConfig(lambda: next(answers), poll_interval=0.01)))
    file = tmp_path / "leave"
    config = replicant.TerminationConfig(file, poll_interval=0.01)
    assert asked(config, act=file.touch) == f"{file} says so"


class _Metadata(http.server.BaseHTTPRequestHandler):
    answers: list[tuple[int, bytes]]
    num_asked = 0

    def do_GET(self) -> None:
        type(self).num_asked += 1
        code, body = self.answers.pop(0)
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Be quiet."""


@pytest.fixture
def metadata_server() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Metadata)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/preempted"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_metadata_server_may_ask(metadata_server: str) -> None:
    _Metadata.answers = [(200, b"FALSE"), (404, b"no such thing"), (200, b"NONE\n"), (200, b""), (200, b"TRUE")]
    _Metadata.num_asked = 0
    config = replicant.TerminationConfig(metadata_server, poll_interval=0.01)
    assert asked(config) == f"{metadata_server} says so"
    assert _Metadata.num_asked == 5


def test_sigterm_asks_and_does_afterwards_what_it_did_before() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        assert asked(replicant.TerminationConfig(), act=lambda: os.kill(os.getpid(), signal.SIGTERM)) == "SIGTERM"
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_handler_saves_and_calls_what_ends_the_program(tmp_path: Path) -> None:
    ended: list[str] = []
    config = replicant.TerminationConfig(lambda: True, exit_fn=lambda: ended.append("now"), poll_interval=0.01)
    checkpoint = replicant.Checkpoint(state={"step": 0})
    with replicant.PreemptionCheckpointHandler(checkpoint, tmp_path, config) as handler:
        while not ended:
            handler.run(lambda: checkpoint.state.update(step=checkpoint.state["step"] + 1))
            time.sleep(0.01)
        assert handler.total_run_calls == checkpoint.state["step"]
    assert replicant.latest_checkpoint(tmp_path) == f"{tmp_path}/ckpt-1"
    again = replicant.Checkpoint(state={"step": 0})
    with replicant.PreemptionCheckpointHandler(again, tmp_path) as handler:
        assert handler.total_run_calls == again.state["step"] > 0
        assert not handler.is_preempted


def test_with_exit_code(tmp_path: Path) -> None:
    config = replicant.TerminationConfig(lambda: True, exit_code=7, poll_interval=0.01)
    with replicant.PreemptionCheckpointHandler(replicant.Checkpoint(x=np.ones(2)), tmp_path, config) as handler:
        deadline = time.monotonic() + 5
        while not handler.is_preempted and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(SystemExit, match=r"^7$"):
            handler.save_checkpoint_if_preempted()


@pytest.mark.parametrize("name", ["grace_period", "poll_interval"])
def test_times_must_be_positive(name: str) -> None:
    with pytest.raises(ArgumentError, match=rf"TerminationConfig: {name} must be a positive number of seconds\. Received: 0"):
        replicant.TerminationConfig(**{name: 0})


def test_it_must_be_known_where_to_save(tmp_path: Path) -> None:
    checkpoint = replicant.Checkpoint(x=1)
    with pytest.raises(ArgumentError, match="a plain Checkpoint needs checkpoint_dir"):
        replicant.PreemptionCheckpointHandler(checkpoint)
    with pytest.raises(ArgumentError, match="a CheckpointManager has its own directory"):
        replicant.PreemptionCheckpointHandler(replicant.CheckpointManager(checkpoint, tmp_path, 1), tmp_path)


def test_only_in_the_main_thread(tmp_path: Path) -> None:
    errors: list[str] = []

    def make() -> None:
        try:
            replicant.PreemptionCheckpointHandler(replicant.Checkpoint(x=1), tmp_path)
        except ContextError as error:
            errors.append(str(error))

    thread = threading.Thread(target=make, name="worker")
    thread.start()
    thread.join()
    (error,) = errors
    assert error.startswith(
        "Preemption can only be handled in the main thread, where Python delivers SIGTERM, but training runs in 'w"
    )
