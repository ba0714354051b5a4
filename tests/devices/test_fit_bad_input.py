"""What cannot work under a strategy is said at once; what plain Keras refuses is refused in Keras's words."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import replicant
from replicant.data import Dataset
from replicant.errors import ArgumentError, DatasetError, MixedStrategyError

X, Y = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32), np.arange(8) % 3
XENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

VERSION = tuple(map(int, keras.__version__.split(".")[:2]))


def mirrored(n: int) -> replicant.Strategy:
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)]) if n else replicant.get_strategy()


def make_model(strategy: replicant.Strategy, *, compiled: bool = True, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), layers.Dense(3)], name="net")
        if compiled:
            model.compile("sgd", XENTROPY, **options)
    return model


def test_a_model_belongs_to_one_strategy() -> None:
    two, three = mirrored(2), mirrored(3)
    model = make_model(two)
    model.fit(X, Y, verbose=0)
    with (
        three.scope(),
        pytest.raises(MixedStrategyError, match=r"The model 'net' belongs to .*cpu:1'\]\) but was compiled under .*cpu:2"),
    ):
        model.compile("sgd", XENTROPY)
    for call in (lambda: model.fit(X, Y, verbose=0), lambda: model.evaluate(X, Y, verbose=0), lambda: model.predict(X, verbose=0)):
        with three.scope(), pytest.raises(MixedStrategyError, match=r"belongs to .* but is used under .*clone_model"):
            call()
    model.fit(X, Y, verbose=0)  # nothing was broken


def test_another_strategy_on_the_same_devices_is_fine() -> None:
    model = make_model(mirrored(2))
    model.fit(X, Y, verbose=0)
    with mirrored(2).scope():
        model.compile("sgd", XENTROPY)
        model.fit(X, Y, verbose=0)
    assert len(model.trainable_variables[0].value.sharding.device_set) == 2


def test_to_another_strategy_as_the_error_says() -> None:
    model = make_model(mirrored(2))
    model.fit(X, Y, verbose=0)
    with mirrored(3).scope():
        other = keras.models.clone_model(model)
        other.set_weights(model.get_weights())
        other.compile("sgd", XENTROPY)
    assert other.evaluate(X, Y, verbose=0) == pytest.approx(model.evaluate(X, Y, verbose=0), abs=1e-6)
    assert len(other.trainable_variables[0].value.sharding.device_set) == 3
    model.fit(X, Y, verbose=0)


def test_a_model_from_outside_is_not_trained_on_one_device_in_silence() -> None:
    model = make_model(mirrored(0))
    with mirrored(2).scope(), pytest.raises(MixedStrategyError, match=r"'net' was made and compiled outside .*model\.compile"):
        model.fit(X, Y, verbose=0)
    model.fit(X, Y, verbose=0)  # outside: on one device


def test_keras_distribution_and_a_strategy() -> None:
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
    try:
        with pytest.raises(MixedStrategyError, match=r"keras\.distribution is active too"):
            make_model(mirrored(2))
    finally:
        keras.distribution.set_distribution(None)


def nothing() -> Dataset:
    return Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: False).batch(4)


def empty() -> Dataset:
    return Dataset.from_tensor_slices((X[:3], Y[:3])).batch(4, drop_remainder=True)


@pytest.mark.parametrize("make", [nothing, empty])
def test_an_empty_dataset(make: Any) -> None:
    model = make_model(mirrored(2))
    message = r"<Dataset: .*> yields no batch, .*drop_remainder=True"
    with pytest.raises(DatasetError, match=message):
        model.fit(make(), verbose=0)
    with pytest.raises(DatasetError, match=message):
        model.fit(X, Y, validation_data=make(), verbose=0)
    with pytest.raises(DatasetError, match=message):
        model.evaluate(make(), verbose=0)
    with pytest.raises(DatasetError, match=message):
        model.predict(make(), verbose=0)
    assert len(model.fit(X, Y, verbose=0).history["loss"]) == 1


def test_an_empty_dataset_without_a_strategy() -> None:
    with pytest.raises(DatasetError, match="yields no batch"):
        make_model(mirrored(0)).fit(empty(), verbose=0)


class NoBatches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Any:
        raise IndexError(index)


@pytest.mark.parametrize(
    ("data", "what"),
    [((X[:0], Y[:0]), r"The ndarray of shape \(0, 6\)"), ((NoBatches(),), "The NoBatches")],
    ids=["arrays", "PyDataset"],
)
@pytest.mark.parametrize("n", [0, 2])
def test_data_of_keras_without_a_batch(data: Any, what: str, n: int) -> None:
    """Keras by itself trips over it later. Under a strategy the model stays as it is, whether it was trained before or not."""
    model = make_model(mirrored(n))
    with pytest.raises(DatasetError, match=f"^{what} yields no batch, so there is nothing to train on"):
        model.fit(*data, verbose=0)
    if not n:
        return  # by itself Keras leaves a model that is built without values when its first step fails
    model.fit(X, Y, verbose=0)
    before = model.get_weights()
    for call in (lambda: model.fit(*data, verbose=0), lambda: model.evaluate(*data, verbose=0)):
        with pytest.raises(DatasetError, match=f"^{what} yields no batch"):
            call()
    with pytest.raises(DatasetError, match=f"^{what} yields no batch"):
        model.predict(data[0], verbose=0)
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


def fails_at(step: int) -> Iterator[Any]:
    for i in range(4):
        if i == step:
            raise OSError("the disk is gone")
        yield X[:4], Y[:4]


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_data_that_fails_does_not_take_the_model_with_it(step: int, method: str, steps_per_execution: int) -> None:
    """What was learned before the failure is kept."""
    model = make_model(mirrored(2), steps_per_execution=steps_per_execution)
    before = model.get_weights()[0]
    data = Dataset.from_generator(lambda: fails_at(step))
    with pytest.raises(OSError, match="the disk is gone"):
        getattr(model, method)(data, verbose=0)
    changed = not np.array_equal(model.get_weights()[0], before)
    if step == 3:  # how many batches Keras reads ahead depends on its version: it may not get to learn from the only one
        assert changed == (method == "fit")
    else:
        assert not changed or (method == "fit" and steps_per_execution == 1)
    assert len(model.fit(X, Y, verbose=0).history["loss"]) == 1


def test_a_step_that_cannot_be_compiled_does_not_take_the_model_with_it() -> None:
    model = make_model(mirrored(2))
    before = model.get_weights()
    with pytest.raises(ValueError, match="shape"):
        model.fit(X, np.zeros((8, 2, 5)), verbose=0)
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("name", "arguments"), [("y", {"y": Y}), ("sample_weight", {"sample_weight": np.ones(8)})])
def test_a_dataset_brings_its_own_labels_and_weights(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"`{name}` was given together with a dataset"):
        make_model(mirrored(2)).fit(Dataset.from_tensor_slices((X, Y)).batch(4), verbose=0, **arguments)


@pytest.mark.parametrize(("data", "count"), [((X,), 1), ((X, Y, np.ones(8, np.float32)), 3)])
def test_class_weight_needs_labels_and_no_other_weights(data: Any, count: int) -> None:
    with pytest.raises(ArgumentError, match=rf"`class_weight` needs a dataset that yields \(x, y\).* {count} component"):
        make_model(mirrored(2)).fit(Dataset.from_tensor_slices(data).batch(4), class_weight={0: 2.0}, verbose=0)


def test_labels_out_of_range_are_seen_in_the_loss_and_leave_the_weights_whole() -> None:
    """Keras with JAX takes a label that is no class as an example without a loss, and says nothing."""
    labels = np.where(np.arange(8) < 3, 7, Y)
    losses, weights = {}, {}
    for n in (2, 0):
        model = make_model(mirrored(n))
        losses[n] = (model.fit(X, labels, verbose=0).history["loss"][0], model.evaluate(X, labels, verbose=0))
        weights[n] = model.get_weights()
    assert np.isnan(losses[2]).tolist() == [True, True]
    assert np.isfinite(losses[0]).tolist() == [True, True]
    for ours, plain in zip(weights[2], weights[0], strict=True):
        np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-6)


# Plain Keras's own words, on one device and on two.
@pytest.mark.parametrize("n", [0, 2])
def test_what_keras_refuses(n: int) -> None:
    with pytest.raises(ValueError, match=r"You must call `compile\(\)`"):
        make_model(mirrored(n), compiled=False).fit(X, Y)
    model = make_model(mirrored(n))
    with pytest.raises(ValueError, match="Data cardinality is ambiguous"):
        model.fit(X, Y[:5])
    wordless = VERSION < (3, 15)
    with pytest.raises(IndexError if wordless else ValueError, match="list index" if wordless else "must yield at least one batch"):
        model.fit((batch for batch in ()), shuffle=False, verbose=0)
    with pytest.raises(RuntimeError if VERSION < (3, 14) else ValueError, match="expected axis -1 of input shape to have value 6"):
        model.fit(X[:, :5], Y, verbose=0)
    assert len(model.fit(X, Y, verbose=0).history["loss"]) == 1


@pytest.mark.parametrize("n", [0, 2])
def test_a_dataset_that_ends_too_early(n: int) -> None:
    """Keras warns, and keeps what it has learned."""
    with pytest.warns(UserWarning, match="ran out of data"):
        history = make_model(mirrored(n)).fit(Dataset.from_tensor_slices((X, Y)).batch(4), steps_per_epoch=3, verbose=0)
    assert len(history.history["loss"]) == 1


def breaking(after: int, *, labels: bool = True) -> Iterator[Any]:
    for i in range(after):
        rows = slice(2 * i, 2 * i + 2)
        yield (X[rows], Y[rows]) if labels else (X[rows],)
    raise OSError("the disk is gone")


@pytest.mark.cases("True-2-3-fit", "True-2-3-evaluate", "True-2-3-predict", "False-2-3-fit")
@pytest.mark.parametrize("loop", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.long
def test_an_error_leaves_the_values_of_the_last_step_without_a_strategy(loop: str, after: int, steps: int, compiled: bool) -> None:
    model = make_model(mirrored(0), steps_per_execution=steps, jit_compile=compiled)
    model.optimizer.build(model.trainable_variables)
    how = {"shuffle": False} if loop == "fit" else {}
    with pytest.raises(OSError, match="the disk is gone"):
        getattr(model, loop)(breaking(after, labels=loop != "predict"), verbose=0, **how)
    expected = make_model(mirrored(0))
    if loop == "fit" and after > 1:  # Keras reads the second batch before the first step, and before 3.15, one ahead of each step
        done = after if VERSION >= (3, 15) else after - 1
        expected.fit(X[: 2 * done], Y[: 2 * done], batch_size=2, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations) == done
    for mine, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    model.fit(X, Y, batch_size=4, verbose=0)  # everything else is there, too
