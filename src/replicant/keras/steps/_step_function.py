"""One of a model's steps, compiled and called: state and batches are brought to the devices, and workers compare what they do."""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ...programs.running._executable import Executable, found_step
from ...replicas._placement import Placement, host_copy, is_local
from ...replicas._planning import Held, StepFound
from ...runtime import _in_flight
from ...runtime._own_memory import own_if_held
from ...variables._chief import chiefs_values
from ...variables._slices import compare_cut
from ..data._array_batches import Several
from ..state._loop_run import current_loop
from ..state._same_batches import PROBLEM
from ._traced_step import TracedStep


@jax.tree_util.register_pytree_node_class
class _Leaves(Sequence[Any]):
    """Arrays of a model's state that already lie where its steps need them.

    This is neither a list nor a tuple because Keras keeps the state as an attribute of the model. It would inspect every item of a
    list or tuple at every step. Programs take and return lists: Ctrl-C in `tree_unflatten` would lose what they have computed.
    """

    __slots__ = ("items",)

    def __init__(self, items: list[Any]):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def tree_flatten(self) -> tuple[list[Any], None]:
        """Return the arrays (for JAX)."""
        return self.items, None

    @classmethod
    def tree_unflatten(cls, _: None, items: Iterable[Any]) -> "_Leaves":
        """Undo tree_flatten (for JAX)."""
        return cls(list(items))


class StepFunction:
    """One of a model's step functions, ``step(state, data) -> (outputs, state)``, compiled for the devices of a strategy."""

    def __init__(self, traced: TracedStep):
        self._traced = traced
        self._placement, self._holds_slots, self._compiled = traced.devices, traced.holds_slots, traced.compiled
        self._agreed: set[Any] = set()  # signatures for which the workers have compared their programs
        self.around = traced.around
        self.one = self._executable(traced.one)
        self._all_of_many = self._executable(functools.partial(traced.many, last_only=False))
        self._last_of_many = self._executable(functools.partial(traced.many, last_only=True))

    def _executable(self, compute: Callable[..., Any]) -> Executable:
        return Executable("fit, evaluate or predict", compute, self._placement)

    def __call__(
        self, state: Any, group: list[Any] | Several, *, all_outputs: bool, keeper: _in_flight.State | None = None
    ) -> tuple[list[Any], Any]:
        """Compute one or several batches of equal shapes. Return the outputs of all or only of the last one, and the new state.

        `keeper` stores the new state of a compiled step even if Ctrl-C interrupts the call.
        """
        if isinstance(group, list):
            batches, stacked = group, None
        elif self._compiled and self._placement.planning is None:
            batches, stacked = [], group.stacked
        else:
            batches, stacked = group.unstacked(), None
        if self._placement.planning is not None and any(self._holds_slots):
            raise self._found(state, batches[0])
        if self._placement.world is not None:
            state = self._adopted(state)
        if not self._compiled:
            return self._eagerly(state, batches)
        state = tuple(
            part.items if type(part) is _Leaves else self._traced.homes(part, slots)
            for part, slots in zip(state, self._holds_slots, strict=True)
        )
        if len(batches) == 1:
            data = self._spread(batches[0], axis=0)
            self._check_workers(self.one, state, data, batches[0])
            outputs, state = self._run(self.one, state, data, keeper)
            return [outputs], tuple(map(_Leaves, state))
        stacked = self._stacked(batches) if stacked is None else stacked
        data = self._spread(stacked, axis=1)
        program = self._all_of_many if all_outputs else self._last_of_many
        self._check_workers(program, state, data, stacked)
        outputs, state = self._run(program, state, data, keeper)
        parts = [jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), outputs) if all_outputs else outputs]
        return parts, tuple(map(_Leaves, state))

    @staticmethod
    def _run(program: Executable, state: Any, data: Any, keeper: _in_flight.State | None) -> tuple[Any, Any]:
        with program.alone():
            outputs = program.start(state, data, keeper=keeper)
            program.settle(state, outputs, keeper)
        return outputs

    def _eagerly(self, state: Any, batches: list[Any]) -> tuple[list[Any], Any]:
        outputs = []
        for batch in batches:
            # For every batch, because operations on arrays that Python made in a step leave the result on one device.
            state = tuple(map(self._traced.homes, state, self._holds_slots))
            data = self._spread(batch, axis=0)
            if self._placement.deadlocks:  # collecting what was spread over the devices must not wait for later programs
                jax.block_until_ready((state, data))
            self._check_workers(None, state, data, batch)
            output, state = self._traced.step(state, data)
            outputs.append(output)
        return outputs, state

    def _stacked(self, batches: list[Any]) -> Any:
        known = np.asarray if self._placement.world is None else host_copy
        return jax.tree.map(lambda *leaves: np.stack([known(x) for x in leaves]), *batches)

    def _adopted(self, state: Any) -> Any:
        """Return the state, with the chief's values for arrays that only this process has."""
        assert self._placement.world is not None, "one process has everything"
        compare_cut(self._placement.world)
        at = [(p, i) for p, part in enumerate(state) if type(part) is not _Leaves for i, x in enumerate(part) if is_local(x)]
        if not at:
            return state
        named = [(f"{self._traced.state_names[p]} {i}", np.asarray(state[p][i])) for p, i in at]
        parts: list[Any] = [part if type(part) is _Leaves else list(part) for part in state]
        for (p, i), value in zip(at, chiefs_values(named, self._placement), strict=True):
            parts[p][i] = value
        return tuple(parts)

    def _check_workers(self, program: Executable | None, state: Any, data: Any, batch: Any) -> None:
        """Before a program is first used, check that all workers have the same one and begin with the same batch.

        `program` is None if the step runs eagerly.
        """
        world = self._placement.world
        if world is None:
            return
        loop = current_loop()
        if loop is not None and loop.batches_read is not None:
            loop.batches_read.note(batch)
        key = (program is not self.one, str(signature(data)))
        if key in self._agreed:
            return
        self._agreed.add(key)
        local: list[Any] = [np.ascontiguousarray(x) for x in jax.tree.leaves(batch) if is_local(x)]
        if program is not None:
            program.check_workers(program.trace(state, data))
        world.exchange.agree(
            "batch",
            f"shapes {[x.shape for x in local]}, checksum {functools.reduce(lambda crc, x: zlib.crc32(x, crc), local, 0):08x}",
            PROBLEM,
        )

    def _found(self, state: Any, batch: Any) -> StepFound:
        """Return the step in the form that a plan needs."""
        kinds = {
            "trainable_variables": "weights",
            "non_trainable_variables": "untrained weights",
            "optimizer_variables": "optimizer state",
        }

        def inputs(placement: Placement) -> tuple[Any, Any]:
            parts = [
                [
                    _held(path or f"{name} {i}", kinds.get(name, "other state"), x, placement, slots)
                    for i, (path, x) in enumerate(self._traced.with_paths(name, part, slots))
                ]
                for name, part, slots in zip(self._traced.state_names, state, self._holds_slots, strict=True)
            ]
            leaves, tree = jax.tree.flatten(batch)
            held = [Held(f"input {i}", "batch", np.shape(x), x.dtype, "cut") for i, x in enumerate(leaves)]
            return tuple(parts), tree.unflatten(held)

        def make(placement: Placement) -> Executable:
            return StepFunction(dataclasses.replace(self._traced, placement=placement, compiled=True)).one

        return found_step(make, inputs, self._placement)

    def _spread(self, batch: Any, *, axis: int) -> Any:
        """Place a batch on the devices, cut along `axis` as many ways as its rows allow."""
        leaves, tree = jax.tree.flatten(batch)
        leaves = [x if isinstance(x, jax.Array) or type(x) is np.ndarray else np.asarray(x) for x in leaves]
        batch = tree.unflatten(own_if_held(leaves, holders=1))  # the caller may write to them later, when JAX still reads them
        if self._placement.on_one_device:  # a program copies host memory to its device faster than device_put does
            return jax.tree.map(lambda x: jax.device_put(x, self._placement.mirrored) if isinstance(x, jax.Array) else x, batch)
        if self._placement.world is not None:  # all workers have the whole batch, and each places its own part
            put, cut = self._placement.put, self._traced.cut
            return jax.tree.map(lambda x: put(x, cut(np.shape(x)[axis] if np.ndim(x) > axis else 1, axis)), batch)
        return jax.device_put(batch, jax.tree.map(lambda x: self._traced.cut(x.shape[axis] if x.ndim > axis else 1, axis), batch))


def _held(name: str, kind: str, x: Any, placement: Placement, slots: bool) -> Held:
    if placement.slice_axis(x.shape, x.dtype, slot=slots) is None:
        return Held(name, kind, x.shape, x.dtype, "mirrored")
    used = placement.pieces_in_use(placement.model_cut(name, x.shape, x.dtype, slot=slots))
    return Held(name, kind, x.shape, x.dtype, "sliced", placement.pieces(x.shape), used)


def signature(batch: Any) -> Any:
    """Return the structure, shapes and dtypes of a batch."""
    leaves, tree = jax.tree.flatten(batch)
    return tree, [(np.shape(x), getattr(x, "dtype", type(x))) for x in leaves]
