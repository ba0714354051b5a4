"""Runs a compiled function from several threads at once."""

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

_THREADS, _DEADLINE = 4, 120.0


def assert_same_in_threads(compute: Callable[..., Any], *arguments: Any, repeats: int = 25) -> None:
    """Assert that the results have the bits that they have in one thread, whenever four threads compute them."""
    expected = jax.tree.map(np.asarray, compute(*arguments))
    wrong: list[int] = []
    done: list[None] = []

    def repeat() -> None:
        for i in range(repeats):
            same = jax.tree.map(lambda mine, theirs: np.array_equal(np.asarray(mine), theirs), compute(*arguments), expected)
            if not all(jax.tree.leaves(same)):
                wrong.append(i)
        done.append(None)

    threads = [threading.Thread(target=repeat, daemon=True) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_DEADLINE)
    assert len(done) == _THREADS, f"{_THREADS - len(done)} of {_THREADS} threads failed, or did not end within {_DEADLINE} s"
    assert not wrong
