"""What a trained model becomes: a program of JAX, and weights as safetensors, which need neither Replicant nor its devices.

The functions take a Keras model or a module of Flax NNX that was trained under any strategy, wherever its variables lie. Keras's
own ``model.export`` writes other formats (SavedModel, ONNX) and works under a strategy as well.

If the variables lie in slices on several workers, all workers call the functions, as they save a checkpoint. Otherwise each worker
can call them alone.
"""

from ._jax import to_jax
from ._safetensors import load_safetensors, save_safetensors

__all__ = ["load_safetensors", "save_safetensors", "to_jax"]
