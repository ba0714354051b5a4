"""What to write instead of a name, a method or a package that has no translation.

A row is shown only while the name in `unless` is missing, so that nothing here has to change when Replicant or Keras gets it.
"""

import pydoc
from dataclasses import dataclass

from . import _images, _texts, _tfds


@dataclass(frozen=True)
class Row:
    """One piece of advice.

    Attributes:
        text: What to write instead.
        unless: The dotted name of what makes the advice void once it exists.
    """

    text: str
    unless: str


_PRECISION = 'jax.config.update("jax_default_matmul_precision", "tensorfloat32"), or "highest" for full float32'
_VISIBLE = "delete it if it hid the GPUs from TensorFlow; pass the devices to the strategy, or set CUDA_VISIBLE_DEVICES"

# Names without "tensorflow.": the longest one that fits is used.
NAMES = {
    "": "there is no equivalent: write it with keras.ops, jax.numpy or Python",
    "Tensor": "JAX has jax.Array; code on the host may also use np.ndarray",
    "TensorArray": (
        "values = [], then values.append(x) and keras.ops.stack(values); jax.lax.scan where the number of rounds is an array"
    ),
    "autograph": "there is no autograph: JAX traces Python as it runs",
    "compat.v1": "rewrite it for TensorFlow 2 first",
    "cond": "jax.lax.cond(condition, true_fn, false_fn), or keras.ops.cond; a Python if where the condition is not an array",
    "config.experimental_connect_to_cluster": "delete it: the strategy connects to the other workers itself",
    "config.experimental.set_memory_growth": "delete it; JAX reads XLA_PYTHON_CLIENT_PREALLOCATE=false",
    "config.experimental_run_functions_eagerly": "leave out @replicant.function: code outside of it runs eagerly",
    "config.run_functions_eagerly": "leave out @replicant.function: code outside of it runs eagerly",
    "config.set_logical_device_configuration": "replicant.set_virtual_devices(n), before anything else starts JAX",
    **{
        f"config.{module}{name}": advice
        for name, advice in (
            ("enable_op_determinism", "set XLA_FLAGS=--xla_gpu_deterministic_ops=true, and call keras.utils.set_random_seed(seed)"),
            ("enable_tensor_float_32_execution", _PRECISION),
            ("get_memory_growth", "delete it; JAX reads XLA_PYTHON_CLIENT_PREALLOCATE=false"),
            ("get_memory_info", "device.memory_stats() of a device that replicant.list_devices() lists"),
            ("get_soft_device_placement", "delete it: the strategy places values"),
            ("set_soft_device_placement", "delete it: the strategy places values"),
            ("set_visible_devices", _VISIBLE),
            ("tensor_float_32_execution_enabled", "read jax.config.jax_default_matmul_precision"),
        )
        for module in ("", "experimental.")
    },
    "config.functions_run_eagerly": "code outside of @replicant.function runs eagerly, and code in it does not",
    "config.optimizer": "delete it: XLA compiles and optimizes every step",
    "config.threading": "delete it; NPROC=n in the environment limits the threads of XLA",
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
    "debugging.set_log_device_placement": "delete it; jax.debug.visualize_array_sharding(x) shows where an array lies",
    "distribute": "Replicant has no such name; docs/differences.md says why",
    **{
        f"distribute.{name}": "leave it out: XLA chooses how to reduce"
        for name in ("CrossDeviceOps", "HierarchicalCopyAllReduce", "NcclAllReduce", "ReductionToOneDevice")
    },
    "distribute.experimental_set_strategy": "with strategy.scope(): around the code, or replicant run --strategy NAME",
    "distribute.experimental.PreemptionWatcher": "replicant.PreemptionCheckpointHandler(manager)",
    "distribute.experimental.rpc": "replicant.coordinator.ClusterCoordinator schedules functions on workers",
    "distribute.Server": "delete it: replicant launch starts workers and parameter servers",
    "distribute.experimental.CentralStorageStrategy": "replicant.MirroredStrategy(): each device has a copy of the variables",
    "errors": "replicant.errors lists the exceptions",
    "estimator": "use Keras: model.fit, or a custom training loop (replicant new)",
    "custom_gradient": "keras.ops.custom_gradient, or jax.custom_vjp",
    "dtypes": 'dtypes are strings here, such as "float32"',
    "executing_eagerly": "delete it: code outside of @replicant.function runs eagerly, and code in it is traced",
    "boolean_mask": "keras.ops.where, because the shape of the result must be known; NumPy in dataset.map",
    "gather_nd": "index the array: x[indices[..., 0], indices[..., 1]]",
    "get_logger": "delete it: Replicant's messages are in logging.getLogger('replicant')",
    "linalg": "keras.ops or jax.numpy.linalg",
    "nn.avg_pool2d": "keras.ops.average_pool(x, pool_size, strides, padding)",
    "nn.conv2d": "keras.ops.conv(x, kernel, strides, padding), where strides are those of height and width alone",
    "nn.depthwise_conv2d": "keras.ops.depthwise_conv(x, kernel, strides, padding)",
    "nn.max_pool2d": "keras.ops.max_pool(x, pool_size, strides, padding)",
    "nn": "keras.ops, keras.layers or jax.nn",
    **_images.ADVICE,
    "io.gfile": "os, shutil and glob for files on this machine, fsspec for gs:// and the like",
    "io.gfile.stat": "os.stat(path), which has st_size instead of length, for files on this machine",
    "io.decode_image": "np.asarray(PIL.Image.open(io.BytesIO(data))), in dataset.map",
    "io.decode_png": "np.asarray(PIL.Image.open(io.BytesIO(data))), in dataset.map",
    **{
        f"io.{name}": "np.asarray(PIL.Image.open(io.BytesIO(data))), in dataset.map"
        for name in ("decode_bmp", "decode_gif", "decode_and_crop_jpeg")
    },
    **dict.fromkeys(("io.encode_png", "io.encode_jpeg"), "PIL.Image.fromarray(image).save(file, format), on the host"),
    "io.decode_raw": "np.frombuffer(data, dtype), in dataset.map",
    "io.decode_csv": "np.loadtxt or the csv module, in dataset.map; replicant.data.CsvDataset reads files",
    "io.decode_base64": "base64.urlsafe_b64decode(data), in dataset.map",
    "io.encode_base64": "base64.urlsafe_b64encode(data), in dataset.map",
    "io.parse_tensor": "np.frombuffer(data, dtype).reshape(shape), in dataset.map, of what array.tobytes() has written",
    "io.serialize_tensor": "np.asarray(x).tobytes(), on the host, which io.parse_tensor does not read",
    "io.write_file": "pathlib.Path(name).write_bytes(data)",
    "io": "read files in Python (replicant.data has TFRecordDataset, TextLineDataset and parse_example)",
    "io.decode_jpeg": "simplejpeg or Pillow, in dataset.map",
    "keras.layers.TFSMLayer": "it runs on TensorFlow alone: save the model as .keras and call keras.models.load_model",
    "keras": "Keras 3 has no such name; see https://keras.io/guides/migrating_to_keras_3",
    "keras.backend": "Keras 3 has these functions in keras.ops",
    "keras.backend.get_value": "np.asarray(x)",
    "keras.backend.set_value": "variable.assign(value)",
    "keras.utils.experimental.DatasetCreator": "call strategy.distribute_datasets_from_function(dataset_fn) yourself",
    "lookup": "a Python dict in dataset.map, or replicant.keras.layers.StringLookup",
    "numpy_function": "call the function directly in dataset.map",
    "profiler": "replicant.keras.callbacks.TensorBoard(profile_batch=...), or jax.profiler",
    "py_function": "call the function directly in dataset.map",
    "ragged": "pad the batches: dataset.padded_batch",
    "random": "keras.random, with seed=keras.random.SeedGenerator() in traced code, or jax.random with your own keys",
    "test": 'replicant.list_devices("GPU") lists the GPUs',
    "saved_model": 'model.save("name.keras") and keras.models.load_model; model.export(folder) for serving, which needs TensorFlow',
    "saved_model.load": (
        "nothing but TensorFlow runs a SavedModel: replicant.saved_model_variables(folder) reads its variables, and "
        "replicant.keras.load_weights(model, folder) gives them to a model of the same code"
    ),
    "sparse": "JAX has no sparse tensors here: use dense ones",
    **_texts.ADVICE,
    **_tfds.ADVICE,
    "summary": "tensorboardX.SummaryWriter, or replicant.keras.callbacks.TensorBoard with fit",
    "tpu": "delete it: replicant.TPUStrategy() finds and starts the TPU",
    "train": "replicant has Checkpoint, CheckpointManager, latest_checkpoint; encode_example is in replicant.data",
    "while_loop": "jax.lax.while_loop, or keras.ops.while_loop; a Python while where the condition is not an array",
}

# Methods and attributes, whatever they belong to.
METHODS = {
    "extended": Row("strategy.extended is internal to TensorFlow: use run, reduce or merge_call", "replicant.Strategy.extended"),
    "batch_jacobian": Row("jax.vmap(jax.jacrev(f))(x) of a function f of one example", "replicant.GradientTape.batch_jacobian"),
    "compiled_loss": Row("in Keras 3, a model has compute_loss(x, y, y_pred)", "keras.Model.compiled_loss"),
    "compiled_metrics": Row("in Keras 3, a model has compute_metrics(x, y, y_pred)", "keras.Model.compiled_metrics"),
    "get_concrete_function": Row(
        "call the function: it is compiled for the shapes of each call", "replicant._function.Function.get_concrete_function"
    ),
    "jacobian": Row("jax.jacrev(f)(x) of a function f of x", "replicant.GradientTape.jacobian"),
    "minimize": Row(
        "in Keras 3, an optimizer has no minimize: use replicant.GradientTape and optimizer.apply_gradients",
        "keras.optimizers.Optimizer.minimize",
    ),
}


# What objects of TensorFlow have that Replicant lacks.
OBJECTS = {
    _tfds.BUILDER: _tfds.OF_BUILDERS,
    "tensorflow.TensorArray": {
        "concat": "keras.ops.concatenate(values)",
        "gather": "keras.ops.stack([values[i] for i in indices])",
        "read": "values[index]",
        "size": "len(values)",
        "stack": "keras.ops.stack(values)",
        "unstack": "values = list(keras.ops.unstack(x))",
        "write": "values.append(x)",
    },
}

# Packages that need TensorFlow, by what is imported.
PACKAGES = {
    "official": "it needs TensorFlow: copy what you use, and translate it",
    "tensorflow_addons": "it needs TensorFlow, and is no longer developed: Keras 3 has most of it",
    "tensorflow_decision_forests": "it needs TensorFlow: use ydf or scikit-learn",
    "tensorflow_federated": "it needs TensorFlow",
    "tensorflow_graphics": "it needs TensorFlow",
    "tensorflow_hub": "its models need TensorFlow: use keras_hub, or keras.applications",
    "tensorflow_io": "it needs TensorFlow: read the files with Python packages, in dataset.map",
    "tensorflow_model_optimization": "it needs TensorFlow: keras.Model.quantize, or prune by hand",
    "tensorflow_probability": "tensorflow_probability.substrates.jax needs no TensorFlow: import that, or use numpyro or distrax",
    "tensorflow_recommenders": "it needs TensorFlow: use keras_rs",
    "tensorflow_text": "it needs TensorFlow: use the layers of replicant.keras.layers, or a tokenizer of another package",
    "tensorflow_transform": "it needs TensorFlow: preprocess in dataset.map",
    "tf_keras": "it is Keras 2, which runs on TensorFlow alone: import keras",
}


def advice_for_package(module: str) -> str:
    """What to use instead of an imported module, or "" if there is nothing to say about it."""
    return "" if ".substrates.jax" in module else PACKAGES.get(module.partition(".")[0], "")


def advice_for(name: str) -> str:
    """What to write instead of ``tensorflow.<name>``."""
    parts = name.split(".")
    return next(NAMES[key] for n in range(len(parts), -1, -1) if (key := ".".join(parts[:n])) in NAMES)


def advice_for_method(name: str, owner: str | None = None) -> str:
    """What to write instead of a method or an attribute, or "" if there is nothing to say about it.

    Args:
        name: Its name.
        owner: The kind of the object, as in `_kinds`, or None if it is not known.
    """
    if owner in OBJECTS:
        return OBJECTS[owner].get(name, "")
    row = METHODS.get(name)
    return row.text if row is not None and pydoc.locate(row.unless) is None else ""
