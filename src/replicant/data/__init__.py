"""Datasets in the words of tf.data, and their distribution."""

from replicant.input._contexts import ValueContext as ValueContext
from replicant.input._dataset import Dataset as Dataset
from replicant.input._distributed import DistributedDataset as DistributedDataset
from replicant.input._distributed import DistributedIterator as DistributedIterator
from replicant.input._iterator import Optional as Optional
from replicant.input._options import AutoShardPolicy as AutoShardPolicy
from replicant.input._options import InputOptions as InputOptions
from replicant.input._options import Options as Options

__all__ = [
    "AutoShardPolicy",
    "Dataset",
    "DistributedDataset",
    "DistributedIterator",
    "InputOptions",
    "Optional",
    "Options",
    "ValueContext",
]
