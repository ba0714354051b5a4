"""Keras 3 under a strategy. Importing it requires Keras with the JAX backend; Replicant does so by itself once Keras is in use."""

from . import _checkpoint as _checkpoint
from . import _provider as _provider
