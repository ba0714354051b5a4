"""Who takes part and where values lie: topology, placement, per-replica values, collectives, and the context that code runs in.

`_collectives` sums gradients over the replicas. It is the only file that names the collectives of ``lax``.
"""
