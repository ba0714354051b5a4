"""Evaluation on the workers gives what the coordinator gives: each example counted once. And what a coordinator writes down."""

import keras
import numpy as np
import pytest
import tensorboardX  # noqa: F401 - here, because it sets an environment variable when it is first imported
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

import replicant
from replicant.coordinator import ClusterCoordinator, StatsWriter
from replicant.data import Dataset
from replicant.errors import ArgumentError
from replicant.keras.callbacks import TensorBoard

RNG = np.random.default_rng(0)
X, IDS = RNG.normal(size=(83, 8)).astype("f4"), RNG.integers(0, 20, size=(83, 3)).astype("int32")
Y, WEIGHTS = (X.sum(axis=1) > 0).astype("f4")[:, None], RNG.uniform(0.5, 2, size=83).astype("f4")


@pytest.fixture(scope="module")
def strategy():
    strategy = replicant.ParameterServerStrategy(transport="threads")
    yield strategy
    strategy.close()


@pytest.fixture(autouse=True)
def no_leaked_threads():
    """The servers and workers of a module's strategy live as long as the module."""
    return


@pytest.fixture(scope="module")
def model(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        x, ids = keras.Input((8,)), keras.Input((3,), dtype="int32")
        rows = keras.layers.Flatten()(keras.layers.Embedding(20, 4)(ids))
        y = keras.layers.Dense(1, "sigmoid")(keras.layers.Concatenate()([keras.layers.Dense(8, "relu")(x), rows]))
        model = keras.Model([x, ids], y)
        metrics = ["accuracy", keras.metrics.AUC(num_thresholds=20), keras.metrics.Precision()]
        model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=metrics, weighted_metrics=["mse"])
    return model


def batches():
    return Dataset.from_tensor_slices(((X, IDS), Y, WEIGHTS)).batch(10)


@pytest.mark.cases("sample weights, three shards", "more shards than batches")
@pytest.mark.parametrize(
    ("data", "options"),
    [
        pytest.param(((X, IDS), Y), {"batch_size": 16}, id="a smaller last batch"),
        pytest.param(((X, IDS), Y), {"batch_size": 16, "sample_weight": WEIGHTS, "shards": 3}, id="sample weights, three shards"),
        pytest.param(((X, IDS), Y), {"batch_size": 50, "shards": 7}, id="more shards than batches"),
        pytest.param((batches(),), {}, id="a dataset of batches"),
        pytest.param((batches(),), {"steps": 3}, id="some steps of it"),
    ],
)
@pytest.mark.long_cases("sample weights, three shards")
def test_workers_and_coordinator_agree(model, data, options):
    shards = options.pop("shards", "auto")
    found = model.evaluate(*data, **options, pss_evaluation_shards=shards, return_dict=True, verbose=0)
    options["shards"] = shards
    told = {name: value for name, value in options.items() if name != "shards"}
    expected = model.evaluate(*data, **told, return_dict=True, verbose=0)
    assert found == {name: pytest.approx(float(value), abs=1e-6) for name, value in expected.items()}
    assert len(found) == 5


def test_results_come_as_keras_gives_them_and_a_function_may_make_the_dataset(model):
    found = model.evaluate(batches, pss_evaluation_shards=2, verbose=0)
    assert found == pytest.approx(model.evaluate(batches(), verbose=0), abs=1e-6)


@pytest.mark.long
def test_fit_validates_on_workers_and_writes_for_tensorboard(strategy, model, tmp_path):
    keras.utils.set_random_seed(0)
    board = TensorBoard(tmp_path, write_graph=False)
    logs = model.fit(
        (X, IDS), Y, batch_size=20, epochs=2, validation_data=((X, IDS), Y), pss_evaluation_shards=3, callbacks=[board], verbose=0
    ).history
    expected = model.evaluate((X, IDS), Y, return_dict=True, verbose=0)
    assert {name: logs[f"val_{name}"][-1] for name in expected} == {
        name: pytest.approx(float(value), abs=1e-6) for name, value in expected.items()
    }
    assert len(logs["val_loss"]) == len(logs["loss"]) == 2
    tags, _ = events(tmp_path / "coordinator")
    assert {"closures_per_second", "bytes_per_closure", "staleness", "staleness/mean", "updates/server_1"} <= set(tags)
    assert tags["closures_per_second"][0] == [0, 1]


def test_metrics_that_assign_are_sums_in_training_too(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, "sigmoid")])
        model.compile(keras.optimizers.SGD(0.0), "binary_crossentropy", metrics=[keras.metrics.AUC(num_thresholds=20)])
    dataset = Dataset.from_tensor_slices((X[:80], Y[:80])).repeat().batch(80)
    found = model.fit(dataset, steps_per_epoch=12, verbose=0).history
    expected = model.evaluate(X[:80], Y[:80], return_dict=True, verbose=0)
    assert {name: values[0] for name, values in found.items()} == {
        name: pytest.approx(float(value), abs=1e-6) for name, value in expected.items()
    }
    auc = model.metrics[-1].metrics[0]
    assert sum(float(np.asarray(v.value)[0]) for v in auc.variables) == 80  # of the evaluation: each example in one of the four


def events(folder):
    """{tag: (steps, values)}."""
    read = event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0})
    read.Reload()
    found = {}
    for tag in read.Tags()["tensors"]:
        points = read.Tensors(tag)
        found[tag] = [p.step for p in points], [tensor_util.make_ndarray(p.tensor_proto) for p in points]
    return found, read


def test_stats_are_read_back_from_the_event_file(tmp_path):
    strategy = replicant.ParameterServerStrategy(transport="threads")
    try:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            v = replicant.Variable(np.zeros(4, "f4"))
        add = replicant.function(lambda: v.assign_add(np.ones(4, "f4")))
        with StatsWriter(coordinator, tmp_path) as writer:
            for step in (5, 9):
                for _ in range(8):
                    coordinator.schedule(add)
                coordinator.join()
                writer.write(step)
                last = coordinator.stats()
        found, _ = events(tmp_path / "coordinator")
    finally:
        strategy.close()
    assert found["pushed_bytes_per_closure"] == ([5, 9], [16.0, 16.0])
    assert found["updates/server_0"][1] == [8.0, 16.0]
    assert found["staleness/most"][1][-1] == len(last["staleness"]) - 1
    assert found["staleness"][1][-1][:, 2].sum() == 16
    workers = [values[-1] for tag, (_, values) in found.items() if tag.startswith("closures_per_second/worker_")]
    assert sum(workers) == pytest.approx(found["closures_per_second"][1][-1], rel=1e-5)


@pytest.mark.parametrize("shards", [-1, 1.5, True, "all"])
def test_nonsense_is_refused(model, shards):
    with pytest.raises(ArgumentError, match="pss_evaluation_shards must be a whole number, 0 to evaluate on the coordinator"):
        model.evaluate((X, IDS), Y, pss_evaluation_shards=shards)
    with pytest.raises(ArgumentError, match="pss_evaluation_shards must be a whole number"):
        model.fit((X, IDS), Y, pss_evaluation_shards=shards)


def test_other_models_have_no_workers(model):
    plain = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    with pytest.raises(
        ArgumentError, match="is for models made under a ParameterServerStrategy, but the strategy of this model is None"
    ):
        plain.evaluate(X, Y, pss_evaluation_shards="auto")
    with pytest.raises(ArgumentError, match="takes x and y by position, and the rest by name; got 1 more"):
        model.evaluate((X, IDS), Y, 16, pss_evaluation_shards="auto")


def test_a_model_that_was_not_compiled(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.optimizer, model.compiled = None, False
    with pytest.raises(ArgumentError, match="evaluate: the model has not been compiled"):
        model.evaluate(X, Y, pss_evaluation_shards="auto")
    with pytest.raises(ArgumentError, match="fit: the model has not been compiled"):
        model.fit(X, Y)
