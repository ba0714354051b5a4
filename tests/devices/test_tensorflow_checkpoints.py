"""Checkpoints that TensorFlow has written, restored into models and optimizers: TensorFlow's values, and its next losses.

Some are here; all recorded ones are read from the folder REPLICANT_TEST_DATA.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.checkpoint.tensorflow.files._file_bytes import FileBytes
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import FixedShardsPartitioner
from replicant.errors import CheckpointError

from ._tensorflow_checkpoints import MODELS, Recorded, inputs

FILES = Path(__file__).parents[1] / "tensorflow_files" / "objects"
DATA = Path(os.environ.get("REPLICANT_TEST_DATA", "/nowhere")) / "open"
ALL = sorted(path.parent for path in DATA.glob("ckpt_*/*/truth.json"))
CPUS = ["cpu:0", "cpu:1"]
STRATEGIES: dict[str, Callable[[], replicant.Strategy]] = {
    "one device": replicant.get_strategy,
    "two, as one": lambda: replicant.MirroredStrategy(CPUS),
    "two, apart": lambda: replicant.MirroredStrategy(CPUS, fuse_replicas=False),
    "in slices": lambda: replicant.FullyShardedStrategy(CPUS, min_size=8),
}
HERE = [
    ("ckpt_tf_keras/sequential_adam", "in slices"),
    ("ckpt_tf_keras/subclass_adamw_ema", "two, as one"),
    ("ckpt_tf_keras_legacy/nested_loss_scale", "two, apart"),
    ("ckpt_keras3/nested_loss_scale", "one device"),
    ("ckpt_keras3/subclass_adamw_ema", "in slices"),
]


def restored(folder: Path, strategy: str, **options: Any) -> tuple[Recorded, Any]:
    recorded = Recorded(folder, STRATEGIES[strategy](), **options)
    # Keras 3 leaves layers in lists out of TensorFlow's checkpoints.
    by_order = (recorded.truth["kind"], recorded.which) == ("keras3", "subclass")
    return recorded, recorded.checkpoint.restore(recorded.path, by_order=by_order)


def assert_as_recorded(recorded: Recorded, status: Any) -> None:
    assert status.missing == status.deferred == ()
    assert status.unexpected in ((), ("iterator",))
    status.expect_partial()
    assert recorded.wrong() == []
    assert recorded.errors() <= 1e-6
    assert (int(recorded.step), recorded.checkpoint.epoch) == (recorded.truth["step"], recorded.truth["epoch"])


@pytest.mark.parametrize(("name", "strategy"), HERE, ids=["/".join(each) for each in HERE])
def test_every_value_is_that_of_tensorflow(name: str, strategy: str) -> None:
    assert_as_recorded(*restored(FILES / name, strategy))


@pytest.mark.skipif(not ALL, reason="REPLICANT_TEST_DATA names no folder with recorded checkpoints")
@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("folder", ALL, ids=["/".join(path.parts[-2:]) for path in ALL])
def test_training_goes_on_with_the_losses_of_tensorflow(folder: Path, strategy: str) -> None:
    recorded, status = restored(folder, strategy, built=strategy == "two, as one")
    assert_as_recorded(recorded, status)
    losses = recorded.losses() if strategy == "one device" else recorded.fit_losses()
    if (recorded.truth["kind"], recorded.which) != ("keras3", "text"):  # there, Keras 3 on TensorFlow takes wrong squares
        np.testing.assert_allclose(losses, recorded.truth["next_losses"], atol=1e-5)


def test_onto_four_devices_each_byte_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = []
    for name in ("read_summed", "pieces"):
        read = getattr(FileBytes, name)

        def noted(file: Any, start: int, *args: Any, read: Any = read, **kwargs: Any) -> Any:
            if ".data-" in file.path.name:
                ranges.append((start, args[0] if read.__name__ == "read_summed" else args[1]))
            return read(file, start, *args, **kwargs)

        monkeypatch.setattr(FileBytes, name, noted)
    strategy = replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(4)], min_size=8)
    recorded = Recorded(FILES / "ckpt_tf_keras/sequential_adam", strategy)
    assert_as_recorded(recorded, recorded.checkpoint.restore(recorded.path))
    (file,) = recorded.path.parent.glob(f"{recorded.path.name}.data-*")
    assert len(ranges) > 15
    covered = np.zeros(file.stat().st_size, int)
    for start, size in ranges:
        covered[start : start + size] += 1
    assert covered.max() == 1


# What the status says


def test_layers_in_lists_that_keras_3_leaves_out_are_named() -> None:
    recorded = Recorded(FILES / "ckpt_keras3/subclass_adamw_ema", replicant.get_strategy())
    status = recorded.checkpoint.restore(recorded.path)
    assert [key for key in status.missing if key.startswith("model/")] == [
        "model/weights/2.kernel",
        "model/weights/3.bias",
        "model/weights/4.kernel",
        "model/weights/5.bias",
        "model/weights/6.kernel",
        "model/weights/7.bias",
    ]
    assert "optimizer/_trainable_variables/2" in status.unexpected
    status.assert_nontrivial_match()
    message = r"(?s)do not match.*model/weights/2\.kernel.*Keras 3 leaves layers in lists.*: model/blocks, model/heads\. .*by_order"
    with pytest.raises(CheckpointError, match=message):
        status.assert_existing_objects_matched()


def test_a_model_without_its_optimizer_is_restored_alone() -> None:
    model = MODELS["sequential"]()
    status = replicant.Checkpoint(model=model).restore(FILES / "ckpt_tf_keras/sequential_adam/ckpt-1")
    status.assert_existing_objects_matched().assert_nontrivial_match()
    assert status.unexpected[:4] == ("epoch", "iterator", "step", "optimizer/_iterations")
    with pytest.raises(CheckpointError, match=r"(?s)not in the objects:.*optimizer/_momentums/0"):
        status.assert_consumed()


def test_seeds_are_in_no_checkpoint_of_tensorflow() -> None:
    model = MODELS["nested"]()
    model.add_seed = keras.layers.Dropout(0.5)
    status = replicant.Checkpoint(model=model).restore(FILES / "ckpt_tf_keras_legacy/nested_loss_scale/ckpt-1")
    assert status.never_saved == ("model/seeds/0.seed_generator_state",)
    assert status.missing == ()
    status.expect_partial()


def test_tables_without_keys_are_no_values() -> None:
    """Keras keeps them beside a vocabulary, which is in no checkpoint."""
    layer = replicant.keras.layers.StringLookup(vocabulary=["a", "b"])
    replicant.Checkpoint(lookup=layer).read(FILES / "lookups/one_lookup").assert_consumed()
    assert np.asarray(layer(["b", "c"])).tolist() == [2, 0]


def test_a_model_that_is_not_built_gets_its_values_when_it_is_called() -> None:
    model, optimizer = MODELS["subclass"](), keras.optimizers.AdamW(1e-2, use_ema=True)
    checkpoint = replicant.Checkpoint(model=model, optimizer=optimizer)
    status = checkpoint.restore(FILES / "ckpt_tf_keras/subclass_adamw_ema/ckpt-1")
    assert (len(status.deferred), status.missing) == (42, ())
    status.expect_partial()
    with pytest.raises(CheckpointError, match=r"Values of .*ckpt-1 still wait for objects that are not built: model/"):
        checkpoint.save("/nowhere/ckpt")
    model(inputs("subclass")[0])
    assert (status.deferred, status.missing, status.unexpected) == ((), (), ("epoch", "step"))
    recorded, _ = restored(FILES / "ckpt_tf_keras/subclass_adamw_ema", "one device")
    for mine, theirs in zip(
        model.weights + optimizer.variables, recorded.model.weights + recorded.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_another_shape_is_an_error_that_names_both() -> None:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(4)])
    before = [np.array(each) for each in model.weights]
    with pytest.raises(
        CheckpointError, match=r"(?s)does not fit.*model/weights/6\.kernel: stored float32\[8, 3\], found float32\[8, 4\]"
    ):
        replicant.Checkpoint(model=model).restore(FILES / "ckpt_tf_keras/sequential_adam/ckpt-1")
    for one, other in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_checkpoint_that_has_nothing_for_the_objects_is_an_error() -> None:
    message = r"nothing for these objects, which are called 'net'; those in it are called 'epoch', 'iterator', 'model'"
    with pytest.raises(CheckpointError, match=message):
        replicant.Checkpoint(net=MODELS["sequential"]()).restore(FILES / "ckpt_tf_keras/sequential_adam/ckpt-1")


def test_the_order_counts_only_if_both_optimizers_train_the_same() -> None:
    path = FILES / "ckpt_keras3/subclass_adamw_ema/ckpt-1"
    model, optimizer = MODELS["subclass"](), keras.optimizers.AdamW(1e-2, use_ema=True)
    model(inputs("subclass")[0])
    optimizer.build(model.trainable_variables[:-1])
    with pytest.raises(CheckpointError, match=r"trains 10 variables, but 'adam_w\w*' is built for 9"):
        replicant.Checkpoint(model=model, optimizer=optimizer).restore(path, by_order=True)
    other = keras.optimizers.AdamW(1e-2, use_ema=True)
    other.build(model.trainable_variables[::-1])
    with pytest.raises(
        CheckpointError, match=r"variable 0 of the optimizer in the checkpoint is '.*kernel', but that of 'adam_w\w*' is"
    ):
        replicant.Checkpoint(model=model, optimizer=other).restore(path, by_order=True)


# What was saved under strategies


@pytest.mark.parametrize(
    ("name", "value", "copies"),
    [("SUM", [3.0, 5.0, 7.0], [[1.5, 2.5, 3.5]] * 2), ("MEAN", [1.5, 2.5, 3.5], [[1.5, 2.5, 3.5]] * 2), ("SUM_int", 17, [9, 8])],
)
def test_variables_with_a_copy_per_replica(name: str, value: Any, copies: Any) -> None:
    """TensorFlow restores 17 as 8 and 8, and loses 1. Here, the sum stays what it is."""
    strategy = replicant.MirroredStrategy(CPUS)
    with strategy.scope():
        zero = np.zeros(np.shape(value), np.asarray(value).dtype)
        aggregation = replicant.VariableAggregation.MEAN if name == "MEAN" else replicant.VariableAggregation.SUM
        v = replicant.Variable(zero, synchronization=replicant.VariableSynchronization.ON_READ, aggregation=aggregation)
    replicant.Checkpoint(v=v).read(FILES / "strategies/mirrored" / name).assert_consumed()
    assert np.asarray(v.value()).tolist() == value
    assert [
        np.asarray(each).tolist() for each in strategy.experimental_local_results(strategy.run(lambda: v.value() + 0))
    ] == copies


def test_sharded_variables_are_restored_onto_parameter_servers() -> None:
    """The slots have no names there; each belongs to the only variable of its shape."""
    cluster = SimpleClusterResolver(ClusterSpec({"ps": ["127.0.0.1:0"] * 2, "worker": ["127.0.0.1:0"]}))
    strategy = replicant.ParameterServerStrategy(cluster, FixedShardsPartitioner(2), transport="threads")
    try:
        with strategy.scope():
            x = keras.Input((3,), dtype="int32")
            y = keras.layers.Dense(2)(keras.layers.Flatten()(keras.layers.Embedding(9, 4)(x)))
            model, optimizer = keras.Model(x, y), keras.optimizers.Adam()
        path = FILES / "strategies/ps_tf_keras/new-1"
        replicant.Checkpoint(model=model, optimizer=optimizer).restore(path).assert_consumed()
        reader = replicant.load_checkpoint(path)
        names = [f"optimizer/_variables/{i}/.ATTRIBUTES/VARIABLE_VALUE" for i in range(1, 7)]
        for name, variable in zip(names, optimizer.variables[2:], strict=True):
            np.testing.assert_array_equal(reader.get_tensor(name), np.asarray(variable.value))
    finally:
        strategy.close()
