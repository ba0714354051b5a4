"""keep_updates_if: a step that went wrong leaves no trace in any variable."""

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.errors import ArgumentError, ContextError

BATCHES = [np.random.default_rng(i).normal(size=(4, 5)).astype(np.float32) for i in range(6)]
LABELS = [np.random.default_rng(100 + i).integers(0, 3, 4) for i in range(6)]


def trained(batches: list[int], bad: tuple[int, ...]) -> tuple[list[np.ndarray], list[float]]:
    """All variables after training on two replicas, and the losses."""
    keras.utils.set_random_seed(1)
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Dense(6), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3), keras.layers.Dense(3)]
        )
        optimizer, accuracy = keras.optimizers.Adam(0.01), keras.metrics.SparseCategoricalAccuracy()
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(rows: Any, labels: Any) -> Any:
        with replicant.GradientTape() as tape:
            predictions = model(rows, training=True)
            loss = replicant.compute_average_loss(loss_object(labels, predictions), global_batch_size=4)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, predictions)
        return loss

    @replicant.function
    def step(batch: Any) -> Any:
        loss = strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)
        replicant.keep_updates_if(jnp.isfinite(loss))
        return loss

    rows, labels = np.concatenate(BATCHES), np.concatenate(LABELS)
    for number in bad:
        rows[4 * number + 3, 0] = np.inf  # on the second replica
    keep = np.concatenate([np.arange(4 * i, 4 * i + 4) for i in batches])
    dataset = replicant.data.Dataset.from_tensor_slices((rows[keep], labels[keep])).batch(4)
    with iter(strategy.experimental_distribute_dataset(dataset)) as iterator:
        losses = [float(step(batch)) for batch in iterator]
    variables = [*model.variables, *optimizer.variables, *accuracy.variables]
    return [np.asarray(variable.value) for variable in variables], losses


@pytest.mark.parametrize("fused", ["0", pytest.param("1", marks=pytest.mark.slow)])
@pytest.mark.long
def test_a_bad_step_was_never_there(fused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICANT_FUSE_REPLICAS", fused)
    found, losses = trained([0, 1, 2, 3, 4, 5], bad=(0, 3))
    expected, wanted = trained([1, 2, 4, 5], bad=())
    assert [np.isfinite(loss) for loss in losses] == [False, True, True, False, True, True]
    assert [loss for loss in losses if np.isfinite(loss)] == wanted
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_what_is_assigned_later_stays() -> None:
    first, second = replicant.Variable(1), replicant.Variable(1)

    @replicant.function
    def step(ok: Any) -> None:
        first.assign(2)
        replicant.keep_updates_if(ok)
        second.assign(3)

    step(jnp.asarray(False))
    assert (int(first), int(second)) == (1, 3)
    step(jnp.asarray(True))
    assert (int(first), int(second)) == (2, 3)


def test_only_in_a_compiled_function() -> None:
    message = r"keep_updates_if was called outside a replicant\.function, or inside strategy\.run"
    with pytest.raises(ContextError, match=message):
        replicant.keep_updates_if(True)
    with pytest.raises(ContextError, match=message):
        replicant.MirroredStrategy(["cpu:0", "cpu:1"]).run(lambda: replicant.keep_updates_if(True))


@pytest.mark.parametrize(("condition", "found"), [(np.ones(2, bool), r"bool\[2\]"), (np.float32(1.0), r"float32\[\]")])
def test_one_boolean_decides(condition: Any, found: str) -> None:
    with pytest.raises(
        ArgumentError, match=rf"the condition must be one boolean, the same on all replicas\. Received: {found}\. Reduce"
    ):
        replicant.function(lambda: replicant.keep_updates_if(condition))()


def test_a_value_per_replica_decides_nothing() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])

    @replicant.function
    def step() -> None:
        replicant.keep_updates_if(strategy.run(lambda: replicant.get_replica_context().replica_id_in_sync_group == 0))

    with pytest.raises(ArgumentError, match=r"Received: PerReplica\. Reduce the loss first"):
        step()
