"""Runs elastic workers, some of which are struck: ``_elastic_program.py MODE``. Every worker prints what it does, with times.

The modes are:

* skew: Rank 2 kills itself. When its replacement has come, rank 1 is between two steps, and rank 0 is in a step that waits for
  rank 1. An array of the old world is kept, which keeps XLA's client alive.
* early: Rank 0 kills itself before it has connected to another worker.
* stuck: Rank 2 kills itself, and rank 1 does not leave its current step.
* connect, backends, mesh, sockets, step: Rank 1 kills itself before it connects, before its devices are made, before its first
  exchange, before the workers tell each other about their sockets, or before its first step.
"""

import os
import signal
import sys
import time
from typing import Any

MODE = sys.argv[1]
RANK, IS_FIRST = os.environ["JAX_PROCESS_ID"], os.environ["REPLICANT_GENERATION"] == "0"  # at the launch
NUM_STEPS = 40
ESTABLISHED = "01"

if MODE == "early" and RANK == "0" and IS_FIRST:
    os.kill(os.getpid(), signal.SIGKILL)

import numpy as np  # noqa: E402

import replicant  # noqa: E402
from replicant.cluster.jax import _bootstrap, _devices, _gloo_sockets, _tcp_sockets  # noqa: E402
from replicant.cluster.wire import _supervisor  # noqa: E402

WHERE = {
    "connect": (type(_bootstrap._private()), "client"),
    "backends": (_devices, "start"),
    "mesh": (_devices, "_exchange"),
    "sockets": (_gloo_sockets, "listening_ports"),
}


def die(*args: object, **kwargs: object) -> None:
    if MODE != "sockets" or len(calls) == 1:
        say("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(None)


calls: list[None] = []
if MODE in WHERE and RANK == "1" and IS_FIRST:
    setattr(*WHERE[MODE], die)

kept: list[Any] = []  # the ports of the world's exchange, and an array


def say(*words: object) -> None:
    print(*words, f"at {time.time():.2f}", flush=True)


def train() -> int:
    strategy = replicant.MultiWorkerMirroredStrategy()
    generation = int(os.environ["REPLICANT_GENERATION"])
    if kept:
        own, peers, _ = kept[0]
        sockets = _tcp_sockets.tcp_sockets()
        say("open", sum(state == ESTABLISHED and (local in own or remote in peers) for _, local, remote, state in sockets))
    if MODE == "step" and RANK == "1" and IS_FIRST:
        die()
    ones = strategy.experimental_distribute_values_from_function(lambda _: np.float32(1))

    def step(x):
        return replicant.get_replica_context().all_reduce("SUM", x)

    for number in range(NUM_STEPS if generation == 2 or MODE in ("stuck", "step", *WHERE) else 1_000_000):
        total = strategy.run(step, args=(ones,))
        assert float(strategy.experimental_local_results(total)[0]) == strategy.num_replicas_in_sync
        say("step", number, "generation", generation)
        if number == 5:
            meet_misfortune(generation)
        time.sleep(0.02)
        if MODE == "skew" and generation == 1:
            kept[:] = ([*_bootstrap._state["gloo"], total],)
    return strategy.num_replicas_in_sync


def meet_misfortune(generation: int) -> None:
    if MODE in ("skew", "stuck") and RANK == "2" and IS_FIRST:
        os.kill(os.getpid(), signal.SIGKILL)
    if MODE == "skew" and RANK == "1" and generation == 1:
        while not _supervisor.is_ordered():
            time.sleep(0.02)
        say("ordered")
    if MODE == "stuck" and RANK == "1" and IS_FIRST:
        time.sleep(600)


print("done with", replicant.run_elastic(train), flush=True)
