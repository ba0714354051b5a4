"""One of a model's steps, as it is traced for all devices of a strategy.

A step is compiled in the global view: XLA sees the whole batch, cuts the work along the batch axis and inserts the all-reduces. So
loss, metrics, gradients and batch statistics are those of one device by construction. A batch of b rows on n devices is cut d ways,
where d is the largest divisor of n that divides b, and repeated on the other devices. A last batch that does not divide costs a
compilation, but never exactness.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from ...replicas._placement import Placement
from ...tracing.replicas._batch_split import compute_by_rows
from ..cpu._recurrent import in_global_view
from ..micro_batches._step import MicroBatchStep
from ..state._gathered_weights import gathering


@dataclasses.dataclass(frozen=True, eq=False)  # JAX must trace each anew
class TracedStep:
    """One of a model's step functions, ``step(state, data) -> (outputs, state)``, for the devices of a strategy.

    Args:
        step: The function.
        placement: The devices.
        state_names: The parts of the state.
        compiled: Whether the step is compiled, and not run as it is.
        follows_keras: Whether it is Keras's own training step.
        paths: Returns the paths of the variables of a part of the state.
    """

    step: Callable[..., Any]
    placement: Placement
    state_names: Sequence[str]
    compiled: bool
    follows_keras: bool
    paths: Callable[[str], Sequence[str]]

    @functools.cached_property
    def devices(self) -> Placement:
        """The devices, as the step uses them.

        An eager step is the same on all of them: JAX has no sharding to name what XLA would choose for its single operations.
        """
        given = self.placement
        slices_from = given.slices_from if self.compiled else None
        return dataclasses.replace(given, factored=True, slices_slots=given.slices_slots and self.compiled, slices_from=slices_from)

    @functools.cached_property
    def holds_slots(self) -> list[bool]:
        """Which parts of the state are those of optimizers."""
        return [name == "optimizer_variables" for name in self.state_names]

    @functools.cached_property
    def _cuts(self) -> dict[tuple[int, int], Any]:
        return {}

    def one(self, state: Any, data: Any) -> tuple[Any, Any]:
        """Compute the step."""
        outputs, state = self._on_lists(state, data)
        return self._settled(outputs, axis=0), self._at_home(state)

    def _on_lists(self, state: Any, data: Any) -> tuple[Any, Any]:
        if self.compiled and self.placement.layouts is not None and any(self.holds_slots):
            self.placement.layouts.check_all_matched()
        if isinstance(self.step, MicroBatchStep):  # it gathers slices in each micro-batch
            with in_global_view(self.devices):
                outputs, state = self.step(tuple(map(list, state)), data)
            return outputs, tuple(map(list, state))
        found = self._by_rows(state, data) if self._exchanges_once else None
        if found is not None:
            return found
        later = self._gathers_later
        parts = tuple(map(list, state)) if later else tuple(map(self._gathered, self.state_names, state, self.holds_slots))
        with self.around():
            outputs, state = self.step(parts, data)
        return outputs, tuple(map(list, state))

    @property
    def _gathers_later(self) -> bool:
        """Whether the step's code gathers the weights that it uses."""
        return self.follows_keras and self.devices.slices_from is not None and not self.devices.on_one_device

    @contextmanager
    def around(self) -> Iterator[None]:
        """Enter what surrounds the step's code while it is traced."""
        with in_global_view(self.devices), gathering(self.devices if self._gathers_later else None):
            yield

    @property
    def _exchanges_once(self) -> bool:
        """Whether each of XLA's sums would be an exchange between workers of its own."""
        placement = self.devices
        return placement.world is not None and placement.deadlocks and not (placement.has_model_axis or placement.slices_state)

    def _by_rows(self, state: Any, data: Any) -> tuple[Any, Any] | None:
        """Compute the step so that its sums over rows are made in as few exchanges as possible; None if XLA is to cut it."""
        placement = dataclasses.replace(self.devices, factored=False)
        num_replicas = placement.num_replicas

        def step(state: Any, data: Any) -> tuple[Any, Any]:
            with in_global_view(self.devices):
                outputs, state = self.step(state, data)
            return outputs, tuple(map(list, state))

        def rows_of(x: Any) -> int:
            return 0 if jnp.ndim(x) and x.shape[0] and x.shape[0] % num_replicas == 0 else -1

        given = tuple(map(list, state)), data
        rows = jax.tree.map(lambda _: -1, given[0]), jax.tree.map(rows_of, data)
        return compute_by_rows(step, given, rows, placement.mesh, placement.mesh_axis())

    def many(self, state: Any, data: Any, *, last_only: bool) -> tuple[Any, Any]:
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
        if slots or self.devices.slices_from is None:
            return list(part)
        if not self.devices.has_model_axis:
            return [self.devices.constrain(x) if self.slice_axis(x, slots) is not None else x for x in part]
        return [self._used(path, x) for path, x in self.with_paths(name, part, slots)]

    def with_paths(self, name: str, part: Any, slots: bool) -> Iterable[tuple[str, Any]]:
        """Return the values of a part of the state, each with its variable's path. What else travels with it has none."""
        paths = () if slots else self.paths(name)[: len(part)]
        return itertools.zip_longest(paths, part, fillvalue="")

    def _used(self, path: str, x: Any) -> Any:
        """Return a variable cut over the devices of each replica, as replicas compute with it."""
        if not path or self.devices.on_one_device:
            return self.devices.constrain(x)
        return jax.lax.with_sharding_constraint(x, self.devices.in_use(path, x.shape, x.dtype))

    def _at_home(self, state: Any) -> Any:
        """Constrain the state in a trace to lie where the next step needs it."""
        return tuple(
            [self.devices.constrain(x, slice_axis=self.slice_axis(x, slots)) for x in part]
            for part, slots in zip(state, self.holds_slots, strict=True)
        )

    def slice_axis(self, x: Any, slots: bool) -> int | None:
        """Return the axis along which an array of the state is cut; None if every device has the whole."""
        return self.devices.slice_axis(x.shape, x.dtype, slot=slots)

    def _settled(self, outputs: Any, *, axis: int) -> Any:
        """Cut the outputs evenly or mirror them: JAX has no sharding to name what XLA would choose for other cuts.

        With several workers they are mirrored, since each worker reads them.
        """
        num_replicas = self.devices.num_replicas
        if self.devices.on_one_device:
            return outputs

        def settle(x: Any) -> jax.Array:
            x = jnp.asarray(x)
            even = x.ndim > axis and x.shape[axis] % num_replicas == 0 and self.devices.world is None
            return jax.lax.with_sharding_constraint(x, self.cut(num_replicas if even else 1, axis))

        return jax.tree.map(settle, outputs)

    def homes(self, part: Iterable[Any], slots: bool) -> list[Any]:
        """Return arrays of the state where the step needs them."""
        if not self.devices.on_one_device:
            return [self.home(x, slots) for x in part]
        home = self.devices.mirrored
        return [x if isinstance(x, jax.Array) and x.committed and x.sharding == home else self.home(x, slots) for x in part]

    def home(self, x: Any, slots: bool) -> Any:
        """Return an array of the state where the step needs it."""
        home = self.devices.home(x.shape, slice_axis=self.slice_axis(x, slots))
        if not isinstance(x, jax.Array) or x.sharding != home:
            return self.devices.own(x, home)
        # JAX compiles a program anew for arrays that are on its device only by chance: new weights, and metrics after a reset.
        return x if x.committed else jax.device_put(x, home)

    def cut(self, num_rows: int, axis: int) -> Any:
        """Return how so many rows along `axis` are shared out to the devices."""
        ways = math.gcd(num_rows, self.devices.num_replicas)
        if ways == 1 or not self.compiled:
            return self.devices.mirrored
        if (ways, axis) not in self._cuts:
            self._cuts[ways, axis] = self.devices.cut(ways, axis)
        return self._cuts[ways, axis]
