"""FullyShardedStrategy: one replica on each device of all workers, each of which keeps a slice of every large variable."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from ..cluster.resolvers._resolver import ClusterResolver
from ..errors import ArgumentError, ArgumentTypeError
from ..replicas._device_memory import check_limit, memory_of_device
from ..replicas._model_axis import Layouts, check_divides
from ..replicas._placement import Placement
from ..variables._known import is_variable, ref_of
from ._communication import CommunicationOptions
from ._devices import have_threads, resolve_devices
from ._multi_worker import detected, meet
from ._strategy import Strategy

_MIN_SIZE = 1024


class FullyShardedStrategy(Strategy):
    """One replica on each device of each worker, in lockstep, with variables cut into one slice per device.

    A device keeps 1/n of each large variable and of its optimizer state. A replica gathers a variable when it reads it, and again
    for the backward pass. An optimizer sums the gradients of each slice on the device that keeps it, and updates it there. Code and
    numbers are those of ``MirroredStrategy``.

    In a process that was started as one of several workers, it takes the devices of all of them, as ``MultiWorkerMirroredStrategy``
    does. Make it first, right after the imports. All workers read a variable together, as they save a checkpoint together.

    With ``model_parallel_size=k``, k devices compute one replica together: each has a part of every large weight, and of what is
    computed with it. There are n/k replicas then, so a global batch is cut n/k ways.

    Semantics: MirroredStrategy, MultiWorkerMirroredStrategy, ``keras.distribution.ModelParallel`` (the model axis), and ZeRO stage
    3 (Rajbhandari et al. 2020).

    Args:
        devices: Names ("cpu:0", "GPU:1") or ``jax.Device`` objects of this process, which then trains alone; None or an empty list
            for all devices of all workers.
        min_size: The number of elements from which a variable of floats is cut. It is cut along its longest axis that the number of
            devices divides. Smaller variables, and those without such an axis, are mirrored.
        model_parallel_size: The number of devices of each replica, which must divide that of all devices, and of each worker.
        layout_map: How weights are cut over the devices of a replica while it computes: a ``keras.distribution.LayoutMap``, or a
            dict from patterns of variable paths to tuples with ``"model"`` for the axis to cut, such as ``(None, "model")``. A
            variable without a rule is whole. None cuts weights by their shapes. Read once, here.
        strict: As for ``MirroredStrategy``.
        cluster_resolver: As for ``MultiWorkerMirroredStrategy``.

    Raises:
        DeviceError: If a device does not exist or is given twice, or the devices are of several types.
        ArgumentError: If `min_size` is negative, `model_parallel_size` is less than 1 or does not divide the devices, a rule of
            `layout_map` names another axis, or if both `devices` and `cluster_resolver` are given. The first training step raises
            it if no variable matches a rule, or if a rule does not fit the shape of one.
        ArgumentTypeError: If `min_size` or `model_parallel_size` is not an int, `layout_map` no mapping, or `cluster_resolver` no
            ClusterResolver.
        ClusterError: If the workers cannot form one group. All workers raise it, as the other errors of
            ``MultiWorkerMirroredStrategy``.

    >>> import replicant
    >>> strategy = replicant.FullyShardedStrategy(["cpu:0"])
    >>> strategy.num_replicas_in_sync
    1
    """

    def __init__(
        self,
        devices: Sequence[Any] | None = None,
        *,
        min_size: int = _MIN_SIZE,
        model_parallel_size: int = 1,
        layout_map: Mapping[str, Any] | None = None,
        strict: bool | None = None,
        cluster_resolver: ClusterResolver | None = None,
    ):
        if isinstance(min_size, bool) or not isinstance(min_size, int):
            raise ArgumentTypeError(
                f"FullyShardedStrategy: min_size must be an int, a number of elements; got {min_size!r} of type "
                f"{type(min_size).__name__}."
            )
        if min_size < 0:
            raise ArgumentError(
                f"FullyShardedStrategy: min_size must not be negative; got {min_size}. 0 cuts every one that can be cut."
            )
        layouts = _checked(model_parallel_size, layout_map)
        if cluster_resolver is not None and not isinstance(cluster_resolver, ClusterResolver):
            raise ArgumentTypeError(
                f"FullyShardedStrategy: cluster_resolver must be a replicant.cluster.ClusterResolver; got {cluster_resolver!r}."
            )
        given = devices is not None and len(devices) > 0
        if given and cluster_resolver is not None:
            raise ArgumentError(
                f"FullyShardedStrategy: devices={devices!r} are those of one process, and cluster_resolver tells of several. Leave "
                "out devices to use all devices of all workers."
            )
        have_threads()
        self._resolver: ClusterResolver | None = None
        if given:
            found = resolve_devices(devices)
            check_divides("FullyShardedStrategy", model_parallel_size, len(found))
            placement = Placement(found, slices_from=min_size, model_parallel_size=model_parallel_size, layouts=layouts)
        else:
            self._resolver = cluster_resolver or detected("FullyShardedStrategy")
            membership = self._resolver.membership()
            placement = meet(
                "FullyShardedStrategy",
                membership,
                CommunicationOptions(),
                slices_from=min_size,
                model_parallel_size=model_parallel_size,
                layouts=layouts,
            )
        super().__init__(placement, strict=strict)

    @property
    def cluster_resolver(self) -> ClusterResolver | None:
        """The resolver that told the strategy about its cluster; None if it was made for named devices."""
        return self._resolver

    def __repr__(self) -> str:
        placement, text = self.placement, super().__repr__()
        if placement.model_parallel_size == 1:
            return text
        rules = "" if placement.layouts is None else f", layout_map of {len(placement.layouts.rules)} rules"
        return f"{text[:-1]}, model_parallel_size={placement.model_parallel_size}{rules})"

    def explain(self, variables: Any, *, limit: float | None = None) -> "SlicePlan":
        """Say how variables lie on the devices, and which are larger than a device's memory when they are read.

        Args:
            variables: A model, an optimizer or another object with an attribute ``variables``, or a list of variables.
            limit: The bytes of each device's memory. By default it is what the devices say.

        Returns:
            A SlicePlan, which prints as a table.

        Raises:
            ArgumentError: If `limit` is not positive.
            ArgumentTypeError: If there are no variables in it, or `limit` is not a number.
        """
        limit = check_limit(limit, "explain")
        found = getattr(variables, "variables", variables)
        if not isinstance(found, Iterable) or not all(map(is_variable, found := list(found))):
            raise ArgumentTypeError(
                f"explain takes a model or a list of variables; got {variables!r} of type {type(variables).__name__}."
            )
        refs = [ref_of(variable) for variable in found]
        if limit is None and self.placement.devices:
            limit = memory_of_device(self.placement.devices[0])
        plan = SlicePlan(tuple(map(self._rule, refs)), len(self.placement.devices) or 1, self.num_replicas_in_sync, limit)
        if self.placement.layouts is not None:
            self.placement.layouts.check_all_matched()
        return plan

    def _rule(self, ref: Any) -> "SliceRule":
        placement, shape = self.placement, tuple(ref.shape)
        axis, cut = ref.slice_axis(placement), ref.model_cut(placement)
        n, reason = placement.num_replicas, ""
        assert placement.slices_from is not None, "it is given to the placement above"
        if len(placement.devices) == 1:
            reason = "there is one device"
        elif ref.on_read:
            reason = "each replica has its own copy"
        elif not jnp.issubdtype(ref.dtype, jnp.inexact):
            reason = f"{ref.dtype} is not a float dtype"
        elif math.prod(shape) < placement.slices_from:
            reason = f"fewer than {placement.slices_from} elements"
        elif axis is None:
            reason = f"{n if n > 1 else placement.model_parallel_size} divides no axis"
        num_bytes = math.prod(shape) * ref.dtype.itemsize
        held = num_bytes if axis is None else num_bytes // placement.pieces(shape)
        used = num_bytes // placement.pieces_in_use(cut)
        return SliceRule(ref.name, shape, axis, reason, num_bytes, held, *(cut or (None, None)), bytes_in_use=used)


def _checked(model_parallel_size: Any, layout_map: Any) -> Layouts | None:
    """Return the rules of a layout map. Raise if it or the size of the model axis is no good."""
    if isinstance(model_parallel_size, bool) or not isinstance(model_parallel_size, int):
        raise ArgumentTypeError(
            "FullyShardedStrategy: model_parallel_size must be an int, the number of devices of each replica; got "
            f"{model_parallel_size!r} of type {type(model_parallel_size).__name__}."
        )
    if model_parallel_size < 1:
        raise ArgumentError(
            f"FullyShardedStrategy: model_parallel_size must be at least 1; got {model_parallel_size}. 1 is one device per replica."
        )
    if layout_map is None:
        return None
    layouts = Layouts.of(layout_map)
    if model_parallel_size == 1:
        raise ArgumentError(
            "FullyShardedStrategy: layout_map says how weights are cut over the devices of a replica, but with "
            "model_parallel_size=1 it has one. Leave out layout_map, or pass model_parallel_size=2 or more."
        )
    return layouts


@dataclasses.dataclass(frozen=True)
class SliceRule:
    """How one variable lies on the devices.

    Args:
        name: The name of the variable.
        shape: Its shape.
        axis: The axis along which it is cut over the replicas; None if each has the whole of it.
        reason: Why it is not cut.
        num_bytes: The bytes of the whole variable.
        bytes_per_device: The bytes on each device.
        model_axis: The axis along which it is cut at rest over the devices of each replica; None if each has all of its slice.
        model_axis_in_use: The axis along which a replica's devices cut it while they compute; None if each has the whole of it.
        bytes_in_use: The bytes on each device while a replica function computes with the variable.
    """

    name: str
    shape: tuple[int, ...]
    axis: int | None
    reason: str
    num_bytes: int
    bytes_per_device: int
    model_axis: int | None = None
    model_axis_in_use: int | None = None
    bytes_in_use: int = 0


@dataclasses.dataclass(frozen=True)
class SlicePlan:
    """How variables lie on the devices.

    Args:
        rules: One for each variable.
        num_devices: The number of devices.
        num_replicas: The number of replicas; 0 for as many as devices.
        limit: The bytes of a device's memory; None if nobody knows them.
    """

    rules: tuple[SliceRule, ...]
    num_devices: int
    num_replicas: int = 0
    limit: int | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes of all variables."""
        return sum(rule.num_bytes for rule in self.rules)

    @property
    def bytes_per_device(self) -> int:
        """The bytes of all variables on each device."""
        return sum(rule.bytes_per_device for rule in self.rules)

    @property
    def too_large(self) -> tuple[SliceRule, ...]:
        """The variables that a device cannot hold when a replica function reads them."""
        return tuple(rule for rule in self.rules if self.limit is not None and rule.bytes_in_use > self.limit)

    def __str__(self) -> str:
        num_replicas = self.num_replicas or self.num_devices
        size = self.num_devices // num_replicas
        rows = [(rule.name, str(list(rule.shape)), _how(rule, num_replicas, size) + self._warning(rule)) for rule in self.rules]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
        lines = [f"{name:{widths[0]}}  {shape:{widths[1]}}  {how}" for name, shape, how in rows]
        what = f"{self.num_devices} devices" + (f", {size} for each of {num_replicas} replicas" if size > 1 else "")
        lines.append(f"{self.num_bytes:,} bytes in all, {self.bytes_per_device:,} on each of {what}")
        return "\n".join(lines)

    def _warning(self, rule: SliceRule) -> str:
        if rule not in self.too_large:
            return ""
        return f"; TOO LARGE to be read: {rule.bytes_in_use:,} bytes on each device, which holds {self.limit:,}"


def _how(rule: SliceRule, num_replicas: int, size: int) -> str:
    used = "" if size == 1 else f"; in use {_part(rule.shape, {rule.model_axis_in_use: size})}"
    if rule.axis is None:
        return f"mirrored: {rule.reason}{used if rule.model_axis_in_use is not None else ''}"
    if size == 1:
        return f"cut along axis {rule.axis}: {_part(rule.shape, {rule.axis: num_replicas})} on each device"
    cuts = {rule.axis: num_replicas}
    if rule.model_axis is not None:
        cuts[rule.model_axis] = cuts.get(rule.model_axis, 1) * size
    over = [f"axis {rule.axis} over the replicas"] if num_replicas > 1 else []
    over += [f"axis {rule.model_axis} over the model"] if rule.model_axis is not None else []
    return f"cut along {' and '.join(over)}: {_part(rule.shape, cuts)} on each device{used}"


def _part(shape: tuple[int, ...], ways: Mapping[Any, int]) -> list[int]:
    """Return the shape of a part of an array that is cut so many ways along each axis."""
    return [length // ways.get(axis, 1) for axis, length in enumerate(shape)]
