"""A worker killed between its pushes to two servers: whoever calls its function again draws another batch, and mixes nothing."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import replicant
from replicant.coordinator import ClusterCoordinator


def killed_in(moment):
    """A function of the first attempt's process: it dies at a moment of its push, by a real SIGKILL."""
    from replicant.coordinator.servers._site import current_site

    client = current_site().client
    links = client.links

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    if moment == "before":
        client.intent.begin = die
    elif moment == "noted":
        links[0].send = die
    elif moment == "between":
        links[1].send = die
    elif moment == "sent":
        links[0].channel.receive = die
    else:
        client.intent.end = lambda: (type(client.intent).end(client.intent), die())


MOMENTS = [("before", 2), ("noted", 1), ("between", 1), ("sent", 1), ("applied", 1)]  # and whose batch it is then


@pytest.mark.parametrize(
    ("moment", "batch"), [m if m[0] == "between" else pytest.param(*m, marks=pytest.mark.slow) for m in MOMENTS]
)
@pytest.mark.long
def test_the_servers_have_one_batch(tmp_path, moment, batch):
    strategy = replicant.ParameterServerStrategy()
    try:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            variables = [replicant.Variable(np.zeros(1000, "f4")) for _ in range(2)]  # one on each server
            other = replicant.Variable(np.zeros((4, 1), "f4"))  # a row of which only the second batch changes

        @replicant.function
        def add(x):
            for variable in variables:
                variable.assign_add(x)

        def step(path):
            is_first = not Path(path).exists()
            if is_first:
                Path(path).touch()
                killed_in(moment)
            drawn = 1.0 if is_first else 2.0
            add(np.full(1000, drawn, "f4"))
            return drawn

        assert {v.spec.shards[0].server for v in variables} == {0, 1}
        value = coordinator.schedule(step, args=(str(tmp_path / "begun"),))
        coordinator.join(timeout=200)
        assert value.fetch() == 2.0  # what the second call returned
        assert [set(v.numpy().tolist()) for v in variables] == [{batch}, {batch}]
        stats = coordinator.stats()
        assert (stats["replaced_workers"], stats["mixed_closures"]) == (1, 0)
        coordinator.schedule(add, args=(np.full(1000, 10.0, "f4"),))  # and all goes on
        coordinator.join(timeout=200)
        assert [set(v.numpy().tolist()) for v in variables] == [{batch + 10.0}, {batch + 10.0}]
        assert other.numpy().sum() == 0.0
    finally:
        strategy.close()


@pytest.mark.slow
def test_changes_in_several_pushes_may_be_of_two_batches_and_are_counted(tmp_path):
    strategy = replicant.ParameterServerStrategy()
    try:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            first, second = (replicant.Variable(0.0) for _ in range(2))

        def step(path):
            is_first = not Path(path).exists()
            drawn = 1.0 if is_first else 2.0
            first.assign_add(drawn)
            first.numpy()  # what has been changed is pushed before it is read
            if is_first:
                Path(path).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            second.assign_add(drawn)

        coordinator.schedule(step, args=(str(tmp_path / "begun"),))
        coordinator.join(timeout=200)
        assert (float(first.numpy()), float(second.numpy())) == (1.0, 2.0)
        assert coordinator.stats()["mixed_closures"] == 1
    finally:
        strategy.close()
