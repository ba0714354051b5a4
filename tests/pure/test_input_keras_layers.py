"""Keras preprocessing layers inside `map`."""

import importlib.util

import keras
import numpy as np
import pytest

from replicant.data import Dataset

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
needs_tensorflow = pytest.mark.skipif(not HAS_TENSORFLOW, reason="Keras's layers for strings need TensorFlow")


def values(dataset):
    return [np.asarray(element).tolist() for element in dataset]


@pytest.mark.parametrize("calls", [None, 2])
@pytest.mark.parametrize(
    ("make_layer", "batch", "expected"),
    [
        (lambda: keras.layers.Normalization(mean=1.0, variance=4.0), [1.0, 3.0], [0.0, 1.0]),
        (lambda: keras.layers.Rescaling(0.5, offset=1.0), [2.0, 4.0], [2.0, 3.0]),
        (lambda: keras.layers.Discretization(bin_boundaries=[0.0, 1.0]), [-1.0, 5.0], [0, 2]),
        (lambda: keras.layers.CategoryEncoding(num_tokens=3, output_mode="one_hot"), [0, 2], [[1, 0, 0], [0, 0, 1]]),
    ],
)
def test_layers_for_numbers(make_layer, batch, expected, calls):
    layer = make_layer()
    assert values(Dataset.from_tensor_slices(batch).batch(2).map(layer, num_parallel_calls=calls)) == [expected]


@needs_tensorflow
def test_layers_for_strings():
    lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c", "d", "f"])
    dataset = Dataset.from_tensor_slices(["a", "c", "e"]).repeat().batch(4).map(lookup).take(3)
    assert values(dataset) == [[1, 3, 0, 1], [3, 0, 1, 3], [0, 1, 3, 0]]
    vectors = keras.layers.TextVectorization(vocabulary=["the", "cat"], output_sequence_length=3)
    assert values(Dataset.from_tensor_slices(["the cat", "a cat"]).batch(2).map(vectors)) == [[[2, 3, 0], [1, 3, 0]]]


@pytest.mark.skipif(HAS_TENSORFLOW, reason="TensorFlow is there")
def test_without_tensorflow_keras_names_the_remedy():
    with pytest.raises(ImportError, match=r"StringLookup requires TensorFlow\. Install it via `pip install tensorflow`"):
        keras.layers.StringLookup(vocabulary=["a"])


def test_strings_can_be_looked_up_without_tensorflow():
    """They are Python objects on the host, one by one or as object arrays."""
    number = {word: i for i, word in enumerate(["a", "b", "c", "d", "f"], 1)}
    dataset = Dataset.from_tensor_slices(["a", "c", "e"]).repeat().map(lambda word: number.get(word, 0)).batch(4).take(3)
    assert values(dataset) == [[1, 3, 0, 1], [3, 0, 1, 3], [0, 1, 3, 0]]
