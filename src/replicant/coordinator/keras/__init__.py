"""Keras under a parameter server strategy: variables, optimizers and metrics on the servers, `fit` and `evaluate` on the workers.

Importing this folder registers how Keras is connected, and no more. The files are loaded once Keras is in use, from `_connect` on.
Nothing outside this room knows about Keras.
"""

from .._libraries import register


def _connect() -> None:
    from ._connect import connect  # imports Keras

    connect()


register("keras", _connect)
