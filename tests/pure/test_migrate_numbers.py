"""What the functions that ``replicant migrate`` translates compute, next to what TensorFlow computes.

The expected numbers are those of NumPy for the definitions in TensorFlow's documentation.
"""

import numpy as np
import pytest

from replicant.cli import _migration

HEAD = """\
import numpy as np
import tensorflow as tf

x = tf.constant(np.arange(12.0).reshape(3, 4), dtype=tf.float32)
images = tf.constant(np.random.default_rng(0).uniform(size=(2, 4, 6, 3)), dtype=tf.float32)
mean, variance = tf.nn.moments(x, axes=[0])
"""
# images, and their names in the program
IMAGES = np.random.default_rng(0).uniform(size=(2, 4, 6, 3)).astype("float32")
N = np.arange(12.0).reshape(3, 4)
SCALED = (N - N.mean(0)) / np.sqrt(N.var(0) + 1e-3)
CASES = [
    ("tf.split(x, [1, 3], axis=1)[1]", N[:, 1:]),
    ("tf.split(x, 2, axis=1)[1]", N[:, 2:]),
    ("tf.einsum('ij->j', x)", N.sum(0)),
    ("tf.linspace(0.0, 1.0, 5)", np.linspace(0, 1, 5)),
    ("tf.norm(x)", np.sqrt((N**2).sum())),
    ("tf.norm(x, ord=1, axis=1)", np.abs(N).sum(1)),
    ("tf.pad(x, tf.constant([[1, 0], [0, 2]]))", np.pad(N, [[1, 0], [0, 2]])),
    ("tf.pad(x, [[1, 0], [0, 2]], mode='REFLECT')", np.pad(N, [[1, 0], [0, 2]], mode="reflect")),
    ("tf.pad(x, [[1, 0], [0, 2]], constant_values=7)", np.pad(N, [[1, 0], [0, 2]], constant_values=7)),
    ("tf.roll(x, 1, axis=0)", np.roll(N, 1, 0)),
    ("tf.math.softplus(x)", np.log1p(np.exp(N))),
    ("tf.nn.gelu(tf.constant([1.0]))", [0.8413447]),
    ("tf.nn.leaky_relu(tf.constant([-1.0]), alpha=0.3)", [-0.3]),
    ("tf.nn.l2_normalize(x, axis=1)", N / np.sqrt((N**2).sum(1, keepdims=True))),
    ("variance", N.var(0)),
    ("tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)", SCALED),
    ("tf.nn.batch_normalization(x, mean, variance, offset=tf.ones(4), scale=tf.ones(4), variance_epsilon=1e-3)", 1 + SCALED),
    ("tf.math.top_k(x, k=2)[0]", N[:, ::-1][:, :2]),
    ("tf.add_n([x, x])", 2 * N),
    ("tf.reverse(x, axis=[1])", N[:, ::-1]),
    ("tf.scatter_nd([[0], [2]], tf.ones([2]), [3])", [1, 0, 1]),
    ("tf.tensor_scatter_nd_update(tf.zeros([3]), [[1]], [5.0])", [0, 5, 0]),
    ("tf.math.unsorted_segment_sum(tf.ones([3]), [0, 1, 1], num_segments=2)", [1, 2]),
    ("tf.slice(x, [1, 0], [1, 2])", N[1:2, :2]),
    ("tf.searchsorted([1.0, 2.0, 3.0], [2.5])", [2]),
    ("tf.tensordot(x, x, axes=[[0], [0]])", N.T @ N),
    ("tf.map_fn(lambda r: r * 2, x)", N * 2),
    ("tf.vectorized_map(lambda r: r * 2, x)", N * 2),
    ("tf.broadcast_to([1.0], [3])", [1, 1, 1]),
    ("tf.math.cumprod(tf.constant([1.0, 2.0, 3.0]))", [1, 2, 6]),
    ("tf.keras.backend.argmax(x)", N.argmax(-1)),
    ("tf.keras.backend.expand_dims(x).shape", (3, 4, 1)),
    ("tf.keras.backend.clip(x, min_value=1, max_value=3)", N.clip(1, 3)),
    ("tf.nn.bias_add(x, tf.ones([4]))", N + 1),
    ("tf.clip_by_norm(x, 1.0)", N / np.sqrt((N**2).sum())),
    ("tf.linalg.global_norm([x])", np.sqrt((N**2).sum())),
    ("tf.math.squared_difference(x, 1.0)", (N - 1) ** 2),
    ("tf.round([0.6])", [1.0]),
    ("tf.atan2([1.0], [0.0])", [np.pi / 2]),
    ("tf.acos([1.0])", [0.0]),
    ("tf.reduce_max(tf.random.uniform([50], maxval=3, dtype=tf.int32)) <= 2", True),
    ("tf.reduce_sum(tf.random.shuffle(x))", N.sum()),
    ("tf.random.categorical(tf.math.log([[1e-9, 1.0]]), 3).shape", (1, 3)),
    ("tf.nn.dropout(x, rate=0.0)", N),
    ("tf.float32.max", np.finfo("float32").max),
    ("tf.nn.embedding_lookup(x, [1])", N[[1]]),
    ("tf.math.divide_no_nan([1.0], [0.0])", [0.0]),
    ("tf.dtypes.cast(x, tf.int32)", N),
    ("tf.linalg.det(tf.eye(3))", 1),
    ("tf.keras.layers.Activation(tf.nn.softmax)(x)", np.exp(N) / np.exp(N).sum(1, keepdims=True)),
    ("tf.argsort([3.0, 1.0])", [1, 0]),
    ("tf.math.floormod([5], [3])", [2]),
    ("tf.io.gfile.exists('/nowhere')", False),
    ("tf.image.resize(images, [2, 3])", IMAGES.reshape(2, 2, 2, 3, 2, 3).mean((2, 4))),
    ("tf.image.resize(images, [2, 3], method='nearest')", IMAGES[:, 1::2, 1::2]),
    ("tf.image.resize(tf.constant([[[0], [5]]], dtype=tf.uint8), [1, 1])", [[[2.5]]]),
    ("tf.image.flip_left_right(images[0])", IMAGES[0, :, ::-1]),
    ("tf.image.flip_up_down(images)", IMAGES[:, ::-1]),
    ("tf.image.rot90(images)", np.rot90(IMAGES, axes=(1, 2))),
    ("tf.image.transpose(images[0])", IMAGES[0].swapaxes(0, 1)),
    ("tf.image.crop_to_bounding_box(images, 1, 2, 3, 4)", IMAGES[:, 1:4, 2:6]),
    ("tf.image.pad_to_bounding_box(images[0], 1, 2, 5, 9)", np.pad(IMAGES[0], [[1, 0], [2, 1], [0, 0]])),
    ("tf.image.rgb_to_grayscale(images)", (IMAGES @ [0.2989, 0.587, 0.114])[..., None]),
    ("tf.image.hsv_to_rgb(tf.image.rgb_to_hsv(images))", IMAGES),
    ("tf.image.adjust_brightness(images, 0.25)", IMAGES + 0.25),
    ("tf.image.adjust_gamma(images, gamma=2.0)", IMAGES**2),
    (
        "tf.image.extract_patches(images, [1, 2, 3, 1], [1, 2, 3, 1], [1, 1, 1, 1], padding='VALID')",
        IMAGES.reshape(2, 2, 2, 2, 3, 3).swapaxes(2, 3).reshape(2, 2, 2, 18),
    ),
]


@pytest.mark.slow  # it compiles some hundred small programs
def test_translated_functions_compute_what_those_of_tensorflow_do(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + "".join(f"results[{i}] = {old}\n" for i, (old, _) in enumerate(CASES)))
    migration = _migration.migrate(path)
    assert {finding.kind for finding in migration.findings} == {"check"}
    results = {}
    exec(migration.text, {"results": results})
    different = [old for i, (old, new) in enumerate(CASES) if not np.allclose(np.asarray(results[i]), new, atol=1e-5)]
    assert not different
