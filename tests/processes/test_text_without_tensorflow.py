"""The layers for text never import TensorFlow: they work where importing it raises."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys

asked = []

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "tf_keras"):
            asked.append(name)
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import replicant
import keras
import numpy as np
from replicant.data import Dataset
from replicant.keras import layers

texts = np.array(["A cat", "a dog sat"], object)
vectors = layers.TextVectorization(output_sequence_length=3, ngrams=2)
vectors.adapt(texts)
vectors.adapt(Dataset.from_tensor_slices(texts).batch(1))
words = layers.StringLookup(num_oov_indices=2)
words.adapt(texts)
numbers = layers.IntegerLookup()
numbers.adapt([1, 2, 2])
bins = layers.Discretization(num_bins=2)
bins.adapt(Dataset.range(8).batch(4))
for layer, x in (
    (vectors, texts), (words, texts), (numbers, [2, 3]), (bins, [2.0]), (layers.Hashing(3, salt=1), texts),
    (layers.HashedCrossing(3), (texts, texts)), (layers.CategoryEncoding(3), [[1, 2]]),
):
    print(np.asarray(layer(x)).tolist())
print([np.asarray(x).tolist() for x in Dataset.from_tensor_slices(texts).batch(2).map(words)])
model = keras.Sequential([keras.Input((), dtype="string"), vectors, keras.layers.Embedding(9, 2)])
model.add(keras.layers.GlobalAveragePooling1D())
model.add(keras.layers.Dense(1))
model.compile("sgd", "mse")
model.fit(texts, np.ones(2), verbose=0)
assert asked == [], asked
model.save(sys.argv[1])  # here Keras itself asks whether there is a TensorFlow
print(np.allclose(keras.models.load_model(sys.argv[1]).predict(texts, verbose=0), model.predict(texts, verbose=0)))
assert "tensorflow" not in sys.modules
"""
PRINTED = """\
[[2, 6, 8], [2, 5, 3]]
[3, 2]
[1, 0]
[0]
[0, 0]
[1, 0]
[[0.0, 1.0, 1.0]]
[[3, 2]]
True
"""


@pytest.mark.long
def test_all_layers(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "model.keras")],
        env={**os.environ, "REPLICANT_COMPILATION_CACHE": "0"},  # JAX opens its cache with a library that asks for TensorFlow
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTED
