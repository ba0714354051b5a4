"""The examples' progress line."""

import io

import pytest

import _progress as progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Stands in for the module ``time``."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def run(stream: io.StringIO, clock: Clock, num_steps: int, seconds_per_step: float) -> str:
    with progress.Progress("Epoch 1", num_steps, examples_per_step=128, stream=stream) as bar:
        for step in range(num_steps):
            clock.now += seconds_per_step
            bar.update(2.0 - step)
    return stream.getvalue()


def test_a_log_gets_a_plain_line_every_ten_seconds(clock):
    assert run(io.StringIO(), clock, num_steps=4, seconds_per_step=6.0) == (
        "Epoch 1 [############............] 2/4, 21 examples/s, 12 s left, loss 1.0000\n"
        "Epoch 1 [########################] 4/4, 21 examples/s, 0 s left, loss -1.0000\n"
    )


def test_a_terminal_line_is_redrawn_in_place_and_removed(clock):
    assert run(Terminal(), clock, num_steps=2, seconds_per_step=0.5) == (
        "\rEpoch 1 [############............] 1/2, 256 examples/s, 0 s left, loss 2.0000"
        "\rEpoch 1 [########################] 2/2, 256 examples/s, 0 s left, loss 1.0000"
        f"\r{' ' * 77}\r"
    )


def test_a_notebook_line_is_redrawn_too(clock):
    stream_of_a_kernel = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    assert run(stream_of_a_kernel(), clock, num_steps=1, seconds_per_step=0.5) == (
        "\rEpoch 1 [########################] 1/1, 256 examples/s, 0 s left, loss 2.0000\r" + " " * 77 + "\r"
    )


def test_a_quick_loop_does_not_look_at_the_loss(clock):
    class Unread:
        def __float__(self) -> float:
            raise AssertionError("the loss was fetched from the device")

    stream = io.StringIO()
    with progress.Progress("Epoch 1", 3, examples_per_step=1, stream=stream) as bar:
        for _ in range(3):
            clock.now += 0.1
            bar.update(Unread())
    assert stream.getvalue() == ""
