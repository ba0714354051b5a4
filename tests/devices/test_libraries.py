"""What works with each library: the cells of the table in docs/flax.md, each on two devices and equal to one device."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages

from _libraries import LIBRARIES, Keras, one_device, trainer
from _neighbours import BATCH, INPUTS, LABELS, batches, mirrored

NAMES = ["keras", "nnx", "linen", "equinox", "jax"]


def each_library(*by_default):
    """Run a test for each library: in `make test` for those that no other test tries this way."""
    names = [name if name in by_default else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
    return pytest.mark.parametrize("library", names)


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def train(library, *, rows=16, wrap=lambda fn: fn, num_replicas=2, **options):
    """Train for an epoch. Return the weights, and those of one device."""
    strategy = mirrored(num_replicas)
    model = LIBRARIES[library](strategy, **options)
    start, step = model.weights(), trainer(strategy, model, wrap)
    for batch in batches(strategy, "mlp", rows=rows):
        step(batch)
    assert not np.allclose(start[0], model.weights()[0], atol=1e-3)
    return model.weights(), one_device(start, rows=rows)


@each_library(*NAMES)
@pytest.mark.long_cases("equinox", "linen")
def test_run(library):
    assert_close(*train(library))


@each_library("equinox")
def test_function(library):
    assert_close(*train(library, wrap=replicant.function))


@each_library("linen", "equinox", "jax")
def test_tape(library):
    assert_close(*train(library, tape=True, rows=8))


@each_library()
def test_ragged(library):
    """The last batch has 6 rows for four replicas: 2, 2, 2 and none."""
    assert_close(*train(library, rows=22, num_replicas=4))


@pytest.mark.slow
@pytest.mark.parametrize("library", ["keras"])
def test_fit(library):
    """The loss of `fit` is the mean over the rows that there are."""
    strategy = mirrored(2)
    model = Keras(strategy).model
    start = model.get_weights()
    with strategy.scope():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    model.fit(Dataset.from_tensor_slices((INPUTS["mlp"], LABELS)).batch(BATCH), epochs=2, verbose=0)
    assert_close(model.get_weights(), one_device(start, epochs=2, mean=True))


@each_library("equinox")
def test_checkpoint(library, tmp_path):
    """Training goes on from a checkpoint, with the optimizer's state, in another model on other devices."""
    strategy = mirrored(2)
    model = LIBRARIES[library](strategy)
    start, step = model.weights(), trainer(strategy, model)
    first, second = batches(strategy, "mlp", rows=16)
    step(first)
    path = model.checkpoint.save(str(tmp_path / "saved"))
    step(second)  # what is restored below does not come from here
    strategy = mirrored(4)
    again = LIBRARIES[library](strategy)
    again.checkpoint.restore(path).assert_consumed()
    _, second = batches(strategy, "mlp", rows=16)
    trainer(strategy, again)(second)
    assert_close(again.weights(), one_device(start, rows=16))
