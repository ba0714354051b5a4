"""The model axis: how the devices of one replica share its weights, and with these its activations.

Each variable has two layouts. *At rest*, it is cut along one axis over the replicas, and along another over the devices of each
replica, so that each device keeps 1/n of it. The axes follow from the shape alone, so optimizer state lies as its weights do. *In
use*, a replica has the whole of it, cut over its devices along the axis at rest, or along the one that a layout map names.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec

from ..errors import ArgumentError, ArgumentTypeError

MODEL = "model"  # the name of the mesh axis of the devices of one replica


class ModelCut(NamedTuple):
    """How one variable is cut over the devices of a replica.

    Attributes:
        rest: The axis along which it is cut at rest; None if each device has all of its replica's slice.
        use: The axis along which it is cut while the replica computes; None if each device has the whole.
    """

    rest: int | None
    use: int | None


class Cuts(NamedTuple):
    """The axes along which a variable is cut at rest: over the replicas, and over the devices of each replica."""

    replica: int
    model: int | None


def check_divides(strategy: str, size: int, num_devices: int, devices: str = "devices") -> None:
    """Raise ArgumentError if devices cannot be shared out to replicas of `size` devices each."""
    if num_devices % size:
        raise ArgumentError(
            f"{strategy}: model_parallel_size must divide the number of {devices}, because each replica takes as many; got "
            f"model_parallel_size={size} for {num_devices} {devices}. Use a divisor of {num_devices}, or other devices."
        )


def spec_of(axis: int | None) -> PartitionSpec:
    """Return the PartitionSpec of an array that is cut along `axis` over the devices of a replica."""
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, MODEL)


@functools.lru_cache(maxsize=4096)
def cuts_at_rest(shape: tuple[int, ...], num_replicas: int, size: int) -> Cuts | None:
    """Return the axes along which a variable is cut at rest; None if it cannot be cut over the replicas.

    Of the cuts into most pieces, the one along the best axis for the model is taken, and another axis for the replicas if possible.

    >>> cuts_at_rest((64, 256), 2, 2)  # a Dense layer that widens is cut by columns
    Cuts(replica=0, model=1)
    >>> cuts_at_rest((256, 64), 2, 2)  # and one that narrows by rows
    Cuts(replica=1, model=0)
    """
    best: tuple[Any, Cuts] | None = None
    for replica in range(len(shape)):
        for model in (None, *range(len(shape))):
            if model is None and num_replicas == 1:
                continue
            ways = num_replicas * (size if model == replica else 1)
            if not shape[replica] or shape[replica] % ways or (model is not None and shape[model] % size):
                continue
            preferred = 0 if model is None else -_preference(shape).index(model)
            rank = (model is not None, preferred, replica != model, shape[replica], -replica)
            if best is None or rank > best[0]:
                best = rank, Cuts(replica, model)
    return None if best is None else best[1]


def _preference(shape: tuple[int, ...]) -> list[int]:
    """Return the axes in the order in which they are best for a cut over the devices of a replica.

    Matrices (Dense, Embedding) are cut along their longer axis, square ones by columns. Kernels of attention have an axis of the
    width of the model, which is first (query, key, value) or last (output), and then one of heads, by which they are cut. Kernels
    of convolutions are cut along their last axis, of filters.
    """
    axes = sorted(range(len(shape)), key=lambda axis: (shape[axis], axis), reverse=True)
    if len(shape) == 3:
        heads = 0 if axes[0] == 2 else 1
        return [heads, *[axis for axis in axes if axis != heads]]
    if len(shape) > 3:
        return list(reversed(range(len(shape))))
    return axes


@dataclass(frozen=True)
class Layouts:
    """The rules of a layout map: for each pattern of a variable's path, the axis that is cut over the devices of a replica.

    Args:
        rules: The pattern, the number of axes that it names, and the axis that is cut, if any.
        matched: The patterns that a variable has matched.
    """

    rules: tuple[tuple[str, int, int | None], ...]
    matched: set[str] = field(default_factory=set, compare=False, repr=False)

    @classmethod
    def of(cls, layout_map: Any) -> "Layouts":
        """Return the rules of a ``keras.distribution.LayoutMap``, or of a mapping from patterns to tuples of axis names.

        Raises:
            ArgumentTypeError: If it is not such a mapping.
            ArgumentError: If a rule names an unknown axis or no regular expression, or cuts two axes.
        """
        if not isinstance(layout_map, Mapping):
            raise ArgumentTypeError(
                "FullyShardedStrategy: layout_map must be a keras.distribution.LayoutMap, or a dict from patterns of variable "
                f"paths to tuples such as (None, 'model'); got {layout_map!r} of type {type(layout_map).__name__}."
            )
        return cls(tuple(_rule(pattern, layout_map[pattern]) for pattern in layout_map))

    def axis_of(self, name: str, shape: tuple[int, ...], size: int) -> int | None:
        """Return the axis along which a variable is cut in use. One that no rule names is whole.

        Raises:
            ArgumentError: If several rules match it, or the rule does not fit its shape.
        """
        found = self._match(name)
        if found is None:
            return None
        pattern, rank, axis = found
        if rank > len(shape):
            raise ArgumentError(
                f"layout_map: the rule {pattern!r} names {rank} axes, but variable {name!r} has {len(shape)}, with shape "
                f"{list(shape)}. Give one entry for each axis, or write a pattern that does not match this variable."
            )
        if axis is not None and shape[axis] % size:
            raise ArgumentError(
                f"layout_map: the rule {pattern!r} cuts axis {axis} of variable {name!r} over {size} devices, but its shape is "
                f"{list(shape)}, and {size} does not divide {shape[axis]}. Cut another axis, make the layer's size a multiple of "
                f"{size}, or use None to leave it whole."
            )
        return axis

    def note(self, name: str) -> None:
        """Note that there is a variable of this name."""
        self.matched.update(pattern for pattern, _, _ in self.rules if pattern == name or re.fullmatch(pattern, name))

    def check_all_matched(self) -> None:
        """Raise ArgumentError if there is a rule that no variable has matched."""
        unused = [pattern for pattern, _, _ in self.rules if pattern not in self.matched]
        if unused:
            raise ArgumentError(
                f"layout_map: no variable that was made under the strategy matches {', '.join(map(repr, unused))}. Rules are "
                "regular expressions, which must match the whole of variable.path, such as '.*dense.*kernel'. Print [v.path for v "
                "in model.variables], and build all models before the first training step."
            )

    def _match(self, name: str) -> tuple[str, int, int | None] | None:
        exact = [rule for rule in self.rules if rule[0] == name]
        found = exact or [rule for rule in self.rules if re.fullmatch(rule[0], name)]
        self.matched.update(rule[0] for rule in found)
        if len(found) > 1:
            raise ArgumentError(
                f"layout_map: variable {name!r} matches several rules: {', '.join(repr(rule[0]) for rule in found)}. Write "
                "patterns of which at most one matches each variable."
            )
        return found[0] if found else None


def _rule(pattern: Any, layout: Any) -> tuple[str, int, int | None]:
    axes = getattr(layout, "axes", layout)  # of a keras.distribution.TensorLayout
    if not isinstance(pattern, str) or not isinstance(axes, tuple | list):
        raise ArgumentTypeError(
            f"layout_map: a rule is a pattern with a tuple of axis names, such as ('.*kernel', (None, 'model')); got {pattern!r}: "
            f"{layout!r}."
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise ArgumentError(f"layout_map: {pattern!r} is not a regular expression: {error}.") from error
    unknown = [axis for axis in axes if axis not in (None, MODEL)]
    if unknown:
        raise ArgumentError(
            f"layout_map: the rule {pattern!r} names the axis {unknown[0]!r}, but the only axis is 'model', of the devices of one "
            "replica. Variables are cut over the replicas without a rule. Use 'model' or None."
        )
    cut = [axis for axis, name in enumerate(axes) if name == MODEL]
    if len(cut) > 1:
        raise ArgumentError(
            f"layout_map: the rule {pattern!r} cuts {len(cut)} axes, {tuple(axes)!r}, but a variable is cut along one axis over "
            "the devices of a replica. Use 'model' once."
        )
    return pattern, len(axes), cut[0] if cut else None
