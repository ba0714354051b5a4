"""The programs of `of_keras_io`: those that behave like the examples of keras.io."""

from _ported import Ported

KERAS_IO: dict[str, Ported] = {}
