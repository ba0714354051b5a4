"""The work of Replicant's own code while it traces a step grows in proportion to the number of variables."""

import sys
from types import FrameType
from typing import Any

import jax.numpy as jnp
import pytest

import replicant
from replicant import _tape
from replicant.programs import _program
from replicant.programs.steps import _replica_step

OWN = {module.__file__ for module in (_tape, _program, _replica_step)}


def lines_to_trace(count: int) -> int:
    """Count the lines of Python that these modules run while a step with `count` variables is traced."""
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False)
    with strategy.scope():
        variables = [replicant.Variable(float(i)) for i in range(count)]

    def replica_step(x: Any) -> None:
        with replicant.GradientTape() as tape:
            loss = x * sum(variable.value() for variable in variables)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(gradient)

    @replicant.function
    def step(x: Any) -> None:
        strategy.run(replica_step, args=(x,))

    compiled: Any = step
    lines = 0

    def on_event(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        del arg
        if frame.f_code.co_filename not in OWN:
            return None
        lines += event == "line"
        return on_event

    before = sys.gettrace()
    sys.settrace(on_event)
    try:
        compiled.get_concrete_function(jnp.float32(1))
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.long
def test_the_lines_that_a_trace_runs_grow_with_the_number_of_variables():
    few, many = lines_to_trace(40), lines_to_trace(160)
    assert many < 5 * few, f"4 times as many variables took {many / few:.1f} times as many lines ({few} and {many})"


def test_each_source_has_its_own_gradients_whatever_their_order():
    variables = [replicant.Variable(float(i)) for i in range(3)]
    unused = replicant.Variable(7.0)

    @replicant.function
    def gradients(x: Any) -> Any:
        with replicant.GradientTape() as tape:
            tape.watch(x)
            first = sum(variable.value() * (i + 1) for i, variable in enumerate(variables))
            loss = x * (first + variables[1].value() ** 2)  # a second read of one of them
        return tape.gradient(loss, [variables[2], x, unused, variables[1], variables[0]])

    third, x, none, second, first = gradients(jnp.float32(2))
    assert none is None
    # d/dv2 = 3x; d/dx = 0*1 + 1*2 + 2*3 + 1**2; d/dv1 = x * (2 + 2*1); d/dv0 = x
    assert [float(third), float(x), float(second), float(first)] == [6.0, 9.0, 8.0, 2.0]
