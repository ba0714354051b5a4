"""The custom training loop with Keras, against what TensorFlow 2.21 gave: losses of every step, accuracy, weights.

The reference is one device: TensorFlow's own results with n replicas equal those without a strategy, but for gradient clipping.
"""

import functools

import keras
import numpy as np
import pytest
from _compare import mirrored, plain, rows, same

import replicant
from replicant import GradientTape, compute_average_loss, scale_regularization_loss
from replicant.data import Dataset

CLIPPING = "gradient clipping acts on the summed gradient"
EMPTY_METRIC = "a metric stays as it is on a replica without rows"
OWN_NUMBERS = "random numbers are those of JAX"
OWN_MASKS = "random layers draw other numbers on each replica"
CROSS_APPLY = "an optimizer may be applied in cross-replica context"

pytestmark = pytest.mark.again
TOLERANCE = 1e-5
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.05),
    "adamw": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.02),
    "adam_clipnorm": lambda: keras.optimizers.Adam(0.05, clipnorm=0.1),
}


def strategy_of(n):
    """n=0 is no strategy: the same loop, with the default one."""
    return mirrored(n) if n else replicant.get_strategy()


class Loop:
    """A model, its optimizer and the training step of the guide, under a strategy."""

    def __init__(self, n, optimizer, l2, weighted, build):
        self.strategy = strategy = strategy_of(n)
        with strategy.scope():
            self.model = model = keras.Sequential(
                [
                    keras.Input((4,)),
                    keras.layers.Dense(8, activation="tanh", kernel_regularizer=keras.regularizers.L2(l2) if l2 else None),
                    keras.layers.Dense(3),
                ]
            )
            self.optimizer = optimizer = OPTIMIZERS[optimizer]()
            self.accuracy = accuracy = keras.metrics.SparseCategoricalAccuracy()
            loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
            if build:
                optimizer.build(model.trainable_variables)
        self.start = [np.asarray(v) for v in optimizer.variables]

        def train_step(batch, global_batch_size):
            x, y, weights = batch
            with GradientTape() as tape:
                predictions = model(x, training=True)
                loss = compute_average_loss(
                    loss_object(y, predictions), weights if weighted else None, global_batch_size=global_batch_size
                )
                if l2:
                    loss = loss + scale_regularization_loss(sum(model.losses))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            accuracy.update_state(y, predictions)
            return loss

        @replicant.function
        def distributed_train_step(batch, global_batch_size):
            return strategy.reduce("SUM", strategy.run(train_step, args=(batch, global_batch_size)), axis=None)

        self.step = distributed_train_step

    def train(self, data, weights, global_batch_size, num_epochs):
        """What happened in each step and epoch, from the given weights and a fresh optimizer."""
        self.model.set_weights(weights)
        for variable, value in zip(self.optimizer.variables, self.start, strict=False):
            variable.assign(value)
        batches = self.strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(data).batch(global_batch_size))
        sizes, losses, accuracies = [], [], []
        for _ in range(num_epochs):
            for batch in batches:
                sizes.append([len(x) for x in self.strategy.experimental_local_results(batch[0])])
                losses.append(float(self.step(batch, global_batch_size)))
            accuracies.append(float(self.accuracy.result()))
            self.accuracy.reset_state()
        return {
            "per_replica_sizes": sizes,
            "loss_per_step": losses,
            "accuracy_per_epoch": accuracies,
            "final_weights": plain(self.model.get_weights()),
            "iterations": int(self.optimizer.iterations),
        }


@functools.cache
def loop(n, optimizer, l2, weighted):
    """One loop per kind of case; its programs serve all sizes of batches."""
    return Loop(n, optimizer, l2, weighted, build=True)


def train(figures, case, loop_of=loop):
    data = [np.asarray(figures[name][: case["N"]], dtype) for name, dtype in [("X", "f4"), ("Y", "i4"), ("SW", "f4")]]
    weights = [np.asarray(w, np.float32) for w in figures["W0"]]
    used = loop_of(case["n"], case["optimizer"], case["l2"], case["weighted"])
    return used.train(tuple(data), weights, case["global_batch"], case["epochs"])


@pytest.mark.cases("2")
@pytest.mark.parametrize("n", range(5))
def test_training(figures, report, n):
    chosen = {name: case for name, case in figures["custom"].items() if case["n"] == n and "lazily" not in name}
    assert chosen
    for name, case in chosen.items():
        result = train(figures, case)
        for part, value in result.items():
            clipped = case["optimizer"] == "adam_clipnorm" and part in ("loss_per_step", "accuracy_per_epoch", "final_weights")
            expected = figures["custom"][f"n=0 {name.split(' ', 1)[1]}"] if clipped else case
            assert same(value, expected[part], TOLERANCE), (name, part)
            different = not same(case[part], expected[part], TOLERANCE)
            assert not different or n > 1
            report.count(f"{name} {part}", CLIPPING if different else None)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_an_optimizer_that_is_built_by_the_first_step(figures, report, n):
    """Recorded for n = 0 and 1; with more replicas TensorFlow fails."""
    name = f"n={n} adam lazily built optimizer N=24 G=8"
    case = figures["custom"].get(name, {**figures["custom"]["n=0 adam lazily built optimizer N=24 G=8"], "n": n})
    result = train(figures, case, lambda *kind: Loop(*kind, build=False))
    for part, value in result.items():
        if n < 2:
            assert same(value, case[part], TOLERANCE), part
            report.passed(f"{name} {part}")
    assert same(result["final_weights"], case["final_weights"], TOLERANCE)


@pytest.mark.cases("0", "3")
@pytest.mark.parametrize("n", range(4))
@pytest.mark.long_cases("3")
def test_metrics(figures, report, n):
    strategy, recorded = strategy_of(n), figures["misc"][f"metrics n={n}"]
    with strategy.scope():
        mean, total = keras.metrics.Mean(), keras.metrics.Sum()
        error, area = keras.metrics.MeanSquaredError(), keras.metrics.AUC()

    def update(batch):
        x, label = batch
        mean.update_state(x)
        total.update_state(x)
        error.update_state(x, x / 2)
        area.update_state(label, x / 10)

    x = np.arange(10, dtype=np.float32)
    labels = np.float32([0, 0, 0, 0, 1, 0, 1, 1, 1, 1])  # one of 25 pairs is in the wrong order
    for batch in strategy.experimental_distribute_dataset(Dataset.from_tensor_slices((x, labels)).batch(6)):
        strategy.run(update, args=(batch,))
    results = [float(metric.result()) for metric in (mean, total, error, area)]
    if n == 3:  # the last replica has no rows of the last batch: a mean of nothing
        assert recorded["result"][2] == "nan"
        chunks = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
        assert same(results, [4.5, 45.0, float(np.mean([np.mean(np.square(c)) for c in chunks])) / 4, 0.96], TOLERANCE)
        report.different(f"metrics n={n} result", EMPTY_METRIC)
    else:
        assert same(results, recorded["result"], TOLERANCE)
        report.passed(f"metrics n={n} result")
    copies = strategy.run(lambda: (mean.total + 0.0, mean.count + 0.0))
    assert same([rows(strategy, value) for value in copies], recorded["locals"])
    kinds = [
        [f"VariableSynchronization.{v.synchronization.upper()}", f"VariableAggregationV2.{v.aggregation.upper()}"]
        for v in mean.variables
    ]
    assert kinds == recorded["sync_agg"]
    assert len(recorded["variable_classes"]) == len(mean.variables)
    for part in ("locals", "sync_agg", "variable_classes"):
        report.passed(f"metrics n={n} {part}")


def test_keras_variables_of_a_strategy(figures, report):
    with mirrored(2).scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
        )
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)

    def kind(variable):
        synchronization = {"auto": "ON_WRITE"}.get(variable.synchronization, variable.synchronization.upper())
        rule = f"VariableAggregationV2.{variable.aggregation.upper()}"
        return [f"VariableSynchronization.{synchronization}", rule, variable.trainable]

    recorded = figures["misc"]["keras variable kinds n=2"]
    assert [kind(v) for v in model.variables] == [row[2:] for row in recorded["model"]]
    assert [kind(v)[:2] for v in optimizer.variables[:6]] == [row[2:4] for row in recorded["optimizer"][:6]]
    for part in recorded:
        report.passed(f"keras variable kinds n=2 {part}")


@pytest.mark.parametrize("n", [0, 2])
def test_dropout(figures, report, n):
    strategy, recorded = strategy_of(n), figures["misc"][f"dropout seed=7 n={n}"]

    def masks():
        with strategy.scope():
            layer = keras.layers.Dropout(0.5, seed=7)
        return rows(strategy, strategy.run(lambda x: layer(x, training=True), args=(np.ones((2, 8), np.float32),)))

    drawn = masks()
    assert drawn == masks()
    assert np.shape(drawn) == np.shape(recorded)
    assert {value for mask in drawn for row in mask for value in row} == {0.0, 2.0}
    if n == 2:
        assert recorded[0] == recorded[1]
        assert drawn[0] != drawn[1]
    report.different(f"dropout seed=7 n={n}", OWN_MASKS if n else OWN_NUMBERS)


def test_applying_an_optimizer_in_cross_replica_context(report):
    with mirrored(2).scope():
        variable, optimizer = keras.Variable(1.0), keras.optimizers.SGD(0.5)
        optimizer.apply_gradients([(np.float32(1.0), variable)])
    assert float(variable.value) == 0.5  # once, not once per replica
    report.different("apply_gradients in cross-replica context n=2", CROSS_APPLY)


@pytest.mark.parametrize(
    ("n", "chunks"),
    [(1, [[0, 1, 2, 3, 10]]), (2, [[0, 1, 2], [3, 10]]), (3, [[0, 1], [2, 3], [10]]), (4, [[0, 1], [2, 3], [10]])],
)
def test_batch_statistics(n, chunks):
    """No custom loop was recorded. By the definition: the statistics of each replica's rows, averaged over replicas with rows."""
    strategy = mirrored(n)
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.9, epsilon=0.0, center=False, scale=False)
        layer.build((None, 1))
    x = np.float32([[0], [1], [2], [3], [10]])
    (batch,) = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(x).batch(5))
    out = strategy.run(lambda rows_of: layer(rows_of, training=True), args=(batch,))
    assert same(plain(layer.moving_mean), [0.1 * float(np.mean([np.mean(c) for c in chunks]))])
    assert same(plain(layer.moving_variance), [0.9 + 0.1 * float(np.mean([np.var(c) for c in chunks]))], TOLERANCE)
    first = (np.float32(chunks[0]) - np.mean(chunks[0])) / np.std(chunks[0])
    assert same(rows(strategy, out)[0], [[float(v)] for v in first], TOLERANCE)


@pytest.mark.slow
def test_every_case_was_counted(figures, counted):
    parts = ("per_replica_sizes", "loss_per_step", "accuracy_per_epoch", "final_weights", "iterations")
    expected = {f"{name} {part}" for name in figures["custom"] for part in parts}
    for name, facts in figures["misc"].items():
        expected |= {f"{name} {part}" for part in facts} if isinstance(facts, dict) and "error" not in facts else {name}
    assert counted == expected
