"""One of a model's steps, compiled for all devices of a strategy.

A step is compiled in the global view: XLA sees the whole batch, cuts the work along the batch axis and inserts the all-reduces. So
loss, metrics, gradients and batch statistics are those of one device by construction. A batch of b rows on n devices is cut d ways,
where d is the largest divisor of n that divides b, and repeated on the other devices. A last batch that does not divide costs a
compilation, but never exactness.
"""

import dataclasses
import functools
import itertools
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...programs.running._executable import Executable, found_step
from ...replicas._collectives import MeshAxis
from ...replicas._placement import Placement, host_copy, is_local
from ...replicas._planning import Held, StepFound
from ...runtime import _in_flight
from ...runtime._own_memory import has_memory_alone, own
from ...tracing.replicas._batch_split import compute_by_rows
from ...variables._chief import chiefs_values
from ...variables._slices import compare_cut
from ..cpu._recurrent import in_global_view
from ..data._array_batches import Several
from ..data._same_batches import PROBLEM, read
from ..micro_batches._step import MicroBatchStep
from ..state._gathered_weights import gathering


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


def _count_references() -> int:
    """Count the references that `_kept` sees to an array that only a batch and the list of its leaves hold."""

    def count(x: Any) -> int:
        return sys.getrefcount(x)

    batch = (np.zeros(1),)
    leaves, _ = jax.tree.flatten(batch)
    return next(count(x) for x in leaves)


_REFERENCES = _count_references()  # to an array that only its batch holds; nothing else can overwrite its memory


class StepFunction:
    """One of a model's step functions, ``step(state, data) -> (outputs, state)``, compiled for the devices of a strategy."""

    def __init__(
        self,
        step: Callable[..., Any],
        placement: Placement,
        state_names: Sequence[str],
        *,
        compiled: bool,
        follows_keras: bool = False,  # whether `step` is Keras's own training step
        paths: Callable[[str], Sequence[str]] = lambda _: (),
    ):
        """Compile `step`. `paths` returns the paths of the variables of a part of the state."""
        self._step = step
        self._follows_keras = follows_keras
        self._paths = paths
        # An eager step is the same on every device: JAX has no sharding to name what XLA would choose for its single operations.
        self._placement = dataclasses.replace(
            placement,
            factored=True,
            slices_slots=placement.slices_slots and compiled,
            slices_from=placement.slices_from if compiled else None,
        )
        self._layouts = placement.layouts if compiled else None
        self._state_names = state_names
        self._holds_slots = [name == "optimizer_variables" for name in state_names]
        self._agreed: set[Any] = set()  # signatures for which the workers have compared their programs
        self._compiled = compiled
        self._cuts: dict[tuple[int, int], Any] = {}
        self.one = self._executable(self._traced_one)
        self._all_of_many = self._executable(functools.partial(self._traced_many, last_only=False))
        self._last_of_many = self._executable(functools.partial(self._traced_many, last_only=True))

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
            part.items if type(part) is _Leaves else [self._home(x, slots) for x in part]
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
            state = tuple([self._home(x, slots) for x in part] for part, slots in zip(state, self._holds_slots, strict=True))
            data = self._spread(batch, axis=0)
            if self._placement.deadlocks:  # collecting what was spread over the devices must not wait for later programs
                jax.block_until_ready((state, data))
            self._check_workers(None, state, data, batch)
            output, state = self._step(state, data)
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
        named = [(f"{self._state_names[p]} {i}", np.asarray(state[p][i])) for p, i in at]
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
        if (own := read.get()) is not None:
            own.note(batch)
        key = (program is not self.one, str(signature(data)))
        if key in self._agreed:
            return
        self._agreed.add(key)
        local: list[Any] = [np.ascontiguousarray(x) for x in jax.tree.leaves(batch) if is_local(x)]
        if program is not None:
            program.check_workers(program.trace(state, data))
        world.agree(
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
                    for i, (path, x) in enumerate(self._with_paths(name, part, slots))
                ]
                for name, part, slots in zip(self._state_names, state, self._holds_slots, strict=True)
            ]
            leaves, tree = jax.tree.flatten(batch)
            held = [Held(f"input {i}", "batch", np.shape(x), x.dtype, "cut") for i, x in enumerate(leaves)]
            return tuple(parts), tree.unflatten(held)

        def make(placement: Placement) -> Executable:
            return StepFunction(
                self._step, placement, self._state_names, compiled=True, follows_keras=self._follows_keras, paths=self._paths
            ).one

        return found_step(make, inputs, self._placement)

    def _traced_one(self, state: Any, data: Any) -> tuple[Any, Any]:
        outputs, state = self._on_lists(state, data)
        return self._settled(outputs, axis=0), self._at_home(state)

    def _on_lists(self, state: Any, data: Any) -> tuple[Any, Any]:
        if self._layouts is not None and any(self._holds_slots):
            self._layouts.check_all_matched()
        if isinstance(self._step, MicroBatchStep):  # it gathers slices in each micro-batch
            with in_global_view(self._placement):
                outputs, state = self._step(tuple(map(list, state)), data)
            return outputs, tuple(map(list, state))
        found = self._by_rows(state, data) if self._exchanges_once else None
        if found is not None:
            return found
        later = self._gathers_later
        parts = tuple(map(list, state)) if later else tuple(map(self._gathered, self._state_names, state, self._holds_slots))
        with self.around():
            outputs, state = self._step(parts, data)
        return outputs, tuple(map(list, state))

    @property
    def _gathers_later(self) -> bool:
        """Whether the step's code gathers the weights that it uses."""
        return self._follows_keras and self._placement.slices_from is not None and not self._placement.on_one_device

    @contextmanager
    def around(self) -> Iterator[None]:
        """Enter what surrounds the step's code while it is traced."""
        with in_global_view(self._placement), gathering(self._placement if self._gathers_later else None):
            yield

    @property
    def _exchanges_once(self) -> bool:
        """Whether each of XLA's sums would be an exchange between workers of its own."""
        placement = self._placement
        return placement.world is not None and placement.deadlocks and not (placement.has_model_axis or placement.slices_state)

    def _by_rows(self, state: Any, data: Any) -> tuple[Any, Any] | None:
        """Compute the step so that its sums over rows are made in as few exchanges as possible; None if XLA is to cut it."""
        placement = dataclasses.replace(self._placement, factored=False)
        num_replicas = placement.num_replicas

        def step(state: Any, data: Any) -> tuple[Any, Any]:
            with in_global_view(self._placement):
                outputs, state = self._step(state, data)
            return outputs, tuple(map(list, state))

        def rows_of(x: Any) -> int:
            return 0 if jnp.ndim(x) and x.shape[0] and x.shape[0] % num_replicas == 0 else -1

        given = tuple(map(list, state)), data
        rows = jax.tree.map(lambda _: -1, given[0]), jax.tree.map(rows_of, data)
        group = MeshAxis(num_replicas, placement.deadlocks, placement.bytes_per_pack)
        return compute_by_rows(step, given, rows, placement.mesh, group)

    def _traced_many(self, state: Any, data: Any, *, last_only: bool) -> tuple[Any, Any]:
        """Trace several steps as one program: a loop on the devices."""

        def body(state: Any, batch: Any) -> tuple[Any, Any]:
            outputs, state = self._on_lists(state, batch)
            return self._at_home(state), outputs

        state, outputs = jax.lax.scan(body, self._at_home(state), data)
        if last_only:
            return self._settled(jax.tree.map(lambda x: x[-1], outputs), axis=0), state
        return self._settled(outputs, axis=1), state

    def _gathered(self, name: str, part: Any, slots: bool) -> list[Any]:
        """Return weights whole, as steps compute with them that are not Keras's own."""
        if slots or self._placement.slices_from is None:
            return list(part)
        if not self._placement.has_model_axis:
            return [self._placement.constrain(x) if self._slice_axis(x, slots) is not None else x for x in part]
        return [self._used(path, x) for path, x in self._with_paths(name, part, slots)]

    def _with_paths(self, name: str, part: Any, slots: bool) -> Iterable[tuple[str, Any]]:
        """Return the values of a part of the state, each with its variable's path. What else travels with it has none."""
        paths = () if slots else self._paths(name)[: len(part)]
        return itertools.zip_longest(paths, part, fillvalue="")

    def _used(self, path: str, x: Any) -> Any:
        """Return a variable cut over the devices of each replica, as replicas compute with it."""
        if not path or self._placement.on_one_device:
            return self._placement.constrain(x)
        return jax.lax.with_sharding_constraint(x, self._placement.in_use(path, x.shape, x.dtype))

    def _at_home(self, state: Any) -> Any:
        """Constrain the state in a trace to lie where the next step needs it."""
        return tuple(
            [self._placement.constrain(x, slice_axis=self._slice_axis(x, slots)) for x in part]
            for part, slots in zip(state, self._holds_slots, strict=True)
        )

    def _slice_axis(self, x: Any, slots: bool) -> int | None:
        return self._placement.slice_axis(x.shape, x.dtype, slot=slots)

    def _settled(self, outputs: Any, *, axis: int) -> Any:
        """Cut the outputs evenly or mirror them: JAX has no sharding to name what XLA would choose for other cuts.

        With several workers they are mirrored, since each worker reads them.
        """
        num_replicas = self._placement.num_replicas
        if self._placement.on_one_device:
            return outputs

        def settle(x: Any) -> jax.Array:
            x = jnp.asarray(x)
            even = x.ndim > axis and x.shape[axis] % num_replicas == 0 and self._placement.world is None
            return jax.lax.with_sharding_constraint(x, self._cut(num_replicas if even else 1, axis))

        return jax.tree.map(settle, outputs)

    def _home_of(self, x: Any, slots: bool) -> Any:
        return self._placement.home(x.shape, slice_axis=self._slice_axis(x, slots))

    def _home(self, x: Any, slots: bool) -> Any:
        home = self._home_of(x, slots)
        if not isinstance(x, jax.Array) or x.sharding != home:
            return self._placement.own(x, home)
        # JAX compiles a program anew for arrays that are on its device only by chance: new weights, and metrics after a reset.
        return x if x.committed else jax.device_put(x, home)

    def _spread(self, batch: Any, *, axis: int) -> Any:
        """Place a batch on the devices, cut along `axis` as many ways as its rows allow."""
        leaves, tree = jax.tree.flatten(batch)
        batch = tree.unflatten([self._kept(x) for x in leaves])
        if self._placement.on_one_device:  # a program copies host memory to its device faster than device_put does
            return jax.tree.map(lambda x: jax.device_put(x, self._placement.mirrored) if isinstance(x, jax.Array) else x, batch)
        if self._placement.world is not None:  # all workers have the whole batch, and each places its own part
            put, cut = self._placement.put, self._cut
            return jax.tree.map(lambda x: put(x, cut(np.shape(x)[axis] if np.ndim(x) > axis else 1, axis)), batch)
        return jax.device_put(batch, jax.tree.map(lambda x: self._cut(x.shape[axis] if x.ndim > axis else 1, axis), batch))

    def _kept(self, x: Any) -> Any:
        """Copy an array whose memory the caller may overwrite later, when JAX still reads it."""
        if isinstance(x, jax.Array) or (type(x) is np.ndarray and sys.getrefcount(x) <= _REFERENCES and has_memory_alone(x)):
            return x
        return own(np.asarray(x))

    def _cut(self, num_rows: int, axis: int) -> Any:
        ways = math.gcd(num_rows, self._placement.num_replicas)
        if ways == 1 or not self._compiled:
            return self._placement.mirrored
        if (ways, axis) not in self._cuts:
            self._cuts[ways, axis] = self._placement.cut(ways, axis)
        return self._cuts[ways, axis]


def _held(name: str, kind: str, x: Any, placement: Placement, slots: bool) -> Held:
    if placement.slice_axis(x.shape, x.dtype, slot=slots) is None:
        return Held(name, kind, x.shape, x.dtype, "mirrored")
    used = placement.pieces_in_use(placement.model_cut(name, x.shape, x.dtype, slot=slots))
    return Held(name, kind, x.shape, x.dtype, "sliced", placement.pieces(x.shape), used)


def signature(batch: Any) -> Any:
    """Return the structure, shapes and dtypes of a batch."""
    leaves, tree = jax.tree.flatten(batch)
    return tree, [(np.shape(x), getattr(x, "dtype", type(x))) for x in leaves]
