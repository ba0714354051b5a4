"""Keras ``fit``, ``evaluate`` and ``predict``, against what TensorFlow 2.21 gave.

The reference is one device: TensorFlow's own run without a strategy, or with one replica where only that was recorded. With
several replicas TensorFlow equals it only where every batch splits evenly; Replicant always does.
"""

import functools
from typing import NamedTuple

import keras
import numpy as np
import pytest
from _compare import is_error, mirrored, plain, same

import replicant
from replicant.data import Dataset

EVERY_BATCH = "fit, evaluate and predict equal one device for every batch"
MOVED_INSIDE = "a model made outside the scope may be compiled inside"

pytestmark = pytest.mark.again
TOLERANCE = 1e-5
PARTS = ("history", "final_weights", "evaluate", "evaluate_weighted", "predict", "iterations")
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.05),
}
INDIVISIBLE = "sgd batch 10 (not divisible)"


class Kind(NamedTuple):
    """What the model and its programs depend on."""

    optimizer: str
    norm: bool
    l2: float
    reduction: str
    weighted: bool
    steps: int
    own_statistics: bool = False


@functools.cache
def compiled(n, kind):
    """A model, and its first state. One per kind of case: its programs serve all sizes of data."""
    with mirrored(n).scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, activation="tanh", kernel_regularizer=keras.regularizers.L2(kind.l2) if kind.l2 else None),
                *([keras.layers.BatchNormalization(momentum=0.9)] if kind.norm else []),
                keras.layers.Dense(3),
            ]
        )
        model.compile(
            OPTIMIZERS[kind.optimizer](),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=kind.reduction),
            metrics=["accuracy", keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="xent")],
            weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="wacc")] if kind.weighted else None,
            steps_per_execution=kind.steps,
        )
        model.optimizer.build(model.trainable_variables)
    if kind.own_statistics:
        replicant.keras.use_replica_statistics(model)
    return model, [np.array(v) for v in model.optimizer.variables]


def arrays(figures, *names, rows=None):
    kinds = {"X": "f4", "Y": "i4", "SW": "f4", "XV": "f4", "YV": "i4", "SV": "f4"}
    return tuple(np.asarray(figures[name][:rows], kinds[name]) for name in names)


def run(figures, name, case, *, own_statistics=False):
    """What a case leaves, `case` being its figures with one device."""
    n, kind = int(name[2]), name[4:]
    norm = case["bn_synchronized"] is not None  # Keras takes synchronized=True with TensorFlow only; here it always is
    model, start = compiled(
        n,
        Kind(
            optimizer=case["optimizer"],
            norm=norm,
            l2=case["l2"],
            reduction="sum" if "loss sum" in kind else "sum_over_batch_size",
            weighted="weighted_metrics" in kind,
            steps=2 if "steps_per_execution 2" in kind else 1,
            own_statistics=own_statistics,
        ),
    )
    weights = [np.asarray(w, np.float32) for w in figures["W0"]]
    if norm:
        weights[2:2] = [np.ones(8), np.zeros(8), np.zeros(8), np.ones(8)]
    model.set_weights(weights)
    for variable, value in zip(model.optimizer.variables, start, strict=True):
        variable.assign(value)

    data = arrays(figures, *("X", "Y", "SW")[: 3 if "sample_weight" in kind else 2], rows=case["N"])
    options = {"epochs": case["epochs"], "shuffle": False, "verbose": 0}
    if "dataset" in kind:
        options["x"] = Dataset.from_tensor_slices(data).batch(case["batch_size"])
    else:
        options |= dict(zip(("x", "y", "sample_weight"), data, strict=False)) | {"batch_size": case["batch_size"]}
    if "class_weight" in case:
        options["class_weight"] = {int(label): weight for label, weight in case["class_weight"].items()}
    if "validation" in kind:
        options["validation_data"] = arrays(figures, *("XV", "YV", "SV")[: 3 if "validation_weighted" in kind else 2])
    history = model.fit(**options).history
    x, y, sample_weight = arrays(figures, "XV", "YV", "SV")
    batch = 6 if "loss sum" in kind else 11  # batches of 6 were recorded; only a sum over the batch depends on it
    return {
        "history": plain(history),
        "final_weights": plain(model.get_weights()),
        "evaluate": plain(model.evaluate(x, y, batch_size=batch, verbose=0, return_dict=True)),
        "evaluate_weighted": plain(model.evaluate(x, y, batch, sample_weight=sample_weight, verbose=0, return_dict=True)),
        "predict": plain(model.predict(x, batch_size=batch, verbose=0)),
        "iterations": int(model.optimizer.iterations),
    }


def reference(figures, name):
    """The figures of one device."""
    kind = name[4:]
    candidates = [f"n={n} {kind}" for n in (0, 1)]
    alike = {"sgd bn True N=24 G=12": "n=0 sgd bn False N=24 G=12"}  # on one device there is nothing to synchronize
    return next(figures["fit"][c] for c in [*candidates, alike.get(kind), name] if c in figures["fit"])


@pytest.mark.cases("2")
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_fit(figures, report, n):
    names = [name for name in figures["fit"] if name.startswith(f"n={n} ") and "class_weight+sample_weight" not in name]
    assert names
    for name in names:
        expected, recorded = reference(figures, name), figures["fit"][name]
        assert not is_error(expected), name
        result = run(figures, name, expected)
        for part in PARTS:
            assert same(result[part], expected[part], TOLERANCE), (name, part, result[part], expected[part])
            differs = is_error(recorded) or not same(recorded[part], expected[part], TOLERANCE)
            assert not differs or n > 1
            report.count(f"{name} {part}", EVERY_BATCH if differs else None)


@pytest.mark.cases("3")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_batch_statistics_of_each_replica(figures, n):
    """With `use_replica_statistics` training is TensorFlow's, whose BatchNormalization is not synchronized by itself."""
    name = f"n={n} sgd bn False N=24 G=12"
    recorded = figures["fit"][name]
    result = run(figures, name, recorded, own_statistics=True)
    assert same(result["history"], recorded["history"], TOLERANCE)
    moving = (4, 5)  # of TensorFlow's, replica 0's were recorded
    for i, (actual, expected) in enumerate(zip(result["final_weights"], recorded["final_weights"], strict=True)):
        assert same(actual, expected, TOLERANCE) or i in moving, (i, actual, expected)


@pytest.mark.parametrize("n", [0, 1, 2, 4])
def test_class_weight_and_sample_weight_together(figures, report, n):
    name = f"n={n} sgd class_weight+sample_weight N=22 G=12"
    assert is_error(figures["fit"][name])
    x, y, sample_weight = arrays(figures, "X", "Y", "SW")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    with mirrored(n).scope() if n else replicant.get_strategy().scope():
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="class_weight` and `sample_weight` at the same time"):
        model.fit(x, y, sample_weight=sample_weight, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, verbose=0)
    report.passed(name)


@pytest.mark.parametrize(
    ("name", "model_inside"),
    [("compile outside scope n=2", True), ("built outside scope, compiled in scope n=2", False)],
)
def test_only_one_of_model_and_compile_in_the_scope(figures, report, name, model_inside):
    expected = {}
    for n in (0, 2):
        outside = replicant.get_strategy()
        inside = mirrored(n) if n else outside
        with (inside if model_inside else outside).scope():
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        with (outside if model_inside else inside).scope():
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x, y = arrays(figures, "X", "Y", rows=24)
        expected[n] = model.fit(x, y, batch_size=12, shuffle=False, verbose=0).history["loss"]
        assert len(model.trainable_variables[0].value.sharding.device_set) == max(n, 1)
    assert same(expected[2], expected[0], TOLERANCE)
    assert is_error(figures["fit"][name]) != model_inside
    report.count(name, None if model_inside else MOVED_INSIDE)


@pytest.mark.slow
def test_every_case_was_counted(figures, counted):
    expected = set()
    for name in figures["fit"]:
        if "scope" in name or "class_weight+sample_weight" in name:
            expected.add(name)
        elif not name.startswith("n=0 "):  # no strategy: these are the reference
            expected |= {f"{name} {part}" for part in PARTS}
    assert counted == expected
