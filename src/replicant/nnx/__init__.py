"""Flax NNX: its Variables as state of compiled steps, with the rules of `replicant.Variable`.

This room is imported once ``flax.nnx`` is in use (`variables/_libraries.py`). `_stored` is how an ``nnx.Variable`` keeps its value,
`_rules` says what its copies mean, `_hooks` wraps what Flax has no hooks for, and `_provider` connects all of it. `_statistics` are
batch statistics over all replicas, which `_linen` and `_haiku` give to the layers of Flax Linen and Haiku.
"""
