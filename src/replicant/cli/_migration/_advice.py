"""What to write instead of a name, a method or a package that has no translation.

A row is shown only while the name in `unless` is missing, so that nothing here has to change when Replicant or Keras gets it.
"""

from dataclasses import dataclass

from ._exists import exists


@dataclass(frozen=True)
class Row:
    """One piece of advice.

    Attributes:
        text: What to write instead.
        unless: The dotted name of what makes the advice void, if it exists.
    """

    text: str
    unless: str = ""


# Names without "tensorflow.": the longest one that fits is used.
NAMES = {
    "": "there is no equivalent: write it with keras.ops, jax.numpy or Python",
    "Tensor": "JAX has jax.Array; code on the host may also use np.ndarray",
    "TensorArray": "collect the values in a Python list and call keras.ops.stack, or use jax.lax.scan",
    "autograph": "there is no autograph: JAX traces Python as it runs",
    "compat.v1": "rewrite it for TensorFlow 2 first",
    "cond": "jax.lax.cond(condition, true_fn, false_fn), or keras.ops.cond; a Python if where the condition is not an array",
    "config.experimental_connect_to_cluster": "delete it: the strategy connects to the other workers itself",
    "config.experimental.set_memory_growth": "delete it; JAX reads XLA_PYTHON_CLIENT_PREALLOCATE=false",
    "config.experimental_run_functions_eagerly": "leave out @replicant.function: code outside of it runs eagerly",
    "config.run_functions_eagerly": "leave out @replicant.function: code outside of it runs eagerly",
    "config.set_logical_device_configuration": "replicant.set_virtual_devices(n), before anything else starts JAX",
    "config.set_visible_devices": "pass the devices to the strategy, or set CUDA_VISIBLE_DEVICES",
    "config": "see replicant.list_devices, replicant.set_virtual_devices and jax.config",
    "data": "replicant.data has no such name; docs/input.md lists what it has",
    "data.Iterator": "iter(dataset) gives an iterator, which a Checkpoint can save",
    "data.experimental.assert_cardinality": "delete it: replicant.data knows how many elements there are, or counts them",
    "data.experimental.copy_to_device": "delete it: batches are moved to their devices by themselves",
    "data.experimental.make_batched_features_dataset": "replicant.data.TFRecordDataset(files).map(parse).batch(n)",
    "data.experimental.map_and_batch": "dataset.map(f).batch(n)",
    "data.experimental.parallel_interleave": "dataset.interleave(f)",
    "data.experimental.parse_example_dataset": "dataset.map(lambda x: replicant.data.parse_single_example(x, features))",
    "data.experimental.prefetch_to_device": "dataset.prefetch(n): batches are moved to their devices by themselves",
    "data.experimental.shuffle_and_repeat": "dataset.shuffle(n).repeat(count)",
    "debugging": "use assert for shapes, jax.debug and jax.experimental.checkify for values",
    "device": "leave it out: the strategy places values",
    "distribute": "Replicant has no such name; docs/differences.md says why",
    "distribute.Server": "delete it: replicant launch starts workers and parameter servers",
    "distribute.experimental.CentralStorageStrategy": "replicant.MirroredStrategy(): each device has a copy of the variables",
    "errors": "replicant.errors lists the exceptions",
    "estimator": "use Keras: model.fit, or a custom training loop (replicant new)",
    "image": "Pillow or keras.ops.image, in dataset.map",
    "io": "read files in Python (replicant.data has TFRecordDataset, TextLineDataset and parse_example)",
    "io.decode_jpeg": "simplejpeg or Pillow, in dataset.map",
    "keras": "Keras 3 has no such name; see https://keras.io/guides/migrating_to_keras_3",
    "keras.backend": "Keras 3 has these functions in keras.ops",
    "keras.utils.experimental.DatasetCreator": "call strategy.distribute_datasets_from_function(dataset_fn) yourself",
    "lookup": "a Python dict in dataset.map, or replicant.keras.layers.StringLookup",
    "numpy_function": "call the function directly in dataset.map",
    "profiler": "replicant.keras.callbacks.TensorBoard(profile_batch=...), or jax.profiler",
    "py_function": "call the function directly in dataset.map",
    "ragged": "pad the batches: dataset.padded_batch",
    "random.Generator": "keras.random.SeedGenerator, or jax.random with your own keys",
    "saved_model": "model.export (needs TensorFlow), or model.save",
    "sparse": "JAX has no sparse tensors here: use dense ones",
    "strings": "Python's str methods in dataset.map: strings stay on the host",
    "summary": "tensorboardX.SummaryWriter, or replicant.keras.callbacks.TensorBoard with fit",
    "tpu": "delete it: replicant.TPUStrategy() finds and starts the TPU",
    "train": "replicant has Checkpoint, CheckpointManager, latest_checkpoint; encode_example is in replicant.data",
    "train.load_checkpoint": "replicant.list_variables(path) and replicant.load_variable(path, name)",
    "while_loop": "jax.lax.while_loop, or keras.ops.while_loop; a Python while where the condition is not an array",
}

# Methods and attributes, whatever they belong to.
METHODS = {
    "extended": Row("strategy.extended is internal to TensorFlow: use run, reduce or merge_call", "replicant.Strategy.extended"),
    "minimize": Row(
        "in Keras 3, an optimizer has no minimize: use replicant.GradientTape and optimizer.apply_gradients",
        "keras.optimizers.Optimizer.minimize",
    ),
}


def advice_for(name: str) -> str:
    """What to write instead of ``tensorflow.<name>``."""
    parts = name.split(".")
    return next(NAMES[key] for n in range(len(parts), -1, -1) if (key := ".".join(parts[:n])) in NAMES)


def advice_for_method(name: str) -> str:
    """What to write instead of a method or an attribute, or "" if there is nothing to say about it."""
    row = METHODS.get(name)
    return row.text if row is not None and not (row.unless and exists(row.unless)) else ""
