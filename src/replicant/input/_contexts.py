"""What functions are told that make values or datasets for replicas."""

import dataclasses

from replicant.errors import ArgumentError


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


@dataclasses.dataclass(frozen=True)
class InputContext:
    """What an input function is told: which share of the data it makes.

    Args:
        num_input_pipelines: how often the function is called in all: once per worker, or per replica if asked.
        input_pipeline_id: which of these calls this is, from 0.
        num_replicas_in_sync: replicas on all workers together.

    >>> context = InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    >>> context.get_per_replica_batch_size(64)
    16
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The share of one replica.

        Raises:
            ArgumentError: the replicas cannot have equal shares.
        """
        size, rest = divmod(global_batch_size, self.num_replicas_in_sync)
        if rest:
            raise ArgumentError(
                f"The `global_batch_size` {global_batch_size} is not divisible by `num_replicas_in_sync` "
                f"{self.num_replicas_in_sync}. Use {size * self.num_replicas_in_sync} or {(size + 1) * self.num_replicas_in_sync}, "
                "or give `experimental_distribute_dataset` whole global batches of any size."
            )
        return size
