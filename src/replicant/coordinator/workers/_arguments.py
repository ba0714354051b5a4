"""The arguments of closures, on their way to a worker."""

from typing import Any, NamedTuple

import jax

from .._remote_value import RemoteValue
from . import _pickling


class Arguments(NamedTuple):
    """The arguments of one closure.

    Attributes:
        value: the packed arguments, or the original ones if there are RemoteValues among them.
        needs: the closures that compute those RemoteValues.
    """

    value: Any
    needs: list[int]

    def packed(self) -> _pickling.Packed:
        """Pack them with the values of the RemoteValues, whose closures must have ended. Raises the error of one that failed."""
        if isinstance(self.value, _pickling.Packed):
            return self.value
        return _pack(jax.tree.map(lambda x: x.fetch(0) if _is_remote(x) else x, self.value, is_leaf=_is_remote))


def pack(args: Any) -> Arguments:
    """Pack the arguments of a call. Raises UnserializableError for an object that cannot be sent."""
    packed = _pickling.pack_plain(args)
    if packed is None:
        leaves = jax.tree.leaves(args, is_leaf=_is_remote)
        needs = [leaf._number for leaf in leaves if _is_remote(leaf)]  # noqa: SLF001 - not part of the public class
        return Arguments(args if needs else _pack(args), needs)
    return Arguments(packed, [])


def _pack(args: Any) -> _pickling.Packed:
    return _pickling.pack(args, "An argument of a scheduled function")


def _is_remote(value: Any) -> bool:
    return isinstance(value, RemoteValue)
