"""Starting a program: what it makes of the state that it has consumed is kept whenever Ctrl-C arrives."""

import _thread
import signal
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from replicant.runtime import _in_flight


class Kept:
    """A state that is interrupted the first `interruptions` times that it is stored."""

    def __init__(self, interruptions: int = 0):
        self.values: list[Any] = []
        self.times_taken_back = 0
        self._interruptions = interruptions

    def store(self, values: Sequence[Any], /) -> None:
        self.values.append(values)
        if self._interruptions:
            self._interruptions -= 1
            raise KeyboardInterrupt

    def take_back(self) -> None:
        self.values.clear()
        self.times_taken_back += 1


@pytest.mark.parametrize("bounded", [False, True])
def test_the_results_and_what_is_kept(bounded: bool) -> None:
    state = Kept()
    program = jax.jit(lambda x, y: (jnp.zeros(()), x + y, [x * y]))
    _, total, product = _in_flight.call(program, 2.0, 3.0, bounded=bounded, state=state)
    assert float(total) == 5.0
    assert state.values == [product] == [[6.0]]


def test_an_array_alone_is_its_own_token() -> None:
    for _ in range(10):  # more than may be in flight
        assert float(_in_flight.call(jax.jit(jnp.sin), 0.0, bounded=True)) == 0.0


def test_ctrl_c_while_the_program_starts() -> None:
    state = Kept()
    # As with a program of JAX's, no line of Python runs between the signal and the program's return.
    interrupted = map(_thread.interrupt_main, [signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        _in_flight.call(tuple, interrupted, bounded=False, state=state)
    assert state.values == [None]
    assert state.times_taken_back == 0


def test_ctrl_c_while_the_state_is_stored() -> None:
    state = Kept(interruptions=1)
    with pytest.raises(KeyboardInterrupt):
        _in_flight.call(lambda x: (x, x + 1), 1, bounded=False, state=state)
    assert state.values == [2]
    assert state.times_taken_back == 1


def test_a_program_that_fails_keeps_nothing() -> None:
    state = Kept()
    with pytest.raises(ZeroDivisionError):
        _in_flight.call(lambda x: 1 / x, 0, bounded=False, state=state)
    assert state.values == []
