"""Leaves out the elements whose making fails."""

import dataclasses
import functools
import logging
from typing import Any

import numpy as np

from ..files._files import store_fails
from ..graph._blocks import Block, concatenate
from ..graph._graph import UNKNOWN, Cursor, Node, OneInput, Reader, State, Through, rewrite, sample
from ..graph._structure import TensorSpec, map_leaves, spec_of
from .batches._pack import PackSequences
from .elements._index import Skip
from .elements._map import Map
from .memory._prefetch import Prefetch
from .mixtures._interleave import Interleave
from .order._shuffle import Shuffle

_logger = logging.getLogger("replicant.data")


@dataclasses.dataclass(frozen=True, eq=False)
class IgnoreErrors(OneInput):
    """The elements of the input, without those whose making raises an error."""

    log_warning: bool = False

    @property
    def label(self) -> str:
        return f"ignore_errors({'log_warning=True' if self.log_warning else ''})"

    @property
    def cardinality(self) -> int:
        return 0 if self.input.cardinality == 0 else UNKNOWN

    @property
    def spec(self) -> Any:
        return self._spec

    @functools.cached_property
    def _spec(self) -> Any:
        try:
            return self.input.spec
        except Exception:  # noqa: BLE001 - the first element may be one to leave out; the others are asked next
            element = sample(self)
        if element is None:
            return None
        return map_leaves(lambda leaf: TensorSpec((None,) * np.ndim(leaf), spec_of(leaf).dtype), element)

    def open(self, state: State | None = None) -> Cursor:
        careful = rewrite(self.input, self._careful)
        return IgnoreErrorsCursor(careful.open(state and state["source"]), self.log_warning)

    def _careful(self, node: Node) -> Node:
        """The node, changed so that an error costs one element: nothing reads ahead, and each element is made by itself.

        A node that another `ignore_errors` has changed so does not grow.
        """
        if isinstance(node, Prefetch | OneByOne):
            return node.input
        if isinstance(node, Map):
            node = dataclasses.replace(node, num_threads=0)
        elif isinstance(node, Interleave):
            node = dataclasses.replace(node, parallel=False)
        elif isinstance(node, Shuffle | Skip | PackSequences) and not _ignores_errors(node.input):
            # They read many elements at once, and an error would cost them all.
            node = node.with_inputs(dataclasses.replace(self, inputs=node.inputs))
        return OneByOne(inputs=(node,))


def _ignores_errors(node: Node) -> bool:
    return isinstance(node.input if isinstance(node, OneByOne) else node, IgnoreErrors)


@dataclasses.dataclass(frozen=True, eq=False)
class OneByOne(OneInput):
    """The elements of the input, made one by one."""

    @property
    def label(self) -> str:
        return "one by one"

    def reader(self) -> Reader | None:
        return self.input.reader()

    def open(self, state: State | None = None) -> Cursor:
        return OneByOneCursor(self.input.open(state))


class OneByOneCursor(Through):
    """Asks for one element at a time, and for all that it was asked for, even after an error: a batch is lost as a whole."""

    def pull(self, limit: int) -> Block | None:
        blocks: list[Block] = []
        failure: Exception | None = None
        for _ in range(limit):
            try:
                block = self.source.pull(1)
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
                continue
            if block is None:
                break
            blocks.append(block)
        if failure is not None:
            raise failure
        return concatenate(blocks) if blocks else None

    def state(self) -> State:
        return self.source.state()


class IgnoreErrorsCursor(Through):
    """Asks again after an error, unless the input does not get past it."""

    def __init__(self, source: Cursor, log_warning: bool) -> None:
        super().__init__(source)
        self.log_warning = log_warning
        self.num_left_out = 0

    def pull(self, limit: int) -> Block | None:
        stuck_at: State | None = None
        while True:
            try:
                return self.source.pull(1)
            except Exception as error:
                position = self.source.state()
                if position == stuck_at:
                    raise
                stuck_at = position
                self.num_left_out += not store_fails(error)  # what a store does not give is asked for again
                if self.log_warning:
                    _logger.warning("ignore_errors: an element was left out: %s: %s", type(error).__name__, error)

    @property
    def num_skipped(self) -> int:
        return self.num_left_out + self.source.num_skipped

    def state(self) -> State:
        return {"source": self.source.state()}
