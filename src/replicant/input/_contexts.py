"""The contexts that are passed to functions which make values or datasets for replicas."""

import dataclasses

from ..errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class ValueContext:
    """Says which replica a value is made for.

    Args:
        replica_id_in_sync_group: The global id of the replica.
        num_replicas_in_sync: The number of replicas on all workers together.

    >>> ValueContext(replica_id_in_sync_group=1, num_replicas_in_sync=4).replica_id_in_sync_group
    1
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1


@dataclasses.dataclass(frozen=True)
class InputContext:
    """Tells an input function which share of the data to make.

    Args:
        num_input_pipelines: How often the function is called in all: once per worker, or once per replica on request.
        input_pipeline_id: The number of this call, counted from 0.
        num_replicas_in_sync: The number of replicas on all workers together.

    >>> context = InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    >>> context.get_per_replica_batch_size(64)
    16
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return the number of examples that one replica gets.

        Raises:
            ArgumentError: If the replicas cannot get equal shares.
        """
        size, rest = divmod(global_batch_size, self.num_replicas_in_sync)
        if rest:
            raise ArgumentError(
                f"The `global_batch_size` {global_batch_size} is not divisible by `num_replicas_in_sync` "
                f"{self.num_replicas_in_sync}. Use {size * self.num_replicas_in_sync} or {(size + 1) * self.num_replicas_in_sync}, "
                "or give `experimental_distribute_dataset` whole global batches of any size."
            )
        return size
