"""What functions are told that make values for replicas."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ValueContext:
    """Which replica a value is made for.

    Args:
        replica_id_in_sync_group: the replica's global id.
        num_replicas_in_sync: replicas on all workers together.

    >>> ValueContext(replica_id_in_sync_group=1, num_replicas_in_sync=4).replica_id_in_sync_group
    1
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1
