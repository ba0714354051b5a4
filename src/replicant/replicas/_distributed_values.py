"""``DistributedValues``, the base class of the values that exist once per replica."""

from typing import Any

from .._display import replicas


class DistributedValues:
    """The base class of PerReplica and Mirrored."""

    @property
    def values(self) -> tuple[Any, ...]:
        """One value per replica, in replica order."""
        raise NotImplementedError

    @property
    def num_replicas(self) -> int:
        """The number of replicas that have the value."""
        return len(self.values)

    @property
    def _first_id(self) -> int:
        """The number of the replica to which the first of ``values`` belongs."""
        return 0

    def __repr__(self) -> str:
        rows = ",\n".join(f"  {i}: {value}" for i, value in enumerate(self.values, start=self._first_id))
        return f"{type(self).__name__}:{{\n{rows}\n}}"

    def _repr_html_(self) -> str:
        return replicas(type(self).__name__, self.values, self._first_id)


def is_distributed(value: Any) -> bool:
    """Whether `value` is PerReplica or Mirrored (as ``is_leaf`` of tree functions)."""
    return isinstance(value, DistributedValues)
