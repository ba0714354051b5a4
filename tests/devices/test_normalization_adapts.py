"""`Normalization.adapt` reads Replicant's datasets: mean and variance are those of all rows."""

import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset
from replicant.errors import DatasetError

ROWS = np.random.default_rng(0).normal(3, 2, (23, 4)).astype(np.float32)
DATASETS = {
    "batches": Dataset.from_tensor_slices(ROWS).batch(5),
    "inputs and labels": Dataset.from_tensor_slices((ROWS, ROWS[:, 0])).batch(22),
    "rows": Dataset.from_tensor_slices(ROWS),
    "one batch": Dataset.from_tensors(ROWS),
}


@pytest.mark.parametrize("axis", [-1, None])
@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_it_learns_what_arrays_teach(dataset, axis):
    layer, expected = (keras.layers.Normalization(axis=axis) for _ in range(2))
    expected.adapt(ROWS)
    with replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False).scope():
        layer.adapt(dataset)
        layer.adapt(dataset)  # forgets the first time
    for got, wanted in ((layer.mean, expected.mean), (layer.variance, expected.variance)):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    np.testing.assert_allclose(layer(ROWS), expected(ROWS), rtol=1e-5, atol=1e-6)


def test_without_a_batch_there_is_nothing_to_learn():
    with pytest.raises(DatasetError, match=r"take\(0\).* yields no batch, so there is nothing to adapt the layer 'norm' to"):
        keras.layers.Normalization(name="norm").adapt(Dataset.from_tensor_slices(ROWS).take(0).batch(2))
    layer = keras.layers.Normalization()
    layer.build((None, 3))
    with pytest.raises(ValueError, match="incompatible shape"):
        layer.adapt(DATASETS["batches"])
