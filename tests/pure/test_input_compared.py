"""What the fingerprint of a pipeline compares of each kind of node. Whoever adds a field says here what becomes of it."""

import importlib
import pkgutil

import replicant.input
from replicant.input.graph._graph import Node
from replicant.input.transforms._pipeline_fingerprint import compared

COMPARED = {  # functions of the user, and settings
    "Zeros": ("", "size count"),
    "Batches": ("", ""),
    "GrainIterable": ("", "dataset"),
    "GrainMap": ("", "dataset"),
    "PyDatasetBatches": ("", "dataset"),
    "TensorFlowDataset": ("", "dataset"),
    "TorchBatches": ("", ""),
    "FileNames": ("", "size"),
    "FileParts": ("", "size"),
    "ReadFiles": ("", "names"),
    "IndexedFiles": ("", "names"),
    "TableRows": ("", "size arrays"),
    "HuggingFaceRows": ("", "dataset"),
    "HuggingFaceStream": ("", "dataset"),
    "Saved": ("", "size shard folder max_record_bytes"),
    "OneInput": ("", ""),
    "Rest": ("", "replicas_per_worker"),
    "Foreign": ("", ""),
    "Generator": ("make", "args signature looks"),
    "Counted": ("", "size"),
    "Numbered": ("", "size"),
    "Range": ("", "size values dtype"),
    "Rows": ("", "size"),
    "IgnoreErrors": ("", "log_warning"),
    "OneByOne": ("", ""),
    "Counter": ("", "start step dtype"),
    "RandomNumbers": ("", "seed reshuffle"),
    "Shards": ("", "size shards folder"),
    "ExampleFiles": ("", "size"),
    "WholeFiles": ("fn", "known_spec reads"),
    "Batch": ("", "sizes drop_remainder"),
    "Unbatch": ("", ""),
    "BucketBatches": ("fn", "cycle_length block_length buckets"),
    "BucketedWindows": ("key_func", "size buckets"),
    "GroupByWindow": ("fn", "cycle_length block_length"),
    "Windows": ("key_func", "size"),
    "PackSequences": ("", "length key lookback policy"),
    "PaddedBatch": ("", "sizes drop_remainder shapes values"),
    "RowBatch": ("", "sizes drop_remainder shapes values"),
    "Held": ("", "size block"),
    "Window": ("", "size shift stride drop_remainder"),
    "Enumerate": ("", "start"),
    "Repeat": ("", "count first"),
    "Shard": ("", "num_shards index"),
    "Skip": ("", "count"),
    "Take": ("", "count"),
    "Filter": ("predicate", ""),
    "Map": ("fn", ""),
    "Scan": ("fn", "initial"),
    "TakeWhile": ("predicate", ""),
    "Unique": ("", ""),
    "Cache": ("", ""),
    "Prefetch": ("", "buffer_size"),
    "Concatenate": ("", ""),
    "Zip": ("", ""),
    "Interleave": ("fn", "cycle_length block_length"),
    "Resample": ("class_func", "seed reshuffle target initial"),
    "Choose": ("", "stop_on_empty"),
    "Sample": ("", "seed reshuffle weights stop_on_empty"),
    "GlobalShuffle": ("", "seed reshuffle"),
    "GroupShuffle": ("", "names seed reshuffle window"),
    "Drawing": ("", "seed reshuffle"),
    "StepsOfExample": ("", "size columns_of_all features wrong"),
    "_InTurn": ("fn", "cycle_length block_length"),
    "_Slices": ("", "size"),
    "Shuffle": ("", "seed reshuffle buffer_size"),
}


def kinds(kind):
    for each in kind.__subclasses__():
        yield each
        yield from kinds(each)


def test_the_fields_of_every_kind_of_node():
    for module in pkgutil.walk_packages(replicant.input.__path__, "replicant.input."):
        importlib.import_module(module.name)
    own = {kind.__name__: kind for kind in kinds(Node) if kind.__module__.startswith("replicant.")}
    assert {name: tuple(map(" ".join, compared(kind))) for name, kind in own.items()} == COMPARED
