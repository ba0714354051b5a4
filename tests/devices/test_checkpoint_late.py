"""What becomes part of a checkpoint's objects after the restore gets its value then, and nothing is lost in silence."""

import gc
import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import Checkpoint, Variable
from replicant.errors import CheckpointError
from replicant.variables import _recorder

PARTLY = r"was restored in part\."


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """Variables 1.0 to 5.0, in all kinds of containers."""
    gc.collect()  # other tests' restores
    return Checkpoint(
        blocks=[Variable(1.0), Variable(2.0)], nested={"a": {"x": Variable(3.0)}, "b": [Variable(4.0)]}, pair=(Variable(5.0),)
    ).save(tmp_path / "ckpt")


def test_a_list_that_grows(saved: str) -> None:
    checkpoint = Checkpoint(blocks=[Variable(0.0)], nested={"a": {}, "b": []}, pair=())
    status = checkpoint.restore(saved)
    assert status.unexpected == ("blocks/1", "nested/a/x", "nested/b/0", "pair/0")
    second, third, fourth, fifth = (Variable(0.0) for _ in range(4))
    checkpoint.blocks.append(second)
    assert float(second.value()) == 2.0
    checkpoint.nested["a"]["x"] = third
    assert third.numpy() == 3.0
    checkpoint.nested["b"] += [fourth]
    assert np.asarray(fourth) == 4.0
    assert status.unexpected == ("pair/0",)
    checkpoint.pair = (fifth,)
    assert float(fifth) == 5.0
    assert float(checkpoint.blocks[0]) == 1.0
    status.assert_consumed()
    assert _recorder.before_use == []


def test_containers_that_the_program_holds_itself_grow(saved: str) -> None:
    blocks: list[Any] = []
    checkpoint = Checkpoint(blocks=blocks)
    checkpoint.restore(saved).expect_partial()
    blocks.extend([Variable(0.0), Variable(0.0)])
    assert [float(block) for block in blocks] == [1.0, 2.0]


def test_what_is_assigned_later_is_newer(saved: str) -> None:
    blocks = [Variable(0.0)]
    checkpoint = Checkpoint(blocks=blocks)
    status = checkpoint.restore(saved)
    late = Variable(0.0)
    blocks.append(late)
    late.assign_add(10.0)
    assert float(late) == 12.0
    replaced = Variable(7.0)
    blocks[1] = replaced
    assert float(replaced) == 7.0  # the value was given to the first one
    status.expect_partial()


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_step_computes_with_the_restored_values(saved: str, num_replicas: int) -> None:
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    with strategy.scope():
        checkpoint = Checkpoint(blocks=[Variable(0.0)])
        status = checkpoint.restore(saved)
        checkpoint.blocks.append(Variable(0.0))
    blocks = checkpoint.blocks
    step = replicant.function(lambda: strategy.reduce("MEAN", strategy.run(lambda: blocks[0] + blocks[1]), axis=None))
    status.expect_partial()
    assert float(step()) == 3.0


def test_another_attribute_with_numbers_and_arrays(tmp_path: Path) -> None:
    path = Checkpoint(progress={"epoch": 3, "loss": np.array([1.0, 2.0])}).save(tmp_path / "ckpt")
    checkpoint = Checkpoint()
    status = checkpoint.restore(path)
    checkpoint.progress = {"epoch": 0, "loss": np.zeros(2)}
    assert checkpoint.progress["epoch"] == 3
    assert checkpoint.progress["loss"].tolist() == [1.0, 2.0]
    status.assert_consumed()


@pytest.mark.parametrize("late", [9, np.ones(2), jnp.ones(2)], ids=["number", "NumPy", "JAX"])
def test_a_number_that_comes_later_may_be_newer(tmp_path: Path, late: Any) -> None:
    path = Checkpoint(history=[1, late], v=Variable(1.0)).save(tmp_path / "ckpt")
    history = [0]
    variable = Variable(0.0)
    checkpoint = Checkpoint(history=history, v=variable)
    status = checkpoint.restore(path)
    history.append(late + 1)
    message = (
        r"ckpt-1 has values for 'history/1', which were added to a list, tuple or dict only after the restore\..*it keeps its value"
    )
    for use in (variable.numpy, lambda: checkpoint.history, status.assert_consumed, lambda: checkpoint.save(tmp_path / "next")):
        with pytest.raises(CheckpointError, match=message):
            use()
        status._restore.answered = False  # type: ignore[union-attr] - as if nobody had asked
    status.expect_partial()
    assert np.all(checkpoint.history[1] == late + 1)
    assert history[0] == 1
    checkpoint.save(tmp_path / "next")


def test_after_a_warning_a_number_is_only_warned_about(tmp_path: Path) -> None:
    path = Checkpoint(history=[1, 2], v=Variable(1.0)).save(tmp_path / "ckpt")
    checkpoint = Checkpoint(history=[0], v=Variable(0.0))
    checkpoint.restore(path)
    with pytest.warns(UserWarning, match=PARTLY):
        checkpoint.save(tmp_path / "next")
    checkpoint._objects["history"].append(7)
    with pytest.warns(UserWarning, match=r"has values for 'history/1', which were added to a list"):
        assert checkpoint.history == [1, 7]
    assert checkpoint.history == [1, 7]


# What is never used is told, as soon as that is known


def open_ended(saved: str) -> tuple[Checkpoint, Any]:
    checkpoint = Checkpoint(blocks=[Variable(0.0)], other=Variable(0.0))
    return checkpoint, checkpoint.restore(saved)


def test_the_next_step_tells(saved: str) -> None:
    checkpoint, status = open_ended(saved)
    step = replicant.function(lambda: checkpoint._objects["other"].assign_add(1.0))
    with pytest.warns(
        UserWarning, match=PARTLY + r"\n  Missing in the checkpoint:\n    other\n  In the checkpoint, .*\n    blocks/1"
    ):
        step()
    step()  # told once
    assert status.missing == ("other",)


def test_run_tells(saved: str) -> None:
    checkpoint, _ = open_ended(saved)
    other = checkpoint.other
    with pytest.warns(UserWarning, match=PARTLY):
        replicant.MirroredStrategy(["cpu:0"]).run(other.value)


def test_the_next_save_tells(saved: str, tmp_path: Path) -> None:
    checkpoint, _ = open_ended(saved)
    with pytest.warns(UserWarning, match=PARTLY):
        checkpoint.save(tmp_path / "next")


def test_the_next_restore_tells(saved: str) -> None:
    checkpoint, _ = open_ended(saved)
    with pytest.warns(UserWarning, match=PARTLY):
        checkpoint.restore(saved).expect_partial()


def test_a_dropped_checkpoint_tells(saved: str) -> None:
    opened = open_ended(saved)
    with pytest.warns(UserWarning, match=PARTLY):
        del opened


def test_who_asked_is_not_told(saved: str, tmp_path: Path) -> None:
    checkpoint, status = open_ended(saved)
    status.expect_partial()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = checkpoint.other
        replicant.function(lambda: other.assign_add(1.0))()
        checkpoint.save(tmp_path / "next")
        late = Variable(0.0)
        checkpoint.blocks.append(late)
        assert float(late) == 2.0  # partial or not, what comes later is restored
        checkpoint.restore(saved).expect_partial()
        del checkpoint, status
        gc.collect()
    assert _recorder.before_use == []


# Keras


class WithHead(keras.Model):
    """Calls its head only on request: until then the model is built, and the head is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.last = (keras.layers.Dense(4, kernel_initializer="random_normal") for _ in range(3))

    def call(self, inputs: Any, with_head: bool = False) -> Any:
        x = self.first(inputs)
        return self.last(self.head(x) if with_head else x)


ROWS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.filterwarnings(r"ignore:`build\(\)` was called on layer")  # Keras notices that the head is not built
def test_a_layer_that_is_built_later_does_not_shift_the_others(tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    model = WithHead()
    expected = np.asarray(model(ROWS, with_head=True))
    path = Checkpoint(model=model).save(tmp_path / "ckpt")
    restored = WithHead()
    restored(ROWS)  # without the head: all kernels have one shape, and the stored ones are one more
    status = Checkpoint(model=restored).restore(path)
    assert len(status.deferred) == 6
    for _ in range(2):  # without values it computes nothing
        with pytest.raises(
            CheckpointError, match=r"'model' \(WithHead\) waits for its values .* This call does not build some of its layers"
        ):
            restored(ROWS)
    assert np.asarray(restored(ROWS, with_head=True)).tobytes() == expected.tobytes()
    status.assert_consumed()


def test_layers_that_are_appended(tmp_path: Path) -> None:
    def layer() -> Any:
        return keras.layers.Dense(4)

    keras.utils.set_random_seed(2)
    layers = [layer() for _ in range(3)]
    expected = [np.asarray(each(ROWS)) for each in layers]
    path = Checkpoint(layers=layers).save(tmp_path / "ckpt")
    again = [layer()]
    again[0].build((None, 4))
    status = Checkpoint(layers=again).restore(path)
    built, unbuilt = layer(), layer()
    built.build((None, 4))
    again.append(built)
    assert np.asarray(again[0](ROWS)).tobytes() == expected[0].tobytes()
    assert np.asarray(again[1](ROWS)).tobytes() == expected[1].tobytes()
    again.append(unbuilt)
    assert status.unexpected == ()  # looks, and builds it as the saved one was
    assert np.asarray(again[2](ROWS)).tobytes() == expected[2].tobytes()
    status.assert_consumed()


class NeverBuilt(keras.Model):
    """Nothing that is saved says how to build it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def get_build_config(self) -> None:
        return None

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)


def test_values_that_wait_are_saved_again(tmp_path: Path) -> None:
    """A program that restores and saves before it calls the model must not lose the model's weights."""
    keras.utils.set_random_seed(3)
    model, optimizer = NeverBuilt(), keras.optimizers.Adam()
    expected = np.asarray(model(ROWS))
    optimizer.build(model.trainable_variables)
    first = Checkpoint(model=model, optimizer=optimizer, epoch=1).save(tmp_path / "ckpt")
    waiting = Checkpoint(model=NeverBuilt(), optimizer=keras.optimizers.Adam(), epoch=0)
    waiting.restore(first)
    waiting.epoch = 2
    second = waiting.save(tmp_path / "ckpt")
    assert replicant.list_variables(second) == replicant.list_variables(first)
    restored, new = NeverBuilt(), keras.optimizers.Adam()
    checkpoint = Checkpoint(model=restored, optimizer=new, epoch=0)
    status = checkpoint.restore(second)
    assert checkpoint.epoch == 2
    assert np.asarray(restored(ROWS)).tobytes() == expected.tobytes()
    status.assert_consumed()
    assert len(new.variables) == len(optimizer.variables)
