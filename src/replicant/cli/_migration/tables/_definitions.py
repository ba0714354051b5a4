"""Small functions that a translated program defines for itself, because neither Keras nor Replicant has them."""

DEFINITIONS = {
    "global_norm": '''\
def global_norm(arrays):
    """The norm of all arrays together, as tf.linalg.global_norm computes it."""
    return keras.ops.sqrt(sum(keras.ops.sum(keras.ops.square(array)) for array in arrays if array is not None))
''',
    "clip_by_global_norm": '''\
def clip_by_global_norm(arrays, clip_norm, use_norm=None):
    """Scale arrays so that their norm together is at most clip_norm, as tf.clip_by_global_norm does."""
    norm = global_norm(arrays) if use_norm is None else use_norm
    scale = clip_norm / keras.ops.maximum(norm, clip_norm) + 0 * norm  # NaN if the norm is not finite
    return [None if array is None else array * keras.ops.cast(scale, array.dtype) for array in arrays], norm
''',
    "clip_by_norm": '''\
def clip_by_norm(array, clip_norm, axes=None):
    """Scale an array so that its norm is at most clip_norm, as tf.clip_by_norm does."""
    norm = keras.ops.sqrt(keras.ops.sum(keras.ops.square(array), axis=axes, keepdims=True))
    return array * clip_norm / keras.ops.maximum(norm, clip_norm)
''',
    "sigmoid_cross_entropy_with_logits": '''\
def sigmoid_cross_entropy_with_logits(labels, logits):
    """The cross-entropy of each logit, as tf.nn.sigmoid_cross_entropy_with_logits computes it."""
    return keras.ops.relu(logits) - logits * labels + keras.ops.log1p(keras.ops.exp(-keras.ops.abs(logits)))
''',
}
NEEDS = {"clip_by_global_norm": ("global_norm",)}
# The functions of TensorFlow that become one of these, with their arguments.
BY_NAME = {
    "clip_by_global_norm": ("clip_by_global_norm", ("t_list>arrays", "clip_norm", "use_norm", "name>")),
    "clip_by_norm": ("clip_by_norm", ("t>array", "clip_norm", "axes", "name>")),
    "linalg.global_norm": ("global_norm", ("t_list>arrays", "name>")),
    "nn.sigmoid_cross_entropy_with_logits": ("sigmoid_cross_entropy_with_logits", ("labels", "logits", "name>")),
}


def with_needs(names: set[str]) -> list[str]:
    """These definitions and those that they need, in the order in which they are written."""
    wanted = names | {need for name in names for need in NEEDS.get(name, ())}
    return [name for name in DEFINITIONS if name in wanted]
