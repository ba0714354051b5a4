"""Finds the replacement of a name in TensorFlow. It is only proposed if the installed Keras or Replicant has it."""

import functools
import importlib
from typing import Any

_DTYPES = "bfloat16 bool complex64 float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64"

# In full, without "tensorflow."; the rest is done by prefixes.
_EXACT = {
    **{name: f'"{name}"' for name in _DTYPES.split()},
    "string": "str",
    "newaxis": "None",
    "__version__": "replicant.__version__",
    "function": "replicant.function",
    "GradientTape": "replicant.GradientTape",
    "Variable": "replicant.Variable",
    "VariableAggregation": "replicant.VariableAggregation",
    "VariableSynchronization": "replicant.VariableSynchronization",
    "TensorSpec": "replicant.data.TensorSpec",
    "nn.compute_average_loss": "replicant.compute_average_loss",
    "nn.scale_regularization_loss": "replicant.scale_regularization_loss",
    "io.TFRecordWriter": "replicant.data.TFRecordWriter",
    "io.FixedLenFeature": "replicant.data.FixedLenFeature",
    "io.VarLenFeature": "replicant.data.VarLenFeature",
    "io.parse_example": "replicant.data.parse_example",
    "io.parse_single_example": "replicant.data.parse_single_example",
    "config.list_physical_devices": "replicant.list_devices",
    "config.list_logical_devices": "replicant.list_devices",
    "config.experimental.list_physical_devices": "replicant.list_devices",
    "config.experimental.list_logical_devices": "replicant.list_devices",
    "random.set_seed": "keras.utils.set_random_seed",
    "keras.backend.clear_session": "keras.utils.clear_session",
    "keras.callbacks.TensorBoard": "replicant.keras.callbacks.TensorBoard",
    "keras.callbacks.BackupAndRestore": "replicant.keras.callbacks.BackupAndRestore",
    "keras.callbacks.experimental.BackupAndRestore": "replicant.keras.callbacks.BackupAndRestore",
    **{
        f"{module}.Reduction.{name}": f'"{value}"'
        for module in ("keras.losses", "losses")
        for name, value in (
            ("NONE", "none"),
            ("SUM", "sum"),
            *((x, "sum_over_batch_size") for x in ("AUTO", "SUM_OVER_BATCH_SIZE")),
        )
    },
}

# Tried in this order until a name exists.
_PREFIXES = (
    ("keras.layers.experimental.preprocessing.", "keras.layers."),
    ("keras.optimizers.legacy.", "keras.optimizers."),
    ("keras.optimizers.experimental.", "keras.optimizers."),
    ("keras.", "keras."),
    *((f"{name}.", f"keras.{name}.") for name in ("initializers", "losses", "metrics", "optimizers")),
    ("data.experimental.", "replicant.data."),
    ("data.", "replicant.data."),
    ("distribute.cluster_resolver.", "replicant.cluster."),
    ("distribute.experimental.coordinator.", "replicant.coordinator."),
    ("distribute.coordinator.", "replicant.coordinator."),
    ("distribute.experimental.partitioners.", "replicant.coordinator."),
    ("distribute.experimental.", "replicant."),
    ("distribute.", "replicant."),
    ("distribute.", "replicant.data."),
    ("train.experimental.", "replicant."),
    ("train.", "replicant."),
    ("errors.", "replicant.errors."),
)

# The longest key that fits is used.
_ADVICE = {
    "": "there is no equivalent: write it with keras.ops, jax.numpy or Python",
    "Tensor": "JAX has jax.Array; code on the host may also use np.ndarray",
    "TensorArray": "collect the values in a Python list and call keras.ops.stack, or use jax.lax.scan",
    "autograph": "there is no autograph: JAX traces Python as it runs",
    "compat.v1": "rewrite it for TensorFlow 2 first",
    "cond": "jax.lax.cond(condition, true_fn, false_fn), or keras.ops.cond; a Python if where the condition is not an array",
    "config.experimental_connect_to_cluster": "delete it: the strategy connects to the other workers itself",
    "config.experimental.set_memory_growth": "delete it; JAX reads XLA_PYTHON_CLIENT_PREALLOCATE=false",
    "config.set_logical_device_configuration": "replicant.set_virtual_devices(n), before anything else starts JAX",
    "config.set_visible_devices": "pass the devices to the strategy, or set CUDA_VISIBLE_DEVICES",
    "config": "see replicant.list_devices, replicant.set_virtual_devices and jax.config",
    "data": "replicant.data has no such name; docs/input.md lists what it has",
    "debugging": "use assert for shapes, jax.debug and jax.experimental.checkify for values",
    "device": "leave it out: the strategy places values",
    "distribute": "Replicant has no such name; docs/differences.md says why",
    "distribute.Server": "delete it: replicant launch starts workers and parameter servers",
    "errors": "replicant.errors lists the exceptions",
    "estimator": "use Keras: model.fit, or a custom training loop (replicant new)",
    "image": "Pillow or keras.ops.image, in dataset.map",
    "io": "read files in Python (replicant.data has TFRecordDataset, TextLineDataset and parse_example)",
    "io.decode_jpeg": "simplejpeg or Pillow, in dataset.map",
    "keras": "Keras 3 has no such name; see https://keras.io/guides/migrating_to_keras_3",
    "keras.backend": "Keras 3 has these functions in keras.ops",
    "keras.utils.experimental.DatasetCreator": "call strategy.distribute_datasets_from_function(dataset_fn) yourself",
    "lookup": "a Python dict in dataset.map",
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
    "while_loop": "jax.lax.while_loop, or keras.ops.while_loop; a Python while where the condition is not an array",
}


def target_of(name: str) -> str | None:
    """The code that replaces ``tensorflow.<name>``: a dotted name, a string literal or ``str``, or None if there is none.

    >>> target_of("distribute.MirroredStrategy")
    'replicant.MirroredStrategy'
    >>> target_of("image.resize") is None
    True
    """
    if name in _EXACT:
        return _EXACT[name]
    owner, _, member = name.rpartition(".")  # the owner is an enumeration or a class
    if owner in _EXACT and exists(f"{_EXACT[owner]}.{member}"):
        return f"{_EXACT[owner]}.{member}"
    targets = (new + name.removeprefix(old) for old, new in _PREFIXES if name.startswith(old))
    return next((target for target in targets if exists(target)), "keras" if name == "keras" else None)


def advice_for(name: str) -> str:
    """What to write instead of ``tensorflow.<name>``."""
    parts = name.split(".")
    return next(_ADVICE[key] for n in range(len(parts), -1, -1) if (key := ".".join(parts[:n])) in _ADVICE)


@functools.cache
def exists(dotted: str) -> bool:
    """Whether Keras or Replicant has a public name."""
    root, *rest = dotted.split(".")
    if root not in ("keras", "replicant"):
        return False
    value: Any = importlib.import_module(root)
    for i, name in enumerate(rest):
        if name.startswith("_") and i < len(rest) - 1:
            return False
        value = getattr(value, name, None)
        if value is None:
            return False
    return True
