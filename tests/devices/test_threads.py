"""Several threads may train at once: on their own variables, or on the same ones."""

import threading

import jax.numpy as jnp

import replicant


def in_threads(*targets) -> list[BaseException]:
    failures: list[BaseException] = []

    def guarded(target) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return failures


def test_own_variables_and_own_compilations() -> None:
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(4)])
    variables = [replicant.Variable(jnp.zeros(100), aggregation="SUM") for _ in range(3)]

    def train(variable: replicant.Variable) -> None:
        @replicant.function
        def step():
            strategy.run(lambda: variable.assign_add(jnp.ones(100)) is None)

        for _ in range(200):
            step()

    assert in_threads(*[lambda v=v: train(v) for v in variables]) == []
    assert [set(v.numpy().tolist()) for v in variables] == [{800.0}] * 3


def test_the_same_variable() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    shared = replicant.Variable(jnp.zeros(100))
    step = replicant.function(lambda: strategy.run(lambda: shared.assign_add(jnp.ones(100)) is None) and None)

    def train() -> None:
        for _ in range(200):
            step()

    assert in_threads(train, train, train) == []
    assert set(shared.numpy().tolist()) == {600.0}


def test_first_calls_at_once_change_nothing_and_so_nothing_is_warned_of() -> None:
    """Six threads may each compile the function. Warnings are errors here."""
    strategy = replicant.MirroredStrategy(["cpu:0"])
    for _ in range(4):
        total, barrier = replicant.Variable(0.0), threading.Barrier(6)

        @replicant.function
        def step(x, total=total):
            total.assign_add(jnp.sum(x))

        def train(step=step, barrier=barrier) -> None:
            barrier.wait(timeout=60)
            with strategy.scope():
                for _ in range(3):
                    step(jnp.ones(4))

        assert in_threads(*[train] * 6) == []
        assert float(total.numpy()) == 72.0


def test_contexts_are_per_thread() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    seen = []
    with strategy.scope():
        in_threads(lambda: seen.append(replicant.has_strategy()))
    assert seen == [False]
