"""Random numbers with the names of ``tf.random``: generators whose state is a variable."""

from ._generator import Generator as Generator
from ._generator import get_global_generator as get_global_generator
from ._generator import set_global_generator as set_global_generator

__all__ = ["Generator", "get_global_generator", "set_global_generator"]
