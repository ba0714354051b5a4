"""Keras's functions that make datasets, without TensorFlow.

Keras makes its datasets of folders and of time series with tf.data. The functions here have the same arguments and give the same
examples as `replicant.data.Dataset`, which `fit` and strategies take.
"""

from ._audio import audio_dataset_from_directory
from ._images import image_dataset_from_directory
from ._split import split_dataset
from ._text import text_dataset_from_directory
from ._timeseries import timeseries_dataset_from_array

__all__ = [
    "audio_dataset_from_directory",
    "image_dataset_from_directory",
    "split_dataset",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
]
