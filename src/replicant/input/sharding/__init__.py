"""Which worker reads what: pure functions that rewrite a graph for several workers, and cut a global batch for the replicas.

A batch is cut in `_rebatch`. Nothing here reads data or knows about devices.
"""
