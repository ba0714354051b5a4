"""One compiled step: from a Python function and its arguments to a program that is traced once and started often.

`_compiled` is the way in. `_replica_step` traces one replica function for all replicas, `_ragged` serves steps of uneven sizes.
"""
