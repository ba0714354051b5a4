"""Who takes part, and where values lie: topology, placement, per-replica values, collectives, and the context that code runs in.

Gradients are summed by `_collectives`, the only file that names the collectives of `lax`.
"""
