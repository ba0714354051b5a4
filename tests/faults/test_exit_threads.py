"""A program ends with its own exit code, whatever a thread that reads ahead is doing then."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, threading, time
import jax, jax.numpy as jnp
import replicant
from replicant.data import Dataset

inside = threading.Event()

def traced(value):
    inside.set()
    time.sleep(0.02)  # Python code that XLA's C++ has called
    return value

def slow(x):
    for _ in range(20 if x else 0):
        jax.jit(lambda value: traced(value)).lower(jnp.ones(3))
    return x

replicant.set_virtual_devices(2)
{iterator}
next(iterator)
assert inside.wait(60)
{last}
"""
PIPELINE = "iterator = iter(Dataset.range(100).map(slow).prefetch(4))"
DISTRIBUTED = """
strategy = replicant.MirroredStrategy()
iterator = iter(strategy.experimental_distribute_dataset(Dataset.range(100).map(slow).batch(1)))
"""


@pytest.mark.cases("pipeline-dropped", "distributed-kept")
@pytest.mark.parametrize(
    ("last", "code"),
    [("del iterator", 0), ("del iterator; 1 / 0", 1), ("sys.exit(3)", 3)],
    ids=["dropped", "dropped, error", "kept"],
)
@pytest.mark.parametrize("iterator", [PIPELINE, DISTRIBUTED], ids=["pipeline", "distributed"])
@pytest.mark.long
def test_a_thread_that_reads_ahead_is_waited_for_at_exit(iterator: str, last: str, code: int) -> None:
    program = PROGRAM.format(iterator=iterator, last=last)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr[-3000:]
    assert ("ZeroDivisionError" in done.stderr) == (code == 1)


LAST_DROP = """
import functools, time
from replicant.input.graph._background import END, Background

class Kept:
    def __del__(self):
        time.sleep(1.0)  # as long as it takes to let an array go
        print("let go", flush=True)

def produce(kept):
    return END

background = Background(functools.partial(produce, Kept()), lambda: None, 1, "reader")
assert background.next() is END
1 / 0
"""


@pytest.mark.long
def test_a_thread_that_lets_its_last_array_go_is_waited_for_at_exit() -> None:
    done = subprocess.run([sys.executable, "-c", LAST_DROP], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (1, "let go\n"), done.stderr[-3000:]


BUSY = """
import sys, threading, time, types
import jax, jax.numpy as jnp
import replicant

seen = sys.modules["seen"] = types.ModuleType("seen")  # found by its name by functions that have travelled
seen.inside = inside = threading.Event()

def traced(value):
    seen.inside.set()
    time.sleep(0.02)  # Python code that XLA's C++ has called
    return value

def busy(*_):
    for _ in range(8):
        jax.jit(lambda value: traced(value)).lower(jnp.ones(3))
"""
GIVEN_UP = """
from replicant.cluster.jax._deadline_calls import Patience
try:
    Patience(0.05, "the service").call(busy)
except TimeoutError:
    print("given up")
"""
WATCHER = """
handler = replicant.PreemptionCheckpointHandler(replicant.Checkpoint(x=replicant.Variable(0.0)), sys.argv[1],
    replicant.TerminationConfig(termination_watcher_fn=busy, poll_interval=0.01))
handler.run(int)
"""
WORKER = """
from replicant.coordinator import ClusterCoordinator
strategy = replicant.ParameterServerStrategy(transport="threads")
result = ClusterCoordinator(strategy).schedule(busy)
"""


@pytest.mark.cases("call")
@pytest.mark.parametrize("begin", [GIVEN_UP, WATCHER, WORKER], ids=["call", "watcher", "worker"])
@pytest.mark.long
def test_a_thread_inside_of_jax_is_waited_for_at_exit(begin: str, tmp_path: Path) -> None:
    program = f"{BUSY}{begin}assert inside.wait(60)\n1 / 0"
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr[-3000:]
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.long
def test_a_call_at_exit_is_answered() -> None:
    """Python 3.12.1 starts no thread at exit, when a worker tells the others that its program has ended."""
    program = """
import atexit
from replicant.cluster.jax._deadline_calls import Patience
patience = Patience(20.0, "the service")
atexit.register(lambda: print(patience.call(pow, 2, 10)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("1024\n", "", 0)
