"""A timer whose thread is there before it is needed."""

import subprocess
import sys
import threading
import time

from replicant.cluster._ready_timer import ReadyTimer


def test_it_calls_after_the_time():
    called, timer = threading.Event(), ReadyTimer("timer")
    began = time.monotonic()
    timer.start(0.05, called.set)
    assert called.wait(10)
    assert time.monotonic() - began >= 0.05


def test_it_calls_nothing_once_it_is_cancelled_and_its_thread_ends():
    called, timer = threading.Event(), ReadyTimer("timer that is cancelled")
    timer.start(60, called.set)
    timer.cancel()
    never = ReadyTimer("timer that is cancelled")  # and one that was never started
    never.cancel()
    deadline = time.monotonic() + 10
    while any(thread.name == "timer that is cancelled" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not called.is_set()


def test_it_starts_at_exit():
    """Python 3.12.1 starts no thread there."""
    program = """
import atexit, threading
from replicant.cluster._ready_timer import ReadyTimer

timer, called = ReadyTimer("timer"), threading.Event()

@atexit.register
def end():
    timer.start(0.05, called.set)
    print(called.wait(10))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
