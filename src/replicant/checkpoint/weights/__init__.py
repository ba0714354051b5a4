"""Files of weights that Replicant and others have written, each as arrays by name. Nothing is read before it is asked for.

``_open`` finds out what a file is, and ``_stored`` says what all kinds have in common. The other modules each read one kind.
"""

from ._hdf5 import write_keras_weights
from ._open import open_weights
from ._own import write_own
from ._safetensors import write_safetensors
from ._stored import Entry, WeightsFile

__all__ = ["Entry", "WeightsFile", "open_weights", "write_keras_weights", "write_own", "write_safetensors"]
