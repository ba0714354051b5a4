"""Random functions without a seed: a compiled step follows ``keras.utils.set_random_seed``, as eager code does."""

import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import replicant


def draws(step: Callable[[], Any], num: int = 2) -> list[Any]:
    return [np.asarray(step()).tolist() for _ in range(num)]


def eager(seed: int, num: int = 2) -> list[Any]:
    keras.utils.set_random_seed(seed)
    return draws(lambda: keras.random.normal((2,)), num)


def of_run() -> Callable[[], Any]:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    return lambda: strategy.experimental_local_results(strategy.run(lambda: keras.random.normal((2,))))[0]


STEPS: dict[str, Callable[[], Callable[[], Any]]] = {
    "function": lambda: replicant.function(lambda: keras.random.normal((2,))),
    "run": of_run,
}


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_a_new_seed_reaches_a_compiled_step(make: Callable[[], Callable[[], Any]]) -> None:
    wanted = eager(3, 4)
    step = make()
    keras.utils.set_random_seed(3)
    assert draws(step) == wanted[:2]
    keras.utils.set_random_seed(3)
    assert [*draws(step), *draws(lambda: keras.random.normal((2,))), *draws(step, 1)][:4] == wanted
    keras.utils.set_random_seed(3)
    assert draws(lambda: keras.random.normal((2,)), 1) + draws(step, 3) == wanted  # the first draw comes from a new generator


def test_two_steps_share_the_generator() -> None:
    wanted = eager(4, 6)
    one, two = STEPS["function"](), STEPS["function"]()
    keras.utils.set_random_seed(4)
    assert draws(one) == wanted[:2]
    keras.utils.set_random_seed(4)
    assert draws(two) == wanted[:2]  # compiled with another generator
    assert draws(one) + draws(two) == wanted[2:]
    keras.utils.set_random_seed(4)
    assert draws(one, 1) + draws(two, 1) + draws(one, 1) == wanted[:3]


def test_a_function_is_not_compiled_again() -> None:
    step: Any = STEPS["function"]()
    for seed in range(3):
        keras.utils.set_random_seed(seed)
        draws(step)
    assert step.num_compiled == 1


def test_another_thread_goes_on() -> None:
    """Keras has a global generator for each thread, and this one has none."""
    wanted = eager(5, 4)
    step = STEPS["function"]()
    keras.utils.set_random_seed(5)
    got = draws(step)
    thread = threading.Thread(target=lambda: got.extend(draws(step)))
    thread.start()
    thread.join()
    assert got == wanted


class Noisy(keras.Model):
    """Its training step draws without a seed."""

    def __init__(self) -> None:
        super().__init__()
        self.w = self.add_weight(shape=(2,), initializer="zeros")

    def call(self, x: Any) -> Any:
        return x * self.w

    def train_step(self, data: Any) -> dict[str, Any]:
        self.w.assign(keras.random.normal((2,)))
        return {"loss": keras.ops.sum(data)}


def test_a_new_seed_reaches_fit() -> None:
    model, x = Noisy(), np.ones((4, 2), np.float32)
    model.compile("sgd")
    found = []
    for seed in (6, 7, 6):
        keras.utils.set_random_seed(seed)
        model.fit(x, batch_size=4, verbose=0, shuffle=False)
        found.append(np.asarray(model.w.value).tolist())
    assert found[0] == found[2] != found[1]
