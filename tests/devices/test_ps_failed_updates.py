"""After an update has failed, on a server or on its way to one, nothing of it is left and the next write is read back."""

import jax
import numpy as np
import optax
import pytest

import replicant
from replicant.coordinator import ClusterCoordinator, OptaxOptimizer
from replicant.errors import VariableError


@pytest.fixture(scope="module")
def strategy():
    strategy = replicant.ParameterServerStrategy(transport="threads")
    yield strategy
    strategy.close()


@pytest.fixture(autouse=True)
def no_leaked_threads():
    """The servers and workers of a module's strategy live as long as the module."""
    return


def only_rank_one(gradient, state, _=None):
    if gradient.ndim == 2:
        raise ZeroDivisionError("rank 2 is not supported")
    return jax.tree.map(lambda x: -0.1 * x, gradient), state


@pytest.mark.parametrize("failures", [1, 2])
def test_an_assignment_after_a_failed_optimizer_is_read_back(strategy, failures):
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        w = replicant.Variable(np.zeros((2, 2), "f4"))
        optimizer = OptaxOptimizer(optax.GradientTransformation(lambda _: (), only_rank_one), w)

    @replicant.function
    def train(x):
        with replicant.GradientTape() as tape:
            loss = (w.value() * x).sum()
        optimizer.apply(tape.gradient(loss, w))
        return loss

    for _ in range(failures):
        coordinator.schedule(train, args=(np.ones((2, 2), "f4"),))
        with pytest.raises(ZeroDivisionError, match="rank 2 is not supported"):
            coordinator.join()
    assert w.numpy().tolist() == [[0.0, 0.0], [0.0, 0.0]]
    w.assign(np.full((2, 2), 5.0, "f4"))
    assert w.numpy().tolist() == [[5.0, 5.0], [5.0, 5.0]]
    assert coordinator.schedule(lambda: w.numpy().sum()).fetch() == 20.0


@pytest.mark.parametrize("where", ["worker", "coordinator"])
def test_rows_that_do_not_exist_leave_nothing_behind(strategy, where):
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        count, table = replicant.Variable(0.0), replicant.Variable(np.zeros((3, 1), "f4"))

    @replicant.function
    def add(rows):
        count.assign_add(1.0)
        table.scatter_add(rows, np.ones((2, 1), "f4"))

    def call(rows):
        if where == "worker":
            coordinator.schedule(add, args=(rows,))
            coordinator.join()
        else:
            add(rows)

    with pytest.raises(VariableError, match="rows 0 to 2, but row 7 was requested"):
        call(np.array([1, 7]))
    assert (count.numpy(), table.numpy().ravel().tolist()) == (0.0, [0.0, 0.0, 0.0])
    for _ in range(2):
        call(np.array([1, 2]))
    assert (count.numpy(), table.numpy().ravel().tolist()) == (2.0, [0.0, 2.0, 2.0])
