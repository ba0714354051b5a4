"""Keras under a ParameterServerStrategy: variables, optimizers and metrics on servers, `fit` and `evaluate` on workers.

Importing this folder only registers how to connect Keras. Its files are imported once Keras is in use, starting with `_connect`.
Nothing outside this room knows about Keras.
"""

from .._libraries import register


def _connect() -> None:
    from ._connect import connect  # imports Keras

    connect()


register("keras", _connect)
