"""The names of TensorFlow 2.21's tf.data are here, with the same arguments, or docs/differences.md says what to write."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import replicant.data
from replicant.data import Dataset, Options
from replicant.errors import ArgumentError, MissingNameError

# The arguments without `self`, as inspect.signature gives them, and for `range` those that it takes out of its **kwargs.
METHODS = {
    "apply": "transformation_func",
    "as_numpy_iterator": "",
    "batch": "batch_size, drop_remainder=False, num_parallel_calls=None, deterministic=None, name=None",
    "bucket_by_sequence_length": (
        "element_length_func, bucket_boundaries, bucket_batch_sizes, padded_shapes=None, padding_values=None, "
        "pad_to_bucket_boundary=False, no_padding=False, drop_remainder=False, name=None"
    ),
    "cache": "filename='', name=None",
    "cardinality": "",
    "choose_from_datasets": "datasets, choice_dataset, stop_on_empty_dataset=True",
    "concatenate": "dataset, name=None",
    "counter": "start=0, step=1, dtype=int64, name=None",
    "enumerate": "start=0, name=None",
    "filter": "predicate, name=None",
    "fingerprint": "",
    "flat_map": "map_func, name=None",
    "from_generator": "generator, output_types=None, output_shapes=None, args=None, output_signature=None, name=None",
    "from_tensor_slices": "tensors, name=None",
    "from_tensors": "tensors, name=None",
    "get_single_element": "name=None",
    "group_by_window": "key_func, reduce_func, window_size=None, window_size_func=None, name=None",
    "ignore_errors": "log_warning=False, name=None",
    "interleave": "map_func, cycle_length=None, block_length=None, num_parallel_calls=None, deterministic=None, name=None",
    "list_files": "file_pattern, shuffle=None, seed=None, name=None",
    "load": "path, element_spec=None, compression=None, reader_func=None, wait=False",
    "map": "map_func, num_parallel_calls=None, deterministic=None, synchronous=None, use_unbounded_threadpool=False, name=None",
    "options": "",
    "padded_batch": "batch_size, padded_shapes=None, padding_values=None, drop_remainder=False, name=None",
    "prefetch": "buffer_size, name=None",
    "ragged_batch": "batch_size, drop_remainder=False, row_splits_dtype=int64, name=None",
    "random": "seed=None, rerandomize_each_iteration=None, name=None",
    "range": "*args, output_type=int64, name=None",
    "rebatch": "batch_size, drop_remainder=False, name=None",
    "reduce": "initial_state, reduce_func, name=None",
    "rejection_resample": "class_func, target_dist, initial_dist=None, seed=None, name=None",
    "repeat": "count=None, name=None",
    "sample_from_datasets": "datasets, weights=None, seed=None, stop_on_empty_dataset=False, rerandomize_each_iteration=None",
    "save": "path, compression=None, shard_func=None, checkpoint_args=None",
    "scan": "initial_state, scan_func, name=None",
    "shard": "num_shards, index, name=None",
    "shuffle": "buffer_size, seed=None, reshuffle_each_iteration=True, name=None",
    "skip": "count, name=None",
    "snapshot": "path, compression='AUTO', reader_func=None, shard_func=None, name=None",
    "sparse_batch": "batch_size, row_shape, name=None",
    "take": "count, name=None",
    "take_while": "predicate, name=None",
    "unbatch": "name=None",
    "unique": "name=None",
    "window": "size, shift=None, stride=1, drop_remainder=False, name=None",
    "with_options": "options, name=None",
    "zip": "*args, datasets=None, name=None",
}
READERS = {
    "CsvDataset": (
        "filenames, record_defaults, compression_type=None, buffer_size=None, header=False, field_delim=',', use_quote_delim=True, "
        "na_value='', select_cols=None, exclude_cols=None"
    ),
    "FixedLengthRecordDataset": (
        "filenames, record_bytes, header_bytes=None, footer_bytes=None, buffer_size=None, compression_type=None, "
        "num_parallel_reads=None, name=None"
    ),
    "TFRecordDataset": "filenames, compression_type=None, buffer_size=None, num_parallel_reads=None, name=None",
    "TextLineDataset": "filenames, compression_type=None, buffer_size=None, num_parallel_reads=None, name=None",
    "make_csv_dataset": (
        "file_pattern, batch_size, column_names=None, column_defaults=None, label_name=None, select_columns=None, field_delim=',', "
        "use_quote_delim=True, na_value='', header=True, num_epochs=None, shuffle=True, shuffle_buffer_size=10000, "
        "shuffle_seed=None, prefetch_buffer_size=None, num_parallel_reads=None, sloppy=False, num_rows_for_inference=100, "
        "compression_type=None, ignore_errors=False, encoding='utf-8'"
    ),
    "parse_example": "serialized, features, example_names=None, name=None",
    "parse_single_example": "serialized, features, example_names=None, name=None",
    "FixedLenFeature": "shape, dtype, default_value=None",
    "VarLenFeature": "dtype",
}
OPTIONS = """
    autotune dataset_name deterministic experimental_deterministic experimental_distribute
    experimental_external_state_policy experimental_optimization experimental_service experimental_slack
    experimental_symbolic_checkpoint experimental_threading experimental_warm_start framework_type merge threading
""".split()  # noqa: SIM905 - a table reads better so
# Of tf.data, of tf.data.experimental, and what of tf.io reads or writes elements.
NAMES = """
    AUTOTUNE AutoShardPolicy AutotuneAlgorithm AutotuneOptions Counter CsvDataset Dataset DatasetInitializer DatasetSpec
    DistributeOptions ExternalStatePolicy FixedLenFeature FixedLenSequenceFeature FixedLengthRecordDataset
    INFINITE_CARDINALITY Iterator IteratorSpec NumpyIterator OptimizationOptions Optional Options RaggedFeature
    RandomDataset Reducer SHARD_HINT ServiceOptions SparseFeature SqlDataset TFRecordDataset TFRecordOptions
    TFRecordWriter TextLineDataset ThreadingOptions UNKNOWN_CARDINALITY VarLenFeature assert_cardinality at
    bucket_by_sequence_length cardinality choose_from_datasets copy_to_device decode_csv decode_raw dense_to_ragged_batch
    dense_to_sparse_batch distributed_save enable_debug_mode enumerate_dataset from_list from_variant get_model_proto
    get_next_as_optional get_single_element get_structure group_by_reducer group_by_window ignore_errors
    index_table_from_dataset load make_batched_features_dataset make_csv_dataset make_saveable_from_iterator map_and_batch
    matching_files pad_to_cardinality parallel_interleave parse_example parse_example_dataset parse_single_example
    prefetch_to_device rejection_resample sample_from_datasets save scan service shuffle_and_repeat snapshot
    table_from_dataset take_while to_variant unbatch unique
""".split()  # noqa: SIM905 - a table reads better so
ITERATOR = ["element_spec", "get_next", "get_next_as_optional"]
DIFFERENCES = (Path(__file__).parents[2] / "docs" / "differences.md").read_text()


def explained(name):
    return re.search(rf"`(\w+\.)*{name}(`|\()", DIFFERENCES) is not None


def arguments(function):
    """The arguments of TensorFlow. The limit for a record is ours, and comes behind them."""
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    assert "max_record_bytes" not in [each.name for each in parameters[:-1]]
    return ", ".join(shown(each) for each in parameters if each.name != "max_record_bytes")


def shown(parameter):
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.default is parameter.empty:
        return parameter.name
    return f"{parameter.name}={'int64' if parameter.default is np.int64 else repr(parameter.default)}"


def test_each_method_of_tensorflow_is_there_or_its_absence_is_explained():
    missing = [name for name in [*METHODS, "element_spec"] if not hasattr(Dataset, name)]
    assert missing == ["ragged_batch", "sparse_batch"]
    assert [name for name in missing if not explained(name)] == []


@pytest.mark.parametrize("name", [name for name in METHODS if hasattr(Dataset, name)])
def test_a_method_has_the_arguments_of_tensorflow(name):
    assert arguments(getattr(Dataset, name)) == METHODS[name]


@pytest.mark.parametrize("name", READERS)
def test_what_reads_files_has_the_arguments_of_tensorflow(name):
    assert arguments(getattr(replicant.data, name)) == READERS[name]


def test_each_name_of_tensorflow_is_there_or_the_page_says_what_to_write():
    assert [name for name in NAMES if not hasattr(replicant.data, name) and not explained(name)] == []


def test_an_iterator_has_what_tensorflows_iterators_have():
    iterator = iter(Dataset.range(2))
    assert [name for name in ITERATOR if not hasattr(iterator, name)] == []


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("experimental_distribute", "merge")])
def test_an_option_that_is_not_needed_says_so(name):
    message = rf"Options has no option '{name}'\. It has: experimental_distribute\. Delete the line: \w.+\.$"
    with pytest.raises(ArgumentError, match=message):
        setattr(Options(), name, True)
    with pytest.raises(MissingNameError, match=message):
        getattr(Options(), name).enabled = True


def test_each_option_is_explained():
    assert [name for name in [*OPTIONS, "num_devices"] if name != "experimental_distribute" and not explained(name)] == []


def test_no_difference_is_listed_twice():
    rows = [line.split("|")[1].strip() for line in DIFFERENCES.splitlines() if line.count("|") == 5 and not line.startswith("|---")]
    rows = [row for row in rows if row != "what"]  # the heads of the tables
    assert len(rows) > 100
    assert [row for row in rows if rows.count(row) > 1] == []
