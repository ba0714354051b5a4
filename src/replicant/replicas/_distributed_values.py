"""``DistributedValues``, the base class of the values that exist once per replica."""

from typing import Any

from .._display import replicas, short, shown, titled


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
        try:
            rows = ",\n".join(f"  {i}: {value}" for i, value in enumerate(self.values, start=self._first_id))
        except RuntimeError as error:  # JAX's, for an array that a step has taken
            return f"{type(self).__name__}:{{ {error} }}"
        return f"{type(self).__name__}:{{\n{rows}\n}}"

    def _repr_html_(self) -> str:
        try:
            values = self.values
        except RuntimeError as error:
            return titled(f"{type(self).__name__}: {short(str(error))}", "")
        return replicas(type(self).__name__, values, self._first_id)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return what IPython shows. It would take the text from ``repr``, which waits for arrays and fetches big ones."""
        try:
            rows = ",\n".join(f"  {i}: {shown(value)}" for i, value in enumerate(self.values, start=self._first_id))
        except RuntimeError as error:
            rows = f"  {short(str(error))}"
        return {"text/plain": f"{type(self).__name__}:{{\n{rows}\n}}", "text/html": self._repr_html_()}


def is_distributed(value: Any) -> bool:
    """Whether `value` is PerReplica or Mirrored (as ``is_leaf`` of tree functions)."""
    return isinstance(value, DistributedValues)
