"""A loop of a model is a `LoopRun` while it runs, which the hooks in Keras find, and nothing of it is left when it ends."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.keras.callbacks import BackupAndRestore
from replicant.keras.loops._fit_callbacks import run_of
from replicant.keras.loops._workers import _without_writers, is_mute
from replicant.keras.state._loop_run import all_loops, current_loop, loop_of
from replicant.keras.state._loop_state import STATE

X, Y = np.arange(12.0).reshape(6, 2), np.arange(6.0).reshape(6, 1)


def small_model(name: str = "model") -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name=name)
    model.compile("sgd", "mse")
    return model


def loops_now() -> list[str]:
    """The loop that this thread is in, and those of all models with an outermost one."""
    current = current_loop()
    return [f"{each.model.name}.{each.name}" for each in [*([] if current is None else [current]), *all_loops()]]


class Noting(keras.callbacks.Callback):
    """Notes which loops there are at some moments, and does something at one of them."""

    def __init__(self, moment: str, act: Callable[[], Any] = lambda: None):
        super().__init__()
        self.seen: dict[str, list[str]] = {}
        self._moment, self._act = moment, act

    def _note(self, moment: str) -> None:
        self.seen[moment] = loops_now()
        if moment == self._moment:
            self._act()

    def on_train_begin(self, logs: Any = None) -> None:
        self._note("train")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._note("test")

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note("predict")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._note("epoch")


def test_loops_in_loops() -> None:
    model, other = small_model(), small_model("other")
    inner = Noting("")
    outer = Noting("epoch", lambda: other.predict(X, verbose=0, callbacks=[inner]))
    model.fit(X, Y, verbose=0, validation_data=(X, Y), callbacks=[outer])
    assert outer.seen == {
        "train": ["model.fit", "model.fit"],
        "test": ["model.evaluate", "model.fit"],  # the outermost of the model is the fit
        "epoch": ["model.fit", "model.fit"],
    }
    assert inner.seen == {"predict": ["other.predict", "model.fit", "other.predict"]}
    assert loops_now() == []


def fail() -> None:
    raise ZeroDivisionError


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", ["train", "test", "epoch"])
@pytest.mark.parametrize("act", [fail, interrupt])
def test_an_interrupted_fit_leaves_nothing_behind(tmp_path, act, moment) -> None:
    model, noting = small_model(), Noting(moment, act)
    with pytest.raises((ZeroDivisionError, KeyboardInterrupt)):
        model.fit(X, Y, verbose=0, validation_data=(X, Y), callbacks=[noting, BackupAndRestore(tmp_path)])
    assert noting.seen[moment][-1] == "model.fit"
    assert (loops_now(), run_of(model), loop_of(model)) == ([], None, None)
    assert model._initial_epoch is None
    assert not model.__dict__.get(STATE)
    assert type(model.train_function).__module__ != "replicant.keras.loops._train_function"  # no link of a callback
    model.fit(X, Y, verbose=0)


def test_what_explains_an_error_belongs_to_its_loop_alone() -> None:
    """Two elements, never batched, may be what a fit fails of, and not what an evaluation within it fails of."""

    class AnyInput(keras.Model):
        def call(self, x: Any) -> Any:
            return keras.ops.sum(x) * keras.ops.ones((1, 1))

    inner: list[list[str]] = []
    model: Any = AnyInput()
    other: Any = AnyInput()
    for each in (model, other):
        each.compile("sgd", "mse")

    def evaluate() -> None:
        with pytest.raises(ZeroDivisionError) as failed:
            other.evaluate(X, Y, verbose=0, callbacks=[Noting("test", fail)])
        inner.append(getattr(failed.value, "__notes__", []))
        fail()

    data = replicant.data.Dataset.from_tensor_slices((X[:2], X[:2]))
    with pytest.raises(ZeroDivisionError) as failed:
        model.fit(data, verbose=0, callbacks=[Noting("train", evaluate)])
    (note,) = failed.value.__notes__
    assert "has no `batch`, so a step got an element of its source as if it were a batch" in note
    assert inner == [[]]


def test_a_loop_keeps_no_model_alive() -> None:
    model = small_model()
    model.fit(X, Y, verbose=0, validation_data=(X, Y))
    known = weakref.ref(model)
    del model
    keras.utils.clear_session()
    gc.collect()
    assert known() is None


def test_callbacks_that_write_files_are_mute_beside_the_chief_in_nested_lists_too(tmp_path) -> None:
    given = [[keras.callbacks.CSVLogger(tmp_path / "a.csv"), keras.callbacks.History()], keras.callbacks.ModelCheckpoint("b.keras")]
    found = [[is_mute(each) for each in _without_writers(given, in_slices)] for in_slices in (False, True)]
    assert found == [[True, False, True], [True, False, False]]
