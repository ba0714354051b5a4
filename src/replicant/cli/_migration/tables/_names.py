"""Finds the replacement of a name in TensorFlow. It is only proposed if the installed Keras or Replicant has it."""

import inspect

from ._exists import exists, found
from ._images import METHODS
from ._ops import OPS
from ._tfds import NAMES

_DTYPES = "bfloat16 bool complex64 float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64"

# In full, without "tensorflow."; the rest is done by prefixes.
_EXACT = {
    **{f"{module}{name}": f'"{name}"' for module in ("", "dtypes.") for name in _DTYPES.split()},
    **{
        f"{module}{old}": f'"{new}"'
        for module in ("", "dtypes.")
        for old, new in (("half", "float16"), ("double", "float64"), ("complex128", "complex128"))
    },
    "string": "str",
    "dtypes.string": "str",
    "as_dtype": "keras.backend.standardize_dtype",
    "dtypes.as_dtype": "keras.backend.standardize_dtype",
    "UnconnectedGradients.NONE": '"none"',
    "UnconnectedGradients.ZERO": '"zero"',
    **METHODS,
    **NAMES,
    "train.ClusterSpec": "replicant.cluster.ClusterSpec",
    "constant_initializer": "keras.initializers.Constant",
    "ones_initializer": "keras.initializers.Ones",
    "random_normal_initializer": "keras.initializers.RandomNormal",
    "random_uniform_initializer": "keras.initializers.RandomUniform",
    "zeros_initializer": "keras.initializers.Zeros",
    "io.gfile.exists": "os.path.exists",
    "io.gfile.isdir": "os.path.isdir",
    "io.gfile.listdir": "os.listdir",
    "io.gfile.remove": "os.remove",
    "io.gfile.rmtree": "shutil.rmtree",
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
    "config.get_visible_devices": "replicant.list_devices",
    "config.experimental.get_visible_devices": "replicant.list_devices",
    "Module": "replicant.Module",
    **{
        f"random.{module}{name}": f"replicant.random.{name}"
        for module in ("", "experimental.")
        for name in ("Generator", "get_global_generator", "set_global_generator")
    },
    "random.set_seed": "keras.utils.set_random_seed",
    "keras.backend.clear_session": "keras.utils.clear_session",
    "data.INFINITE_CARDINALITY": "replicant.data.Dataset.INFINITE",
    "data.UNKNOWN_CARDINALITY": "replicant.data.Dataset.UNKNOWN",
    "data.experimental.INFINITE_CARDINALITY": "replicant.data.Dataset.INFINITE",
    "data.experimental.UNKNOWN_CARDINALITY": "replicant.data.Dataset.UNKNOWN",
    "data.experimental.Counter": "replicant.data.Dataset.counter",
    "data.experimental.RandomDataset": "replicant.data.Dataset.random",
    "data.experimental.choose_from_datasets": "replicant.data.Dataset.choose_from_datasets",
    "data.experimental.load": "replicant.data.Dataset.load",
    "data.experimental.sample_from_datasets": "replicant.data.Dataset.sample_from_datasets",
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

# Older names of the same things.
_OLD_PREFIXES = (
    ("distribute.experimental.CollectiveCommunication", "distribute.experimental.CommunicationImplementation"),
    ("distribute.experimental.CollectiveHints", "distribute.experimental.CommunicationOptions"),
    ("distribute.experimental.ValueContext", "distribute.ValueContext"),
    ("keras.layers.experimental.preprocessing.", "keras.layers."),
    ("keras.callbacks.experimental.", "keras.callbacks."),
    ("keras.optimizers.legacy.", "keras.optimizers."),
    ("keras.optimizers.experimental.", "keras.optimizers."),
    *((f"keras.preprocessing.{kind}.", "keras.utils.") for kind in ("image_dataset", "text_dataset", "timeseries")),
    *((f"keras.preprocessing.{kind}_", f"keras.utils.{kind}_") for kind in ("image_dataset", "text_dataset", "timeseries_dataset")),
)

# Tried in this order until a name exists.
_PREFIXES = (
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
    ("nest.", "keras.tree."),
    ("summary.", "replicant.summary."),
)

# Keras has these with every backend, but they only run on TensorFlow.
_ONLY_ON_TENSORFLOW = {"keras.layers.TFSMLayer"}


def target_of(name: str) -> str | None:
    """The code that replaces ``tensorflow.<name>``: a dotted name, a string literal or ``str``, or None if there is none.

    >>> target_of("distribute.MirroredStrategy")
    'replicant.MirroredStrategy'
    >>> target_of("image.random_hue") is None
    True
    """
    name = next((new + name.removeprefix(old) for old, new in _OLD_PREFIXES if name.startswith(old)), name)
    if name in _EXACT:
        return _EXACT[name]
    if has_own(name):
        return f"replicant.{name}"
    if name in _ONLY_ON_TENSORFLOW:
        return None
    if name in OPS and not OPS[name].defaults:
        return OPS[name].target  # the function itself is used as a value
    owner, _, member = name.rpartition(".")  # the owner is an enumeration or a class
    if owner in _EXACT and exists(f"{_EXACT[owner]}.{member}"):
        return f"{_EXACT[owner]}.{member}"
    if owner in _EXACT and _EXACT[owner].startswith('"') and member in ("max", "min"):
        info = "finfo" if "float" in owner or owner.endswith(("half", "double")) else "iinfo"
        return f"np.{info}({_EXACT[owner]}).{member}"
    targets = (new + name.removeprefix(old) for old, new in _PREFIXES if name.startswith(old))
    return next((target for target in targets if exists(target)), "keras" if name == "keras" else None)


def has_own(name: str) -> bool:
    """Whether Replicant has a class or function of its own for one of Keras, which needs no TensorFlow or does more."""
    if not name.startswith("keras."):
        return False
    own = found(f"replicant.{name}")
    return own is not None and not inspect.ismodule(own) and own is not found(name)
