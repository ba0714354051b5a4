"""Datasets in the words of tf.data, and their distribution."""

from replicant.input._contexts import InputContext as InputContext
from replicant.input._contexts import ValueContext as ValueContext
from replicant.input._dataset import AUTOTUNE as AUTOTUNE
from replicant.input._dataset import Dataset as Dataset
from replicant.input._iterator import Optional as Optional
from replicant.input._options import AutoShardPolicy as AutoShardPolicy
from replicant.input._options import InputOptions as InputOptions
from replicant.input._options import InputReplicationMode as InputReplicationMode
from replicant.input._options import Options as Options
from replicant.input._readers import TextLineDataset as TextLineDataset
from replicant.input._readers import TFRecordDataset as TFRecordDataset
from replicant.input.distributed._distributed import DistributedDataset as DistributedDataset
from replicant.input.distributed._distributed import DistributedIterator as DistributedIterator
from replicant.input.files._example import encode_example as encode_example
from replicant.input.files._parse import FixedLenFeature as FixedLenFeature
from replicant.input.files._parse import VarLenFeature as VarLenFeature
from replicant.input.files._parse import parse_example as parse_example
from replicant.input.files._parse import parse_single_example as parse_single_example
from replicant.input.files._records import TFRecordWriter as TFRecordWriter
from replicant.input.graph._structure import TensorSpec as TensorSpec

__all__ = [
    "AUTOTUNE",
    "AutoShardPolicy",
    "Dataset",
    "DistributedDataset",
    "DistributedIterator",
    "FixedLenFeature",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "Optional",
    "Options",
    "TFRecordDataset",
    "TFRecordWriter",
    "TensorSpec",
    "TextLineDataset",
    "ValueContext",
    "VarLenFeature",
    "encode_example",
    "parse_example",
    "parse_single_example",
]
