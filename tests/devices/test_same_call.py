"""A call that is like the last one finds its program without a signature. Whatever makes it another call must be seen."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.programs import _programs


@pytest.fixture
def quick(monkeypatch):
    """Whether each call was found without its signature."""
    answers = []
    same_again = _programs.Programs.same_again

    def noted(self, *args):
        program = same_again(self, *args)
        answers.append(program is not None)
        return program

    monkeypatch.setattr(_programs.Programs, "same_again", noted)
    return answers


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (jnp.zeros(2, jnp.float32), jnp.zeros(3, jnp.float32)),
        (jnp.zeros(2, jnp.float32), jnp.zeros(2, jnp.float16)),
        (jnp.zeros((), jnp.float32), jnp.asarray(0.0)),  # a weak type
        (jnp.zeros(2, jnp.float32), np.zeros(2, np.float32)),
        (jnp.zeros(2, jnp.float32), [jnp.zeros(2, jnp.float32)]),
        (jnp.zeros(2, jnp.float32), {"x": jnp.zeros(2, jnp.float32)}),
        (jnp.zeros(2, jnp.float32), 0.5),
        (jnp.zeros(2, jnp.float32), None),
        (jax.random.key(0), jnp.zeros((), jnp.uint32)),
        (jax.random.key(0), jax.random.key(0, impl="rbg")),
    ],
)
def test_arguments_of_another_kind(quick, first, other):
    """Each call returns what the code makes of its own argument."""

    @replicant.function
    def fn(value):
        return jax.tree.structure(value), [
            type(x).__name__ if isinstance(x, float) else str(jax.typeof(x)) for x in jax.tree.leaves(value)
        ]

    alone = [fn(first), replicant.function(fn.python_function)(other)]
    for number in (1, 0, 1, 0, 0, 0, 1, 1):
        assert fn((first, other)[number]) == alone[number]
    assert alone[0] != alone[1] or isinstance(other, np.ndarray)
    assert quick[:2] == [False, False]  # `first`, and `other` alone
    assert quick[2] is quick[3] is quick[4] is quick[5] is quick[8] is False


def test_the_second_of_two_like_calls_is_quick(quick):
    @replicant.function
    def add(x, y):
        return x + y

    one = jnp.ones(3)
    assert [add(one, y=one * i).tolist() for i in range(4)] == [[1.0 + i] * 3 for i in range(4)]
    assert quick == [False, False, True, True]


def test_switching_trainable_between_calls_is_seen(quick):
    weight = keras.Variable(2.0, name="weight")

    @replicant.function
    def fn(x):
        with replicant.GradientTape() as tape:
            loss = weight * x
        return tape.gradient(loss, weight) if weight.trainable else x * 0

    x = jnp.asarray(3.0)
    seen = []
    for trainable in (True, True, True, False, False, False, True, True):
        weight.trainable = trainable
        seen.append(float(fn(x)))
    assert seen == [3, 3, 3, 0, 0, 0, 3, 3]
    assert quick == [False, False, True, False, False, True, False, True]


def test_a_global_that_run_names_is_seen_at_once(quick):
    strategy = replicant.OneDeviceStrategy("cpu:0")
    factor = {"value": 2.0}

    def replica(x):
        return x * factor["value"]

    x, seen = jnp.asarray(3.0), []
    for value in (2.0, 2.0, 2.0, 5.0, 5.0, 2.0, 2.0):
        factor["value"] = value
        seen.append(float(strategy.run(replica, args=(x,))))
    assert seen == [6, 6, 6, 15, 15, 6, 6]
    assert quick[2] is True
    assert quick[3] is False
    assert quick[5] is False


def test_two_strategies_in_turns(quick):
    first, second = replicant.MirroredStrategy(["cpu:0", "cpu:1"]), replicant.OneDeviceStrategy("cpu:2")

    @replicant.function
    def replicas(x):
        return x + replicant.get_strategy().num_replicas_in_sync

    x = jnp.zeros(())
    for strategy in (first, second, first, first, second, second):
        with strategy.scope():
            assert float(replicas(x)) == strategy.num_replicas_in_sync
    assert quick == [False, False, False, True, False, True]


def test_arguments_that_lie_on_another_device(quick):
    strategy = replicant.OneDeviceStrategy("cpu:0")

    def double(x):
        return 2 * x

    for device in (0, 0, 0, 1, 1, 0):
        x = jax.device_put(jnp.ones(3), jax.devices()[device])
        result = strategy.run(double, args=(x,))
        assert result.tolist() == [2, 2, 2]
        assert result.devices() == {jax.devices()[0]}
    assert quick[2] is True


def test_a_program_that_was_dropped_is_not_found(quick, monkeypatch):
    monkeypatch.setattr(_programs, "_MAX_PROGRAMS", 2)

    @replicant.function
    def double(x):
        return 2 * x

    for size in (1, 2, 3, 4, 1, 1, 1, 2, 3):
        assert double(jnp.ones(size)).tolist() == [2] * size
    assert quick == [False] * 6 + [True] + [False] * 2
    assert double.num_compiled <= 3


def test_in_a_trace_it_is_refused_although_the_last_call_was_like_it():
    @replicant.function
    def double(x):
        return 2 * x

    x = jnp.ones(3)
    double(x), double(x), double(x)
    with pytest.raises(replicant.errors.ContextError, match=r"was called inside a function under jax\.jit"):
        jax.jit(double)(x)
