"""Ctrl-C while a step's results are stored, before every single line of that: variables are whole, and no change is made twice."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicant
from replicant.coordinator import ClusterCoordinator, OptaxOptimizer
from replicant.coordinator.servers import _client, _gradients, _refs
from replicant.errors import VariableError
from replicant.variables import _recorder, _ref

WATCHED = {module.__file__ for module in (_recorder, _ref, _client, _gradients, _refs)}


@pytest.fixture(scope="module")
def servers() -> Iterator[replicant.ParameterServerStrategy]:
    strategy = replicant.ParameterServerStrategy(transport="threads")
    yield strategy
    strategy.close()


@pytest.fixture(autouse=True)
def no_leaked_threads() -> None:
    """The servers and workers of a module's strategy live as long as the module."""


def interrupted(step: Callable[[], Any], line: int) -> bool:
    """Call `step` and raise KeyboardInterrupt before that line after storing has begun; whether there is such a line."""
    count, started, before = 0, False, sys.gettrace()

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count, started
        code = frame.f_code
        started = started or (code.co_filename == _ref.__file__ and code.co_qualname == "Refs.store")
        if not started or code.co_filename not in WATCHED:
            return trace
        count += event in ("call", "line")
        if count == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        step()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def at_every_line(step: Callable[[], Any], check: Callable[[int], None]) -> int:
    """How many lines there were. `check` is given the number of steps that have been made."""
    step()
    line = 1
    while interrupted(step, line):
        line += 1
        check(line)
    return line


def test_variables_of_replicas() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    plain = replicant.Variable(0.0)
    own = replicant.Variable(0.0, synchronization="ON_READ", aggregation="SUM")

    @replicant.function
    def step() -> None:
        strategy.run(lambda: (plain.assign_add(1.0), own.assign_add(0.5), None)[-1])

    def check(steps: int) -> None:
        assert (float(plain.numpy()), float(own.numpy())) == (steps, steps)

    assert at_every_line(step, check) > 5


def test_changes_of_servers_variables(servers) -> None:
    ClusterCoordinator(servers)
    with servers.scope():
        a, b, table = replicant.Variable(0.0), replicant.Variable(np.zeros(2, "f4")), replicant.Variable(np.zeros((3, 1), "f4"))
        set_ = replicant.Variable(0.0)
        w = replicant.Variable(np.zeros(2, "f4"))
        optimizer = OptaxOptimizer(optax.sgd(1.0), w)

    @replicant.function
    def step() -> None:
        with replicant.GradientTape() as tape:
            loss = jnp.sum(w.value())
        optimizer.apply(tape.gradient(loss, w))
        set_.assign(set_ + 1.0)
        a.assign_add(1.0)
        b.assign_add(jnp.ones(2))
        table.scatter_add(jnp.array([0, 2]), jnp.ones((2, 1)))

    def check(steps: int) -> None:
        assert (float(a.numpy()), float(set_.numpy())) == (steps, steps)
        assert b.numpy().tolist() == [steps, steps]
        assert w.numpy().tolist() == [-steps, -steps]
        assert table.numpy().ravel().tolist() == [steps, 0.0, steps]

    assert at_every_line(step, check) > 20


def test_what_lies_here_is_whole_although_a_server_refuses_its_part(servers) -> None:
    """The refused rows come before the local variable in the function."""
    ClusterCoordinator(servers)
    with servers.scope():
        table = replicant.Variable(np.zeros((3, 1), "f4"))
    local = replicant.Variable(0.0)
    assert type(local) is replicant.Variable

    @replicant.function
    def step(rows: Any) -> None:
        table.scatter_add(rows, np.ones((2, 1), "f4"))
        local.assign_add(1.0)

    step(np.array([0, 1]))
    with pytest.raises(VariableError, match="row 7 was requested"):
        step(np.array([1, 7]))
    assert float(local.numpy()) == 2.0
    step(np.array([0, 1]))
    assert float(local.numpy()) == 3.0
    assert table.numpy().ravel().tolist() == [2.0, 2.0, 0.0]
