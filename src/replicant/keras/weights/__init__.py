"""Weights of other programs, given to a Keras model under any strategy.

``_load`` is the function. ``_sources`` says where each weight of the model is in the file: ``_older_hdf5``, ``_hdf5`` and
``_graph`` by the structure of the model, ``_names`` by name. ``_take`` checks, reads and assigns, and ``_report`` tells.
"""

from ._load import load_weights
from ._report import WeightsReport

__all__ = ["WeightsReport", "load_weights"]
