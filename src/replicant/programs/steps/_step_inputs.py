"""``StepInputs``: one call of ``run``, and how its replicas see the arrays of the program that contains it."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from jax.core import ShapedArray

from ...replicas._collectives import MeshAxis
from ...replicas._context import ActiveStrategy
from ...replicas._model_axis import ModelCut
from ...replicas._placement import Placement
from ...replicas._values import is_distributed
from ...variables._recorder import CrossRecorder, Facts
from ...variables._ref import Ref
from ..arguments._replica_inputs import Inputs, moves

# How a replica sees an array of the program: the whole (None), its row of a stack (ROW), or its slice along an axis (0, 1, ...).
Layout: TypeAlias = int | None
ROW = -1


@dataclasses.dataclass(frozen=True)
class StepInputs:
    """One call of ``run`` in the trace of a program.

    Attributes:
        strategy: The strategy whose ``run`` it is.
        fn: The replica function.
        arguments: Its arguments.
        cross: The recorder of the program.
        facts: What earlier traces of this call have found out.
    """

    strategy: ActiveStrategy
    fn: Callable[..., Any]
    arguments: Inputs
    cross: CrossRecorder
    facts: Facts

    @property
    def num_replicas(self) -> int:
        return self.arguments.num_replicas

    @property
    def placement(self) -> Placement:
        return self.strategy.placement

    @property
    def name(self) -> str:
        """What messages call the function."""
        return repr(getattr(self.fn, "__qualname__", self.fn))

    @cached_property
    def moving(self) -> list[int]:
        """The positions of the leaves that are inputs of the replicas' program."""
        return [i for i, x in enumerate(self.arguments.leaves) if moves(x)]

    def leaves_of(self, index: int, arrays: Sequence[Any]) -> list[Any]:
        """Return the leaves as replica `index` sees them, with these arrays in the places of those that move."""
        given = dict(zip(self.moving, arrays, strict=True))
        leaves = [given.get(i, x) for i, x in enumerate(self.arguments.leaves)]
        return [x.values[index] if is_distributed(x) else x for x in leaves]

    def mesh_axis(self) -> MeshAxis:
        """Return the group of equal replicas."""
        return self.placement.mesh_axis()

    def layout_of(self, ref: Ref) -> Layout:
        """Return how a replica sees a variable."""
        return ROW if ref.copies(self.num_replicas) else self.slice_axis(ref)

    def slice_axis(self, ref: Ref) -> int | None:
        """Return the axis along which each replica holds a slice of a variable. Of different sizes, every replica has the whole."""
        return None if self.arguments.ragged else ref.slice_axis(self.placement)

    def model_cut(self, ref: Ref) -> ModelCut | None:
        """Return how a variable is cut over the devices of one replica."""
        return None if self.arguments.ragged else ref.model_cut(self.placement)

    def local(self, ref: Ref) -> ShapedArray:
        """Return the shape and dtype of what a replica holds of a variable."""
        axis, n = self.slice_axis(ref), self.num_replicas
        return ref.aval().update(shape=tuple(size // n if i == axis else size for i, size in enumerate(ref.shape)))
