"""Branches and loops in functions that workers of parameter servers compute."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np
import pytest

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator
from replicant.errors import ContextError


@pytest.fixture
def strategy() -> Iterator[Any]:
    cluster = ClusterSpec({"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"]})
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(cluster), transport="threads")
    yield strategy
    strategy.close()


def test_additions_in_branches_and_loops(strategy: Any) -> None:
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        count, total = replicant.Variable(0), replicant.Variable(0.0)
        metric = keras.metrics.Sum()

    @replicant.function
    def step(k: Any) -> None:
        count.assign_add(100)
        keras.ops.cond(k > 0, lambda: count.assign_add(1), count.value)

        def body(i: Any, carry: Any) -> Any:
            total.assign_add(k * 2.0)
            total.assign_sub(1.0)
            jax.lax.cond(i == 1, lambda: metric.update_state([5.0]), lambda: None)
            return carry + total

        jax.lax.fori_loop(0, 3, body, 0.0)

    for k in (1, 0, 2):
        coordinator.schedule(step, args=(np.int32(k),))
        coordinator.join()
    assert (int(count.numpy()), float(total.numpy()), float(metric.result())) == (302, 9.0, 15.0)


def test_what_a_branch_cannot_send(strategy: Any) -> None:
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        value, rows = replicant.Variable(1.0, name="value"), replicant.Variable(np.zeros((3, 2), "float32"), name="rows")
        weight, optimizer = keras.Variable(np.ones(3, "float32")), keras.optimizers.SGD(0.1)

    def apply() -> None:
        with replicant.GradientTape() as tape:
            loss = (weight * 1.0).sum()
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    changes: list[tuple[Callable[[], Any], str]] = [
        (lambda: value.assign(5.0), "assign"),
        (lambda: rows.scatter_add([1], np.ones((1, 2), "float32")), "a change of its rows"),
        (apply, "the update by an optimizer"),
    ]
    for change, what in changes:

        @replicant.function
        def step(change: Callable[[], Any] = change) -> None:
            keras.ops.cond(value.value() > 0, lambda: (change(), None)[1], lambda: None)

        coordinator.schedule(step)
        with pytest.raises(ContextError, match=rf"lies on parameter servers, and {what} of it is inside a branch.*schedule one"):
            coordinator.join()
        coordinator.schedule(replicant.function(change))  # what the message says
        coordinator.join()
    assert (float(value.numpy()), rows.numpy()[1].tolist(), weight.numpy().tolist()) == (5.0, [1.0, 1.0], pytest.approx([0.9] * 3))
