"""The devices on which the replicas compute, and how mirrored and per-replica arrays lie on them."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from ..cluster.exchange._world import World
from ..runtime import _in_flight
from ._collectives import ALL, AXIS, SMALL, MeshAxis
from ._model_axis import MODEL, Cuts, Layouts, ModelCut, check_divides, cuts_at_rest, spec_of
from ._planning import Planning

_MOST_LISTED = 8
Device: TypeAlias = Any  # a jax.Device, a name that JAX defines at run time and type checkers refuse


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices of a strategy's replicas.

    Args:
        devices: One device per replica, or `model_parallel_size` devices, one replica after the other. Without devices, there is
            one replica wherever JAX puts it (the default strategy).
        fused: Whether all replicas compute on the first device, as one vectorized program (``tracing/replicas/_fused.py``).
        slices_slots: Whether optimizer state is cut into one slice per replica where its shape allows it (ZeRO stage 1).
        slices_from: The number of elements from which all variables, and so their optimizer state, are cut into one slice per
            replica where their shape allows it (ZeRO stage 3); None mirrors them.
        model_parallel_size: The number of devices that compute one replica together. Its weights are cut over them.
        layouts: The rules that say how; None to derive it from the shapes.
        world: The workers, if devices of several processes take part. The devices are then in the order of the workers, with
            equally many from each.
        bytes_per_pack: The largest piece, in bytes, of gradients that are sent as one flat vector; 0 sends it in one piece.
        factored: Whether the mesh has an axis for each prime factor of the number of replicas, so that it has every cut of a batch.
        planning: The plan that is being made, if any. Then nothing is computed.
        platform: The platform that programs are lowered for, if the devices only stand in for others: "cuda". Such programs can be
            read, but not computed.
    """

    devices: tuple[Device, ...] = ()
    fused: bool = False
    slices_slots: bool = False
    slices_from: int | None = None
    model_parallel_size: int = 1
    layouts: Layouts | None = None
    world: World | None = None
    bytes_per_pack: int = 0
    factored: bool = False
    planning: Planning | None = dataclasses.field(default=None, repr=False)
    platform: str | None = None

    @cached_property
    def num_replicas(self) -> int:
        """The number of replicas that compute in lockstep."""
        return max(1, len(self.devices) // self.model_parallel_size)

    @cached_property
    def has_model_axis(self) -> bool:
        """Whether several devices compute one replica together."""
        return self.model_parallel_size > 1 and not self.on_one_device

    @cached_property
    def listing(self) -> str:
        """The devices, or the first few of many, as messages show them."""
        shown = [str(device) for device in self.devices[:_MOST_LISTED]]
        more = len(self.devices) - len(shown)
        return f"[{', '.join(shown)}{f', and {more} more' if more else ''}]"

    @cached_property
    def local_ids(self) -> tuple[int, ...]:
        """The numbers of the replicas that compute in this process."""
        if self.world is None:
            return tuple(range(self.num_replicas))
        return tuple(i for i, device in enumerate(self.first_devices) if device.process_index == self.world.process_id)

    @property
    def first_devices(self) -> tuple[Device, ...]:
        """The first device of each replica, which is the only one unless there is a model axis."""
        return self.devices[:: self.model_parallel_size]

    @cached_property
    def first_local_device(self) -> Device | None:
        """The first device that belongs to this process; None if there is none, or JAX decides."""
        if self.world is None:
            return self.devices[0] if self.devices else None
        return next((device for device in self.devices if device.process_index == self.world.process_id), None)

    @cached_property
    def on_cpu(self) -> bool:
        """Whether the replicas compute on (virtual) CPU devices."""
        platform = self.platform or (self.devices[0].platform if self.devices else jax.default_backend())
        return platform == "cpu"

    @cached_property
    def on_one_device(self) -> bool:
        """Whether one device computes everything."""
        return len(self.devices) < 2 or self.fused

    @cached_property
    def deadlocks(self) -> bool:
        """Whether programs wait for each other on threads of one pool, where too many at once block each other."""
        return self.on_cpu and not self.on_one_device

    def mesh_axis(self) -> MeshAxis:
        """Return the group of equal replicas, each on devices of its own."""
        rest = self.model_axis_at_rest if self.has_model_axis else None
        bucket = 0 if not self.deadlocks else SMALL if self.world is None else ALL
        return MeshAxis(self.num_replicas, bucket, self.bytes_per_pack, rest, scatter=not self.deadlocks)

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of all replicas, which has one axis for them unless it is factored, and then the model axis, if there is one."""
        sizes = (prime_factors(self.num_replicas) if self.factored else (self.num_replicas,)) or (1,)
        names = [AXIS] if len(sizes) < 2 else [f"{AXIS}_{i}" for i in range(len(sizes))]
        if self.has_model_axis:
            sizes, names = (*sizes, self.model_parallel_size), [*names, MODEL]
        return Mesh(np.array(self.devices).reshape(sizes), names)  # make_mesh would make Explicit axes

    @cached_property
    def replica_axes(self) -> tuple[str, ...]:
        """The names of the axes of the replicas in the mesh."""
        return tuple(name for name in self.mesh.axis_names if name != MODEL)

    @cached_property
    def mirrored(self) -> Sharding | None:
        """The sharding of an array that is the same on all replicas; None leaves it where it is."""
        if not self.devices:
            return None
        if self.on_one_device:
            return SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, PartitionSpec())

    @cached_property
    def stacked(self) -> Sharding | None:
        """The sharding of an array of shape (replicas, ...), with row i on the device of replica i."""
        if self.on_one_device:
            return self.mirrored
        return NamedSharding(self.mesh, _along(self.replica_axes, 0))

    def planned(self, planning: Planning) -> "Placement":
        """Return the placement that replaces this one while a plan is made, with the plan's devices and the same options."""
        check_divides("plan", self.model_parallel_size, len(planning.devices))
        return Placement(planning.devices, fused=len(planning.devices) > 1, planning=planning, **self.cuts)

    @property
    def cuts(self) -> dict[str, Any]:
        """The options that say how variables are cut, which a plan's devices get as well."""
        names = ("slices_slots", "slices_from", "model_parallel_size", "layouts")
        return {name: getattr(self, name) for name in names}

    @cached_property
    def slices_state(self) -> bool:
        """Whether optimizer state is cut into slices."""
        return self.slices_slots or self.slices_from is not None

    def slice_axis(self, shape: tuple[int, ...], dtype: Any, *, slot: bool) -> int | None:
        """Return the axis along which a variable of this shape, or its optimizer state, is cut into slices; None if it is mirrored.

        Variables of floats are cut along their longest axis that the number of replicas divides, and their state in the same way.
        """
        if self.on_one_device:
            return None
        if self.has_model_axis:
            cuts = self._cuts(shape, dtype)
            return None if cuts is None else cuts.replica
        axes = [axis for axis, size in enumerate(shape) if size > 0 and size % self.num_replicas == 0]
        if self.slices_from is not None:
            if not jnp.issubdtype(dtype, jnp.inexact):  # the state of random numbers must be whole
                return None
            return max(axes, key=lambda axis: shape[axis], default=None) if math.prod(shape) >= self.slices_from else None
        return next(iter(axes), None) if slot and self.slices_slots else None

    def _cuts(self, shape: tuple[int, ...], dtype: Any) -> Cuts | None:
        if self.slices_from is None or math.prod(shape) < self.slices_from or not jnp.issubdtype(dtype, jnp.inexact):
            return None
        return cuts_at_rest(tuple(shape), self.num_replicas, self.model_parallel_size)

    def model_axis_at_rest(self, shape: tuple[int, ...]) -> int | None:
        """Return the axis along which a variable that is cut over the replicas is also cut over the devices of each."""
        cuts = cuts_at_rest(tuple(shape), self.num_replicas, self.model_parallel_size) if self.has_model_axis else None
        return None if cuts is None else cuts.model

    def model_cut(self, name: str, shape: tuple[int, ...], dtype: Any, *, slot: bool = False) -> ModelCut | None:
        """Return how a variable is cut over the devices of each replica; None if there is no model axis.

        Raises:
            ArgumentError: If a rule of the layout map does not fit it.
        """
        if not self.has_model_axis:
            return None
        cuts = self._cuts(shape, dtype)
        rest = None if cuts is None else cuts.model
        if self.layouts is None or slot:
            return ModelCut(rest, rest if len(shape) > 1 else None)  # a vector is small, and its values are needed everywhere
        return ModelCut(rest, self.layouts.axis_of(name, tuple(shape), self.model_parallel_size))

    def in_use(self, name: str, shape: tuple[int, ...], dtype: Any) -> Sharding | None:
        """Return the sharding of a variable while replicas compute with it: on each replica, or over its devices."""
        cut = self.model_cut(name, shape, dtype)
        return self.mirrored if cut is None else NamedSharding(self.mesh, spec_of(cut.use))

    def note_variable(self, name: str) -> None:
        """Note that there is a variable of this name, which a rule of the layout map may match."""
        if self.layouts is not None:
            self.layouts.note(name)

    def pieces(self, shape: tuple[int, ...]) -> int:
        """Return the number of devices that keep different parts of a variable of this shape that is sliced."""
        return self.num_replicas * (1 if self.model_axis_at_rest(shape) is None else self.model_parallel_size)

    def pieces_in_use(self, cut: ModelCut | None) -> int:
        """Return the number of devices that share a variable while a replica computes with it."""
        return 1 if cut is None or cut.use is None else self.model_parallel_size

    def as_used(self, array: jax.Array, cut: ModelCut | None) -> jax.Array:
        """Let XLA cut a variable in a traced program of all replicas over the devices of each as a replica uses it."""
        if cut is None or cut.rest == cut.use:
            return array
        return jax.lax.with_sharding_constraint(array, NamedSharding(self.mesh, spec_of(cut.use)))

    def sliced(self, axis: int, shape: tuple[int, ...]) -> Sharding:
        """Return the sharding of an array of this shape of which each replica holds a slice along `axis`."""
        model = self.model_axis_at_rest(shape)
        if model is None:
            return NamedSharding(self.mesh, _along(self.replica_axes, axis))
        if self.num_replicas == 1:  # as JAX writes it for what a program returns: otherwise it would compile each program twice
            return NamedSharding(self.mesh, spec_of(model))
        names: list[Any] = [None] * (max(axis, model) + 1)
        names[axis] = self.replica_axes
        names[model] = (*(names[model] or ()), MODEL)
        return NamedSharding(self.mesh, PartitionSpec(*names))

    def cut(self, ways: int, axis: int) -> Sharding | None:
        """Return the sharding of an array that is cut into `ways` parts along `axis`, and repeated on the other devices.

        `ways` must divide the number of replicas, and the placement must be factored. With shardings of another mesh, a program
        could not use ``jax.pure_callback`` or ``custom_partitioning``.
        """
        if self.on_one_device or ways == 1:
            return self.mirrored
        names, left = [], ways
        for name in self.replica_axes:
            size = self.mesh.shape[name]
            if left % size == 0:
                names.append(name)
                left //= size
        assert left == 1, "the prime factors of the parts are among those of the replicas"
        return NamedSharding(self.mesh, _along(names, axis))

    def own(self, array: Any, sharding: Sharding | None) -> jax.Array:
        """Return a copy of `array` with this sharding that shares memory with nothing, so that it may be donated."""
        if sharding is None:
            return jax.numpy.array(array, copy=True)
        if self.world is not None:
            if not is_local(array):
                return jax.numpy.array(array if array.sharding == sharding else jax.device_put(array, sharding), copy=True)
            return self.put(np.array(array, copy=True), sharding)
        # device_put may alias its source, even NumPy memory, whatever may_alias says. So copy first.
        fresh = jax.numpy.array(array, copy=True) if isinstance(array, jax.Array) else np.array(array, copy=True)
        return jax.device_put(fresh, sharding)

    def put(self, array: Any, sharding: Sharding | None) -> jax.Array:
        """Put host memory that nobody writes to any more on the devices. Each worker puts its part, without an exchange."""
        if self.world is None or not is_local(array):
            return jax.device_put(array, sharding)
        assert sharding is not None, "several workers have several devices"
        host = np.asarray(array)

        def part(index: Any) -> np.ndarray:
            here = host[index]
            return here if here.size == host.size else np.array(here, copy=True)  # a view would keep the whole in memory

        return jax.make_array_from_callback(host.shape, sharding, part)

    def stack_local(self, rows: Sequence[np.ndarray]) -> jax.Array:
        """Return the stack of all replicas' rows. `rows` are those of this worker, in order, and all have one shape and dtype."""
        home, shape, first = self.stacked, (self.num_replicas, *rows[0].shape), self.local_ids[0]
        assert home is not None, "several workers have several devices"

        def row(index: Any) -> np.ndarray:
            return rows[(index[0].start or 0) - first][None]

        return jax.make_array_from_callback(shape, home, row)

    def home(self, shape: tuple[int, ...], *, stacked: bool = False, slice_axis: int | None = None) -> Sharding | None:
        """Return the sharding of an array of this shape that is stacked, or sliced along an axis, or else mirrored."""
        return self.stacked if stacked else self.mirrored if slice_axis is None else self.sliced(slice_axis, shape)

    def constrain(self, array: jax.Array, *, stacked: bool = False, slice_axis: int | None = None) -> jax.Array:
        """Make an array in a traced program lie stacked, or sliced along an axis, or else mirrored."""
        if self.on_one_device:
            return array
        return jax.lax.with_sharding_constraint(array, self.home(array.shape, stacked=stacked, slice_axis=slice_axis))


def _along(names: Sequence[str], axis: int) -> PartitionSpec:
    return PartitionSpec(*[None] * axis, names[0] if len(names) == 1 else tuple(names))


def prime_factors(number: int) -> tuple[int, ...]:
    """Return the prime factors of a positive number, in ascending order.

    >>> prime_factors(12)
    (2, 2, 3)
    """
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return tuple(factors)


def is_local(array: Any) -> bool:
    """Whether this process has all of an array. Other workers may then have other values."""
    return not isinstance(array, jax.Array) or array.is_fully_addressable


def on_all(program: Callable[..., Any], arrays: Any, *static: Any) -> Any:
    """Return ``program(arrays, *static)``. If the arrays span workers, all workers must call this, and all get the result."""
    wide = next((x for x in jax.tree.leaves(arrays) if not is_local(x)), None)
    if wide is None:
        return program(arrays, *static)
    return _in_flight.call(_everywhere(program, wide.sharding.mesh, static), arrays, bounded=True)[1]


@functools.lru_cache(maxsize=256)
def _everywhere(program: Callable[..., Any], mesh: Mesh, static: tuple[Any, ...]) -> Callable[[Any], Any]:
    return jax.jit(with_token(lambda x: program(x, *static)), out_shardings=NamedSharding(mesh, PartitionSpec()))


def with_token(program: Callable[[Any], Any]) -> Callable[[Any], tuple[jax.Array, Any]]:
    """Return a function to compile that returns, before the result, an array that is ready once the program has ended.

    What waits for the program must not hold its result instead: its owner may donate it, and its memory would stay in use.
    """
    return lambda x: (jnp.zeros((), jnp.int8), program(x))


def host_copy(array: Any) -> np.ndarray:
    """Return the whole array as a NumPy array. If it spans workers, all of them must call this together."""
    return np.asarray(on_all(_itself, array))


def _itself(x: jax.Array) -> jax.Array:
    return x
