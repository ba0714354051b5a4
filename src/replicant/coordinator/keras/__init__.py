"""Keras under a parameter server strategy: variables, optimizers and metrics on the servers, `fit` and `evaluate` on the workers.

Loaded once Keras is in use. Nothing outside this room knows about Keras.
"""
