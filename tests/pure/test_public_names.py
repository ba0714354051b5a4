"""The public names are a golden list: changing them is a change of this file."""

import importlib
import itertools
from types import ModuleType

import pytest

GOLDEN = {
    "replicant": [
        "CentralStorageStrategy",
        "Checkpoint",
        "CheckpointManager",
        "CheckpointOptions",
        "CommunicationImplementation",
        "CommunicationOptions",
        "CompileCache",
        "DistributedValues",
        "FullyShardedStrategy",
        "GradientTape",
        "Mirrored",
        "MirroredStrategy",
        "Module",
        "MultiWorkerMirroredStrategy",
        "OneDeviceStrategy",
        "ParameterServerStrategy",
        "PerReplica",
        "PreemptionCheckpointHandler",
        "ReduceOp",
        "ReplicaContext",
        "RunReport",
        "Strategy",
        "TPUStrategy",
        "TerminationConfig",
        "Variable",
        "VariableAggregation",
        "VariableSynchronization",
        "Watchdog",
        "cluster",
        "compile_cache",
        "compute_average_loss",
        "coordinator",
        "custom_gradient",
        "data",
        "errors",
        "export",
        "function",
        "get_replica_context",
        "get_strategy",
        "has_strategy",
        "in_cross_replica_context",
        "keep_updates_if",
        "keras",
        "kernels",
        "latest_checkpoint",
        "list_devices",
        "list_variables",
        "load_checkpoint",
        "load_variable",
        "plan",
        "profile",
        "random",
        "remat",
        "run_elastic",
        "run_report",
        "saved_model_variables",
        "scale_regularization_loss",
        "set_virtual_devices",
        "summary",
        "track",
        "trackers",
        "value_and_grad",
    ],
    "replicant.cluster": [
        "ClusterResolver",
        "ClusterSpec",
        "Detection",
        "KubernetesClusterResolver",
        "Membership",
        "SimpleClusterResolver",
        "SlurmClusterResolver",
        "TFConfigClusterResolver",
        "TPUClusterResolver",
        "check_group",
        "check_proxies",
        "check_reachable",
        "detect",
        "proxy_variables",
    ],
    "replicant.coordinator": [
        "ClusterCoordinator",
        "FixedShardsPartitioner",
        "MaxSizePartitioner",
        "MinSizePartitioner",
        "OptaxOptimizer",
        "RayTransport",
        "RemoteValue",
        "StatsWriter",
        "embedding_lookup",
    ],
    "replicant.data": [
        "AUTOTUNE",
        "ArrayRecordDataset",
        "ArrowDataset",
        "AutoShardPolicy",
        "CsvDataset",
        "Dataset",
        "DatasetSpec",
        "DistributedDataset",
        "DistributedIterator",
        "FixedLenFeature",
        "FixedLengthRecordDataset",
        "InputContext",
        "InputOptions",
        "InputReplicationMode",
        "JsonLinesDataset",
        "LitDataDataset",
        "MDSDataset",
        "MegatronDataset",
        "NumpyDataset",
        "Optional",
        "Options",
        "ParquetDataset",
        "SkipDecoding",
        "TFRecordDataset",
        "TFRecordWriter",
        "TarDataset",
        "TensorSpec",
        "TextLineDataset",
        "TokenDataset",
        "ValueContext",
        "VarLenFeature",
        "encode_example",
        "make_csv_dataset",
        "parse_example",
        "parse_single_example",
        "tfds_folder",
        "tfds_info",
    ],
    "replicant.keras": [
        "WeightsReport",
        "callbacks",
        "layers",
        "load_weights",
        "use_micro_batches",
        "use_replica_statistics",
        "utils",
    ],
    "replicant.keras.callbacks": [
        "BackupAndRestore",
        "PreemptionHandler",
        "StepWatchdog",
        "TensorBoard",
        "TerminateOnNaN",
        "Track",
    ],
    "replicant.keras.layers": [
        "CategoryEncoding",
        "Discretization",
        "HashedCrossing",
        "Hashing",
        "IntegerLookup",
        "StringLookup",
        "TextVectorization",
    ],
    "replicant.keras.utils": [
        "audio_dataset_from_directory",
        "image_dataset_from_directory",
        "split_dataset",
        "text_dataset_from_directory",
        "timeseries_dataset_from_array",
    ],
    "replicant.random": ["Generator", "get_global_generator", "set_global_generator"],
    "replicant.summary": [
        "ScalarEvent",
        "SummaryWriter",
        "create_file_writer",
        "create_noop_writer",
        "experimental",
        "flush",
        "histogram",
        "image",
        "read_scalars",
        "record_if",
        "scalar",
        "should_record_summaries",
        "text",
    ],
    "replicant.summary.experimental": ["get_step", "set_step"],
    "replicant.export": ["load_safetensors", "save_safetensors", "to_jax"],
    "replicant.kernels": ["Status", "disable", "disabled", "enable", "status"],
    "replicant.errors": [
        "AlreadyStartedError",
        "ArgumentError",
        "ArgumentTypeError",
        "BackendError",
        "CancelledError",
        "CheckpointError",
        "ClusterError",
        "CommandError",
        "ConfigurationError",
        "ContextError",
        "DamagedCheckpointError",
        "DatasetError",
        "DeviceError",
        "DivergenceError",
        "ElementError",
        "GradientError",
        "LossReductionError",
        "LostProcessError",
        "LostStateError",
        "MissingNameError",
        "MixedStrategyError",
        "NonFiniteError",
        "OutOfRangeError",
        "ParameterServerError",
        "ProfileError",
        "RaggedStepError",
        "ReductionError",
        "ReductionWarning",
        "ReplicantError",
        "StepTimeoutError",
        "SummaryError",
        "TracedValueError",
        "UnreachableError",
        "UnserializableError",
        "UnsupportedSystemError",
        "VariableError",
        "WorkerError",
        "WorkerLostError",
        "WorkerMismatchError",
        "WorkersChangedError",
        "WriteError",
    ],
    "replicant.plan": ["Exchange", "Memory", "Plan", "make_plan"],
    "replicant.trackers": ["MLflowTracker", "Row", "TensorBoardTracker", "TrackedRun", "Tracker", "WandBTracker"],
}

modules = pytest.mark.parametrize("name", sorted(GOLDEN))


@modules
def test_the_names_are_the_golden_ones_and_sorted(name):
    assert list(public_names(importlib.import_module(name))) == GOLDEN[name]


@modules
def test_every_name_is_there(name):
    module = importlib.import_module(name)
    assert [public for public in GOLDEN[name] if not hasattr(module, public)] == []


def test_each_name_lives_in_one_public_module():
    for (first, names), (second, others) in itertools.combinations(GOLDEN.items(), 2):
        assert set(names) & set(others) == set(), f"{first} and {second}"


def test_every_public_module_has_its_list():
    submodules = {
        f"{module}.{name}"
        for module, names in GOLDEN.items()
        for name in names
        if isinstance(getattr(importlib.import_module(module), name, None), ModuleType)
    }
    assert submodules | {"replicant"} == set(GOLDEN)


@modules
def test_nothing_of_ours_is_reachable_without_being_public(name):
    """A class or function of this package that a public module shows is in its list."""
    module = importlib.import_module(name)
    shown = {
        attribute
        for attribute, value in vars(module).items()
        if not attribute.startswith("_") and (getattr(value, "__module__", None) or "").startswith("replicant")
    }
    assert shown <= set(GOLDEN[name])


@modules
def test_every_public_name_says_what_it_is(name):
    module = importlib.import_module(name)
    assert [public for public in GOLDEN[name] if not (getattr(module, public).__doc__ or "").strip()] == []


def public_names(module: ModuleType) -> list[str]:
    """``__all__``; in ``errors`` every name is public."""
    return module.__all__ if hasattr(module, "__all__") else sorted(name for name in vars(module) if not name.startswith("_"))
