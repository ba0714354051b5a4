"""Keeps a mesh that the user has set (``jax.set_mesh``) apart from what Replicant computes on its own mesh.

JAX refuses to compute with arrays on other devices than those of the mesh that is set, and with arrays on another mesh if one of
the two has Explicit axes. A strategy has its own devices. So its code runs without a mesh, and what it returns in cross-replica
context is moved to the mesh that is set, where the user can compute with it.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import jax
import jax.extend.core as jex
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from ._distributed_values import is_distributed

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_current_mesh = jax.sharding.get_abstract_mesh
_NO_MESH = AbstractMesh((), ())
_EAGER = jex.get_opaque_trace_state(convention="flax")


def in_a_trace() -> bool:
    """Whether JAX is tracing something now, on this thread."""
    return jex.get_opaque_trace_state(convention="flax") != _EAGER


def mesh_is_set() -> bool:
    """Whether there is a mesh on this thread. Every step asks this, so it must be quick."""
    return not _current_mesh().empty


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Compute at once in the ``with`` block, even while JAX traces, and outside of the replicas that it traces.

    ``jax.ensure_compile_time_eval`` alone makes arrays whose type is on the mesh of a ``jax.shard_map`` that is being traced. Such
    an array must not get out: JAX keeps the compiled form of a copy, say, by shape and device. Once such an array was copied, the
    copy of any other of its shape is of that type, too, and a plain Keras model fails with "Mesh for all inputs should be equal".

    >>> def of_row(x):
    ...     with at_once():
    ...         made.append(jax.numpy.zeros(3))
    ...     return x
    >>> made, mesh = [], jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    >>> step = jax.shard_map(of_row, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"))
    >>> _ = jax.jit(step)(jax.numpy.zeros(2))
    >>> jax.typeof(made[0]).sharding.mesh.empty
    True
    """
    with jax.ensure_compile_time_eval():
        if AxisType.Manual not in _current_mesh().axis_types:
            yield
            return
        with jax.sharding.use_abstract_mesh(_NO_MESH):
            yield


class without_mesh:  # noqa: N801  (a context manager, used like a function)
    """Leaves the mesh that is set on this thread, if `wanted`. In a trace nothing happens: its mesh is the one of the trace.

    The default strategy computes where JAX does, so there it is not wanted.

    >>> with jax.set_mesh(jax.make_mesh((2,), ("x",))):
    ...     with without_mesh():
    ...         print(jax.sharding.get_abstract_mesh().empty)
    ...     print(jax.sharding.get_abstract_mesh().axis_names)
    True
    ('x',)
    """

    __slots__ = ("_left", "_wanted")

    def __init__(self, wanted: bool = True):
        self._wanted = wanted

    def __enter__(self) -> None:
        nothing = not self._wanted or not mesh_is_set() or in_a_trace()
        self._left: Any = None if nothing else jax.set_mesh(None)

    def __exit__(self, *exc_info: object) -> None:
        if self._left is not None:
            self._left.__exit__(*exc_info)


def on_own_mesh(fn: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
    """Decorate a function to run in ``without_mesh``, and to hand its result over."""

    @functools.wraps(fn)
    def wrapped(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        with without_mesh():
            result = fn(*args, **kwargs)
        return handed_over(result)

    return wrapped


def handed_over(values: _Result) -> _Result:
    """Return `values` with their arrays on the mesh that is set, if there is one. Distributed values stay as they are."""
    if not mesh_is_set() or in_a_trace():
        return values
    mesh = jax.sharding.get_mesh()  # empty if only an abstract mesh is set
    if mesh.empty or not mesh.local_devices:
        return values
    home = NamedSharding(mesh, PartitionSpec())

    def moved(x: Any) -> Any:
        if not isinstance(x, jax.Array) or not x.committed or _mesh_of(x) == mesh:
            return x
        if home.is_fully_addressable and x.is_fully_addressable:
            return jax.device_put(x, home)
        return _copied(x, home) if x.is_fully_replicated and not x.is_fully_addressable else x

    return jax.tree.map(moved, values, is_leaf=is_distributed)


def _copied(array: jax.Array, home: NamedSharding) -> jax.Array:
    """Copy an array of several processes, which is whole in each of them, to this process's devices of a mesh."""
    local = array.addressable_data(0)
    copies = [jax.device_put(local, device) for device in home.addressable_devices]
    return jax.make_array_from_single_device_arrays(array.shape, home, copies)


def beside(value: Any, other: Any = None) -> Any:
    """Return `value` so that it may be computed with together with `other`, or with anything if that is None.

    An array on other devices, or with Explicit axes, is copied through the host. One that is cut over several processes stays as it
    is, because this process has only a part of it.
    """
    if not isinstance(value, jax.Array) or isinstance(value, Tracer):
        return value
    if not value.is_fully_addressable and not (value.is_fully_replicated and value.sharding.addressable_devices):
        return value
    bound = value.committed and isinstance(other, jax.Array) and other.committed
    elsewhere = bound and other.sharding.device_set != value.sharding.device_set
    if not (elsewhere or has_explicit_axes(value)):
        return value
    return np.asarray(value if value.is_fully_addressable else value.addressable_data(0))


def has_explicit_axes(array: jax.Array) -> bool:
    """Whether the type of an array says how it is cut, so that JAX computes with it on its own mesh only."""
    mesh = _mesh_of(array)
    return mesh is not None and AxisType.Explicit in mesh.axis_types


def _mesh_of(array: jax.Array) -> Mesh | None:
    sharding = array.sharding
    return sharding.mesh if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh) else None
