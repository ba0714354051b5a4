"""Measures what the control plane costs with many workers: requests to the store, the supervisor's time, and the roll call.

Workers are threads of this process. Their messages are real, and their store is a dictionary that counts requests. The supervisor
watches connections to a second process. Run: ``python benchmarks/control_plane.py [workers ...]``.
"""

import argparse
import collections
import contextlib
import itertools
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from replicant.cluster import Membership
from replicant.cluster.exchange._world import Timeouts, World
from replicant.cluster.meeting._member import call_roll
from replicant.cluster.wire._handshake import proof
from replicant.cluster.wire._supervisor import WORKER
from replicant.data import Dataset, DistributedDataset
from replicant.launch._settings import Settings
from replicant.launch._supervisor import _beat_seconds
from replicant.launch.console._console import Console
from replicant.launch.console._logs import Logs
from replicant.launch.record._run_log import RunLog
from replicant.launch.team._connections import Channel
from replicant.launch.team._team import Team
from replicant.replicas._topology import Topology

_STEPS = 64
_EXCHANGES = 5
_BEATS = 5
_SUPERVISED_SECONDS = 10.0


class Store:
    """A key-value store in memory, in which waiting is cheap, because each key has an event of its own."""

    def __init__(self):
        self.texts, self.lock = {}, threading.Lock()
        self.waiting = collections.defaultdict(threading.Event)
        self.num_requests = 0

    def put(self, key, text, *, overwrite=False):
        """Store a text."""
        del overwrite
        with self.lock:
            self.num_requests += 1
            self.texts[key] = text
            self.waiting[key].set()

    def get(self, key, timeout_seconds):
        """Return a text as soon as it is there."""
        with self.lock:
            self.num_requests += 1
            event = self.waiting[key]
        if not event.wait(timeout_seconds):
            raise TimeoutError(key)
        return self.texts[key]

    def list(self, prefix):
        """Return everything whose key begins with `prefix`."""
        with self.lock:
            self.num_requests += 1
            return {key: text for key, text in self.texts.items() if key.startswith(prefix)}

    def increment(self, key):
        """Increment a counter, and return it."""
        with self.lock:
            self.num_requests += 1
            self.texts[key] = int(self.texts.get(key, 0)) + 1
            return self.texts[key]

    def delete(self, key):
        """Delete a text, and everything below its key."""
        with self.lock:
            self.num_requests += 1
            for each in [each for each in self.texts if each == key or each.startswith(f"{key}/")]:
                del self.texts[each]
                self.waiting.pop(each, None)

    def close(self):
        """Do nothing."""


def on_all(count, fn):
    """Call ``fn(rank)`` on `count` threads, and raise the first error of one of them."""
    errors = []

    def one(rank):
        try:
            fn(rank)
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def worlds_of(count):
    """Make a store and the worlds of its workers."""
    store = Store()
    timeouts = Timeouts(exchange=300.0, heartbeat=300.0)
    return store, [World.over(store, Membership(rank, count, "a:1"), ["host"] * count, timeouts=timeouts) for rank in range(count)]


def exchanges(count):
    """Return a worker's requests for one exchange, and its seconds."""
    store, worlds = worlds_of(count)
    started = time.perf_counter()

    def talk(rank):
        for _ in range(_EXCHANGES):
            worlds[rank].exchange("x", str(rank))

    on_all(count, talk)
    return store.num_requests / count / _EXCHANGES, (time.perf_counter() - started) / _EXCHANGES


class Places:
    """Where the strategies of several workers place batches, without devices: the workers tell each other the forms."""

    def form(self, columns):
        """Dtype and shape of each part."""
        return [[[str(part.dtype), list(part.shape)] for part in column] for column in columns]

    def together(self, columns, forms=None):
        """What is placed. The forms of all workers came with the steps that they agreed on."""
        assert forms is not None
        return [column[0] for column in columns]


def steps(count):
    """Return a worker's requests per step, if each worker reads its own data, whose end is unknown."""
    store, worlds = worlds_of(count)

    places: Any = Places()

    def train(rank):
        dataset = DistributedDataset.from_function(
            lambda _: Dataset.from_generator(lambda: itertools.repeat(np.zeros(8, np.float32), _STEPS + rank % 3)),
            Topology(count, rank, 1),
            lambda values: values[0],
            exchange=worlds[rank].exchange.values("dataset"),
            workers=places,
        )
        for _ in dataset:
            time.sleep(0.002 * max(1, count / 4))  # a step, during which the input continues

    on_all(count, train)
    return store.num_requests / count / (_STEPS + min(2, count - 1))


def beats(count):
    """Return a worker's requests per heartbeat."""
    store, worlds = worlds_of(count)
    for world in worlds:
        world.liveness.begin(print)
    time.sleep(_BEATS * max(1.0, count / 512))
    for world in worlds:
        world.liveness._ended.set()
    for world in worlds:
        world.liveness.end()
    num_beats = sum(int(text.split()[0]) for key, text in store.texts.items() if "/beat/" in key)
    return store.num_requests / num_beats


class Played:
    """A worker without a process. Its ``poll`` makes the system call that polls a process."""

    def __init__(self, rank, anybody):
        self.rank = self.pid = rank
        self.anybody, self.log = anybody, ""
        self.code, self.signals = None, set()

    def kill(self):
        """Do nothing, because there is no process."""

    def poll(self):
        """Whether the worker has ended."""
        if self.code is None:
            os.waitid(os.P_PID, self.anybody, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return self.code is not None

    def is_stopped(self):
        """Return False."""
        return False


class Watched(Team):
    """A team of such workers."""

    anybody: Any  # the id of a process to poll
    until: float

    def _start(self):
        workers: list[Any] = [Played(rank, self.anybody) for rank in range(self._settings.num_workers)]
        self.workers = workers

    def _each_round(self, now):
        if now > self.until:
            for worker in self.workers:
                worker.code = 0


def _workers(count, channel, ready, over):
    """Keep all workers' ends of the connections, in a process of its own."""
    port, key, interval = channel
    ends = []
    for rank in range(count):
        own = socket.create_connection(("127.0.0.1", port))
        nonce = json.loads(own.recv(4096))["nonce"]
        hello = {"kind": "hello", "rank": rank, "generation": 0, "pid": rank, "nonce": "1", "proof": proof(key, WORKER, nonce, "1")}
        own.sendall(json.dumps(hello).encode() + b"\n")
        own.recv(4096)
        ends.append(own)
    ready.set()
    step = 0
    while not over.is_set():
        step += 1
        for end in ends:
            message = {"kind": "beat", "step": step, "at": time.monotonic(), "waited": 0.0, "phase": "step"}
            end.sendall(json.dumps(message).encode() + b"\n")
            time.sleep(interval / count)


def supervisor(count):
    """Return the share of one core that a supervisor takes."""
    settings = Settings(command=("true",), num_workers=count)
    context = multiprocessing.get_context("spawn")
    ready, over = context.Event(), context.Event()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack, Path(os.devnull).open("w") as nowhere:
        channel = stack.enter_context(Channel(_beat_seconds(settings)))
        channel.is_expected = lambda *_: True
        port = int(channel.address.split(":")[1])
        process = context.Process(target=_workers, args=(count, (port, channel.key, _beat_seconds(settings)), ready, over))
        process.start()
        logs = Logs(Path(folder), count)
        signals = SimpleNamespace(take=list)
        tools: Any = SimpleNamespace(
            settings=settings,
            console=Console(nowhere, nowhere),
            logs=logs,
            run_log=RunLog(Path(folder) / "run.jsonl", print),
            signals=signals,
            channel=channel,
            guard=None,
        )
        Watched.anybody = process.pid
        team = Watched(tools, 0, stack)
        while not ready.is_set():
            for rank, message in channel.poll(0.05):
                team._take(rank, message)
        team.until = time.monotonic() + _SUPERVISED_SECONDS
        before = time.process_time()
        team.watch()
        seconds = time.process_time() - before
        over.set()
        process.join()
        logs.close()
    return seconds / _SUPERVISED_SECONDS


def roll_call(count):
    """Return the seconds of a roll call of all workers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    started = time.perf_counter()
    on_all(count, lambda rank: call_roll(Membership(rank, count, address), f"host {rank}", {"Python": "3"}, 60.0))
    return time.perf_counter() - started


def main():
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="Measure what the control plane costs with many simulated workers.")
    parser.add_argument("workers", nargs="*", type=int, default=[64, 256, 1024], help="their numbers (default: 64 256 1024)")
    counts = parser.parse_args().workers
    threading.stack_size(1 << 18)
    print("| workers | requests per exchange | per step, own data | per heartbeat | supervisor, of a core | roll call |")
    print("|---|---|---|---|---|---|")
    for count in counts:
        print(f"{count} ...", end="", file=sys.stderr, flush=True)
        per_exchange, seconds = exchanges(count)
        cells = [
            f"{count}",
            f"{per_exchange:.2f} ({1000 * seconds:.0f} ms)",
            f"{steps(count):.2f}",
            f"{beats(count):.2f}",
            f"{100 * supervisor(count):.1f} %",
            f"{roll_call(count):.2f} s",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
