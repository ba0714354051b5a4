"""Datasets with the API of tf.data, and their distribution."""

from ..input._array_readers import MegatronDataset as MegatronDataset
from ..input._array_readers import NumpyDataset as NumpyDataset
from ..input._array_readers import TokenDataset as TokenDataset
from ..input._column_readers import ArrowDataset as ArrowDataset
from ..input._column_readers import ParquetDataset as ParquetDataset
from ..input._contexts import InputContext as InputContext
from ..input._contexts import ValueContext as ValueContext
from ..input._csv_readers import CsvDataset as CsvDataset
from ..input._csv_readers import make_csv_dataset as make_csv_dataset
from ..input._dataset import AUTOTUNE as AUTOTUNE
from ..input._dataset import Dataset as Dataset
from ..input._iterator import Optional as Optional
from ..input._options import AutoShardPolicy as AutoShardPolicy
from ..input._options import InputOptions as InputOptions
from ..input._options import InputReplicationMode as InputReplicationMode
from ..input._options import Options as Options
from ..input._readers import FixedLengthRecordDataset as FixedLengthRecordDataset
from ..input._readers import TextLineDataset as TextLineDataset
from ..input._readers import TFRecordDataset as TFRecordDataset
from ..input._record_readers import ArrayRecordDataset as ArrayRecordDataset
from ..input._record_readers import JsonLinesDataset as JsonLinesDataset
from ..input._record_readers import LitDataDataset as LitDataDataset
from ..input._record_readers import MDSDataset as MDSDataset
from ..input._record_readers import TarDataset as TarDataset
from ..input._tfds_readers import SkipDecoding as SkipDecoding
from ..input._tfds_readers import tfds_folder as tfds_folder
from ..input._tfds_readers import tfds_info as tfds_info
from ..input.distributed._distributed import DistributedDataset as DistributedDataset
from ..input.distributed._distributed_iterator import DistributedIterator as DistributedIterator
from ..input.files.records._example import encode_example as encode_example
from ..input.files.records._parse import FixedLenFeature as FixedLenFeature
from ..input.files.records._parse import VarLenFeature as VarLenFeature
from ..input.files.records._parse import parse_example as parse_example
from ..input.files.records._parse import parse_single_example as parse_single_example
from ..input.files.records._tfrecord import TFRecordWriter as TFRecordWriter
from ..input.graph._structure import DatasetSpec as DatasetSpec
from ..input.graph._structure import TensorSpec as TensorSpec

__all__ = [
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
]
