"""A function keeps a bounded number of programs; the one that is used all the time is always among them."""

import types
import warnings

import jax.numpy as jnp

import replicant

ONE = jnp.ones(())


def test_of_many_python_arguments_the_hot_one_is_compiled_once() -> None:
    traced = []

    @replicant.function
    def step(x, name):
        traced.append(name)
        return x + len(name)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are many
        step(ONE, "hot")
        for i in range(70):  # 64 are kept
            step(ONE, f"cold {i}")
            assert float(step(ONE, "hot")) == 4.0
    assert traced.count("hot") == 1
    assert step.num_compiled == 64


def test_the_first_to_go_is_the_least_recently_used() -> None:
    traced = []

    @replicant.function
    def step(x, name):
        traced.append(name)
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step(ONE, "first")
        step(ONE, "second")
        step(ONE, "first")  # while there are few
        for i in range(63):  # one more than there is room for
            step(ONE, f"cold {i}")
        before = len(traced)
        step(ONE, "first")
        assert len(traced) == before
        step(ONE, "second")
        assert traced[before:] == ["second"]


def test_of_many_watched_values_the_hot_one_is_compiled_once(capsys) -> None:
    strategy = replicant.OneDeviceStrategy("cpu:0")
    settings = types.SimpleNamespace(scale=1)

    def step(x):
        print("traced")  # a counter would be watched, too
        return x * settings.scale

    def call(scale: int) -> float:
        settings.scale = scale
        return float(strategy.run(step, args=(ONE,)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert call(1) == 1.0
        per_program = capsys.readouterr().out.count("traced")
        for scale in range(2, 22):  # 16 are kept
            assert call(scale) == float(scale)
            assert call(1) == 1.0
    assert capsys.readouterr().out.count("traced") == 20 * per_program
