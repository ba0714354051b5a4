"""Servers and workers end with the program that started them, also where that has forked, and only with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import atexit, os, time
import numpy as np
import replicant
from replicant.coordinator import ClusterCoordinator

strategy = replicant.ParameterServerStrategy()
coordinator = ClusterCoordinator(strategy)
with strategy.scope():
    total = replicant.Variable(np.zeros((), "int32"))
{then}
"""
KILLED = """
if {fork} == 0:  # as a DataLoader's worker
    time.sleep(60)
    os._exit(0)
members = [*strategy.cluster.servers, *strategy.cluster.workers]
print(*[member.running.pid for member in members], flush=True)
time.sleep(60)
"""
CHILD_ENDS = """
if (child := os.fork()) == 0:
    atexit._run_exitfuncs()  # what is registered for the end of a program; JAX itself does not end after a fork
    os._exit(0)
os.waitpid(child, 0)
coordinator.schedule(lambda: total.assign_add(1))
coordinator.join(20)
print(int(total.numpy()), strategy.cluster.num_replaced)
strategy.close()
"""


def start(then: str) -> "subprocess.Popen[str]":
    program = PROGRAM.format(then=then)
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], stdout=subprocess.PIPE, text=True, process_group=0)


@pytest.mark.parametrize("fork", ["os.fork()", "__import__('ctypes').CDLL(None).fork()"], ids=["by Python", "by a C library"])
@pytest.mark.long
def test_they_end_with_a_program_that_is_killed_while_its_forked_child_lives_on(fork: str) -> None:
    with start(KILLED.format(fork=fork)) as program:
        try:
            pids = [int(pid) for pid in program.stdout.readline().split()]
            assert len(pids) == 4
            assert [is_running(pid) for pid in pids] == [True] * len(pids)
            program.kill()
            deadline = time.monotonic() + 5
            while any(map(is_running, pids)) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert [is_running(pid) for pid in pids] == [False] * len(pids)
        finally:
            os.killpg(program.pid, signal.SIGKILL)


@pytest.mark.slow
def test_they_live_on_when_a_forked_child_ends() -> None:
    with start(CHILD_ENDS) as program:
        try:
            output, _ = program.communicate(timeout=60)
        finally:
            program.kill()
    assert (program.returncode, output) == (0, "1 {'server': 0, 'worker': 0}\n")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
