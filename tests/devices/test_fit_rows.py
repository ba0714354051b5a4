"""Batches of arrays for several steps at once: the rows and their order are Keras's own, and so are the random numbers drawn."""

from typing import Any

import jax
import keras
import numpy as np
import pytest

import replicant
from replicant.keras._internals import ArrayDataAdapter
from replicant.keras.data._array_batches import Rows, Several, rows_of, several

NUM_ROWS = 10
X = np.arange(2.0 * NUM_ROWS, dtype=np.float32).reshape(NUM_ROWS, 2)


def adapter(x: Any, y: Any = None, **options: Any) -> ArrayDataAdapter:
    np.random.seed(3)  # noqa: NPY002 - what Keras shuffles with
    return ArrayDataAdapter(x, y, **{"batch_size": 3, "shuffle": False} | options)


def pulled(batches: Any, num: int) -> list[Any]:
    """All batches, read `num` at a time, and the next random number."""
    found = []
    while some := several(batches, num):
        for each in some:
            found += each.unstacked() if isinstance(each, Several) else [each]
    return [*found, np.random.rand()]  # noqa: NPY002


@pytest.mark.parametrize("num", [1, 2, 4])
@pytest.mark.parametrize("shuffle", [False, True, "batch"])
@pytest.mark.parametrize(
    "data",
    [
        (X, np.arange(NUM_ROWS)),
        ({"a": X, "b": [np.asfortranarray(X), X[:, ::-1]]}, None),
        (X.astype(np.float64), jax.numpy.arange(NUM_ROWS)),
        (X, X[:, :1] > 5),
    ],
    ids=["x and y", "many", "other types", "truth"],
)
def test_keras_batches(data: Any, shuffle: Any, num: int) -> None:
    expected = pulled(adapter(*data, shuffle=shuffle).get_jax_iterator(), 1)
    rows = rows_of(kept := adapter(*data, shuffle=shuffle), kept.get_jax_iterator)
    assert isinstance(rows, Rows)
    actual = pulled(rows, num)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)


def test_batches_of_one_shape_are_gathered_together() -> None:
    rows = rows_of(kept := adapter(np.arange(NUM_ROWS)), kept.get_jax_iterator)
    (first,) = several(rows, 2)
    assert first.count == 2
    assert first.stacked.tolist() == [[0, 1, 2], [3, 4, 5]]
    second, last = several(rows, 5)
    assert (second.tolist(), last.tolist()) == ([6, 7, 8], [9])
    assert several(rows, 5) == []


def test_a_gathered_batch_owns_its_memory() -> None:
    """Else it would be copied once more on its way to the devices."""
    rows = rows_of(kept := adapter(X, X[:, 0], shuffle=True), kept.get_jax_iterator)
    (found,) = several(rows, 2)
    assert [leaf.flags.owndata for leaf in jax.tree.leaves(found.stacked)] == [True, True]


def test_what_is_no_array_is_left_to_keras() -> None:
    class Ours(ArrayDataAdapter):
        pass

    given = [(X[:2], 3), (X[2:], 4)]
    found = list(rows_of(Ours(X, batch_size=3), lambda: iter(given)))
    assert [number for _, number in found] == [3, 4]
    for (x, _), (y, _) in zip(found, given, strict=True):
        np.testing.assert_array_equal(x, y)
        assert not np.shares_memory(x, y)
    assert several(iter("abcd"), 3) == ["a", "b", "c"]


class Untouched(dict[str, Any]):
    """Logs that nobody may look at."""

    def items(self) -> Any:
        raise AssertionError("somebody read the logs")


class Listens(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.told.append(batch)


def callback_list(*callbacks: Any) -> Any:
    with replicant.MirroredStrategy(["cpu:0"]).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return keras.callbacks.CallbackList(list(callbacks), add_history=True, model=model)


@pytest.mark.parametrize("end", ["on_train_batch_end", "on_test_batch_end", "on_predict_batch_end"])
def test_an_end_of_a_batch_that_nobody_listens_to(end: str) -> None:
    quiet = callback_list(keras.callbacks.EarlyStopping("loss"))
    quiet.on_train_begin()
    getattr(quiet, end)(0, Untouched(loss=1.0))
    quiet.on_train_end()
    seen = []
    told = callback_list(keras.callbacks.LambdaCallback(**{end: lambda batch, logs: seen.append((batch, logs))}))
    getattr(told, end)(4, {"loss": np.float32(1.5)})
    assert seen == [(4, {"loss": 1.5})]


def test_the_end_of_a_training_batch_under_its_older_name() -> None:
    listens = Listens()
    callback_list(listens).on_train_batch_end(7, {})
    assert listens.told == [7]


def test_without_a_strategy_keras_tells_all() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    callbacks = keras.callbacks.CallbackList([Listens()], model=model)  # not asynchronous
    with pytest.raises(AssertionError, match="somebody read the logs"):
        callbacks.on_train_batch_end(0, Untouched(loss=1.0))
