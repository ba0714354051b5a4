"""The workers that tests launch: ``_launched.py WHAT``, with one function per case. Their heartbeat works without JAX."""

import atexit
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

RANK, GENERATION = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["REPLICANT_GENERATION"])
FOR_EVER = 600.0


def heartbeat() -> Any:
    """Import replicant.cluster.wire._supervisor without running the package's own __init__."""
    source = Path(__file__).parents[2] / "src" / "replicant"
    for name, path in (("replicant", source), ("replicant.cluster", source / "cluster")):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(path)]
    from replicant.cluster.wire import _supervisor

    return _supervisor


def steps(count: int, seconds: float = 0.02) -> Any:
    """Take steps, as training does."""
    beats = sys.modules.get("replicant.cluster.wire._supervisor") or heartbeat()
    beats.start()
    for _ in range(count):
        beats.beat()
        time.sleep(seconds)
    return beats


def output() -> None:
    print(f"out of {RANK} of {os.environ['JAX_NUM_PROCESSES']}: {sys.argv[2:]}")
    print("err", file=sys.stderr)
    sys.stdout.write("a line without an end")


def no_newline() -> None:
    sys.stdout.write("x" * 100_000)


def binary() -> None:
    sys.stdout.buffer.write(bytes(range(256)) + b"\nold\rnew\n")


def closed() -> None:
    os.close(1)
    os.close(2)


def exit_7() -> None:
    if RANK == 1:
        sys.exit(7)
    time.sleep(FOR_EVER)


def killed_once() -> None:
    steps(5)
    if RANK == 1 and GENERATION == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if GENERATION == 0:
        time.sleep(FOR_EVER)
    print("second life")


def ignores() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if RANK == 1:
        time.sleep(0.5)  # until the others ignore the signals, too
        sys.exit(3)
    time.sleep(FOR_EVER)


def family() -> None:
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('child', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-S", "-c", child], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    Path(f"child-{RANK}").write_text(str(process.pid))
    if sys.argv[2:] == ["stay"]:
        time.sleep(FOR_EVER)


def frozen() -> None:
    beats = steps(5)
    beats._heartbeat.say_beat()
    if RANK == 1 and GENERATION == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    if GENERATION == 0:
        time.sleep(FOR_EVER)


def frozen_at_its_end() -> None:
    """Freeze rank 1 after the end of its program."""
    if RANK == 1:
        atexit.register(os.kill, os.getpid(), signal.SIGSTOP)  # runs after the heartbeat's own exit handler
    steps(5)


def raises() -> None:
    steps(5)
    if RANK == 1:
        raise ValueError("no good\nand more")
    time.sleep(FOR_EVER)


def loses() -> None:
    """Let rank 1 leave, so that the others cannot continue."""
    beats = steps(5)
    if RANK == 1:
        return
    time.sleep(1.0)
    beats.report("WorkerLostError: worker 1 is gone")
    sys.exit(1)


def late() -> None:
    if RANK == 1:
        time.sleep(FOR_EVER)
    steps(1_000_000)


def stuck() -> None:
    steps(5)
    if RANK == 0:
        time.sleep(FOR_EVER)


def stalled() -> None:
    steps(5)
    time.sleep(FOR_EVER)


def slow() -> None:
    """Take steps until the file "said" exists, with rank 1 slower than the others."""
    while not Path("said").exists():
        steps(1, 0.02 if RANK == 0 else 0.1)


def preempted() -> None:
    if GENERATION < 2:
        sys.exit(143)


def saves() -> None:
    """On SIGTERM, end with the exit code that says that everything was saved."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(85))
    asks_parent(signal.SIGTERM)


def asks_parent(number: int) -> None:
    if RANK == 1:
        time.sleep(0.5)  # until the others wait
        os.kill(os.getppid(), number)
    time.sleep(FOR_EVER)


def interrupted() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background job it is ignored
    asks_parent(signal.SIGINT)


def terminated() -> None:
    asks_parent(signal.SIGTERM)


def hung_up_twice() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if RANK == 1:
        time.sleep(0.5)
        for _ in range(2):
            os.kill(os.getppid(), signal.SIGHUP)
            time.sleep(0.5)
    time.sleep(FOR_EVER)


def patient() -> None:
    steps(150)


def elastic() -> None:
    """Do what run_elastic does, without JAX: take steps until the world is whole again, or for a while."""
    beats = heartbeat()
    link = beats.start()
    link.is_elastic = True
    world, last = (GENERATION, RANK, int(os.environ["JAX_NUM_PROCESSES"])), 2 if sys.argv[2:] == ["whole"] else 1
    if os.environ.get("REPLICANT_JOIN") == "1":
        if sys.argv[2:] == ["replacement-dies"]:
            Path("died").touch()
            sys.exit(9)
        link.say(kind="ready")
        world = obey(link)
    while True:
        try:
            while sys.argv[2:] == ["replacement-dies"] and world[0] and not Path("died").exists():
                beats.beat()
                time.sleep(0.02)
            for step in range(50 if world[0] >= last else 1_000_000):
                beats.beat()
                time.sleep(0.02)
                if step == 5 and world[:2] == (0, 1):
                    suffer(beats, link)
            break
        except Exception as error:
            if type(error).__name__ != "WorkersChangedError":
                raise
            link.say(kind="waiting", generation=world[0], text=str(error))
            world = obey(link)
    print("done", *world)


def obey(link: Any) -> tuple[int, int, int]:
    order = link.take_order(60.0)
    if order is None or order["kind"] != "form":
        sys.exit(4)
    link.say(kind="formed", generation=order["generation"])
    again = link.take_order(60.0)
    if again is not None and again["kind"] == "form":
        link.order = again
        return obey(link)
    return order["generation"], order["rank"], order["num_workers"]


def suffer(beats: Any, link: Any) -> None:
    if sys.argv[2:] == ["frozen"]:
        os.kill(os.getpid(), signal.SIGSTOP)
    if sys.argv[2:] == ["deluded"]:
        link.say(kind="waiting", generation=0, text="nobody is lost")
        obey(link)
    sys.exit(3)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
