"""The values of a checkpoint: how they are copied to the host, split into arrays and JSON, joined again and compared.

A value is a NumPy array, a Python number, an array of JAX's typed random keys, the state of an object, or the copies of a variable
that has one per replica, together with their aggregate.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...cluster.jax import _bootstrap
from ...errors import ArgumentTypeError, DamagedCheckpointError
from ...replicas._copies import VariableAggregation
from ...replicas._own_device import on_device_of
from ...replicas._own_mesh import at_once
from ...replicas._placement import Placement, host_copy
from ...replicas._values import Mirrored, PerReplica
from ...runtime import _in_flight
from ...variables._ref import Ref
from ...variables._slices import digest_of_names, in_pieces, note_cut, reading
from ..format._boxes import Box, box_of
from ..format._files import is_storable
from ..format._lazy_array import Stored
from ..format._parts import in_slices
from ._states import Stateful, StoredState

COPIES = "/.copies"  # suffix of the names of arrays that hold copies
NUMBER_TYPES = (bool, int, float)  # exactly these types; a subclass (np.float64, IntEnum) would come back as another type
_PARSE: dict[str, Any] = {"bool": lambda text: text == "True", "int": int, "float": float}


class Saves:
    """What a ``Checkpoint`` is: it saves values, and is none."""


def check_leaf(key: str, leaf: Any) -> None:
    """Check that `leaf` can be part of a checkpoint.

    Raises:
        ArgumentTypeError: If it cannot.
    """
    if isinstance(leaf, PerReplica):
        raise ArgumentTypeError(
            f"Checkpoint: {key!r} is a PerReplica value, which has no meaning on another number of replicas. "
            "Save strategy.reduce(...) or strategy.gather(...) of it."
        )
    if isinstance(leaf, np.ndarray | np.generic) and is_storable(leaf.dtype):
        return
    if isinstance(leaf, jax.Array):
        return
    if isinstance(leaf, Mirrored) or type(leaf) in NUMBER_TYPES:
        return
    if isinstance(leaf, Saves):
        raise ArgumentTypeError(
            f"Checkpoint: {key!r} is a Checkpoint, and a Checkpoint holds no other one. Pass a dict of what that one holds: "
            'Checkpoint(inner={"model": model, "optimizer": optimizer}).'
        )
    dtype = f" of dtype {leaf.dtype}" if isinstance(leaf, np.ndarray | np.generic) else ""
    raise ArgumentTypeError(
        f"Checkpoint: {key!r} is a {type(leaf).__name__}{dtype}, which cannot be saved. Pass Keras models, optimizers, metrics or "
        "seed generators, variables, or dicts, lists and tuples of numeric arrays and of Python numbers."
    )


@dataclasses.dataclass(frozen=True)
class Copies:
    """The value of a variable with one copy per replica.

    aggregate: its value, for any number of replicas. stack: the copies, for the same number of replicas. aggregation: how the
    copies are aggregated.
    """

    aggregate: np.ndarray
    stack: np.ndarray
    aggregation: str


def start_fetching(items: Iterable[Any]) -> None:
    """Start all copies from the devices to the host at once; ``fetch`` then waits for them one after the other."""
    for item in items:
        with _in_flight.between_starts():
            array = item.get_raw()[0] if isinstance(item, Ref) else bare(item)
            if isinstance(array, jax.Array) and array.is_fully_addressable and not jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
                array.copy_to_host_async()


def fetch(item: Any) -> Any:
    """Return the value of a variable's Ref or of a leaf, which nothing changes any more.

    On a CPU this is the memory of the JAX array itself. JAX arrays do not change, and XLA does not overwrite a buffer that is in
    use, donated or not.
    """
    if isinstance(item, Ref):
        with _in_flight.between_starts():  # the value and the copies are of one moment
            raw, stacked = item.held()
            value = item.read_eagerly()
        return Copies(np.asarray(value), host_copy(raw), item.aggregation.name) if stacked else np.asarray(value)
    if isinstance(item, Stateful):
        return item.get()
    if isinstance(item, Mirrored):
        return fetch(bare(item))
    if isinstance(item, jax.Array):
        return item if jnp.issubdtype(item.dtype, jax.dtypes.prng_key) else host_copy(item)
    return np.array(item, copy=True) if isinstance(item, np.ndarray | np.generic) else item


def sliced(items: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Return the variables that lie in slices, as they are stored. Each slice is written where it is.

    With several workers, these are the variables that lie on all of them. The chief has the others, and writes them.
    """
    found, lies = {}, in_slices if _bootstrap.world() is None else in_pieces
    for key, item in items.items():
        if isinstance(item, Ref):
            raw, stacked = item.held()  # the next step does not overwrite it
            if not stacked and lies(raw):
                found[key] = raw
    return found


def fetched(items: Mapping[str, Any], in_parts: Iterable[str]) -> dict[str, Any]:
    """Return the values of Refs and leaves, without those that lie in slices (`in_parts`).

    If some lie in pieces on several workers, all call this, and only the chief keeps values.
    """
    rest = {key: item for key, item in items.items() if key not in in_parts}
    pieces = [key for key, item in items.items() if isinstance(item, Ref) and in_pieces(item.get_raw()[0])]
    if not pieces:
        return {key: fetch(item) for key, item in rest.items()}
    values = {}
    with reading(f"a checkpoint of {digest_of_names(pieces)}"):
        for key, item in rest.items():
            value = fetch(item)
            if _bootstrap.is_chief():
                values[key] = value
    return values


def encode(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the part of the values that JSON holds, and the arrays."""
    meta: dict[str, dict[str, Any]] = {"numbers": {}, "random_keys": {}, "states": {}, "copies": {}}
    arrays = {}
    for key, value in values.items():
        if isinstance(value, np.ndarray):
            arrays[key] = value
        elif isinstance(value, Copies):
            arrays[key], arrays[key + COPIES] = value.aggregate, value.stack
            meta["copies"][key] = value.aggregation
        elif isinstance(value, jax.Array):
            arrays[key] = np.array(jax.random.key_data(value), copy=True)
            meta["random_keys"][key] = str(jax.random.key_impl(value))
        elif isinstance(value, StoredState):
            meta["states"][key] = value.value
        else:
            meta["numbers"][key] = {"type": type(value).__name__, "value": repr(value)}  # exact, and valid JSON even for nan
    return meta, arrays


def is_number_text(kind: Any, text: Any) -> bool:
    """Return whether `text` is what ``encode`` makes of a Python number of this type."""
    if not isinstance(kind, str) or kind not in _PARSE or not isinstance(text, str):
        return False
    try:
        return repr(_PARSE[kind](text)) == text
    except ValueError:
        return False


def decode(meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Do the inverse of `encode`, for metadata that ``check_meta`` has checked.

    Raises:
        DamagedCheckpointError: If an array that should be a random key is not one.
    """
    values: dict[str, Any] = dict(arrays)
    for key, aggregation in meta["copies"].items():
        values[key] = Copies(arrays[key], values.pop(key + COPIES), aggregation)
    for key, impl in meta["random_keys"].items():
        try:
            values[key] = jax.random.wrap_key_data(jnp.array(arrays[key], copy=True), impl=impl)
        except (TypeError, ValueError) as error:
            raise DamagedCheckpointError(
                f"{key!r} is damaged: {describe(arrays[key])} is not a random key of the kind {impl!r} ({error})."
            ) from error
    for key, number in meta["numbers"].items():
        values[key] = _PARSE[number["type"]](number["value"])
    for key, state in meta["states"].items():
        values[key] = StoredState(state)
    return values


def describe(item: Any) -> str:
    """Return dtype and shape of a Ref, a leaf or a value, for messages."""
    if isinstance(item, Stateful | StoredState):
        return "the state of an object"
    if type(item) in NUMBER_TYPES:
        return f"a Python {type(item).__name__}"
    item = bare(item)
    return f"{item.dtype}{list(item.shape)}"


def bare(item: Any) -> Any:
    """The part of a value that has a shape and a dtype."""
    if isinstance(item, Mirrored):
        return jnp.asarray(item.value)  # JAX represents some constants as numbers with a dtype
    return item.aggregate if isinstance(item, Copies) else item


def fits(item: Any, value: Any) -> bool:
    """Return whether the stored `value` can replace that of a Ref or leaf. In containers, a Python number fits any scalar."""
    item, value = bare(item), bare(value)
    if isinstance(item, Stateful) or isinstance(value, StoredState):
        return isinstance(item, Stateful) and isinstance(value, StoredState)
    if type(value) in NUMBER_TYPES or type(item) in NUMBER_TYPES:
        return not isinstance(item, Ref) and np.shape(item) == np.shape(value)
    return item.dtype == value.dtype and tuple(item.shape) == tuple(value.shape)


def assign(ref: Ref, value: np.ndarray | Copies) -> None:
    """Assign a stored value to a variable. The next step places it, and splits an aggregate for another number of replicas."""
    stacked = isinstance(value, Copies) and ref.on_read and ref.aggregation is VariableAggregation[value.aggregation]
    array = value.stack if isinstance(value, Copies) and stacked else bare(value)
    before = None if ref.strategy is not None else ref.get_raw()[0]
    with at_once(), on_device_of(ref.strategy, before):  # a variable may be created in the middle of a trace
        ref.set_raw(jnp.array(array, copy=True), stacked=stacked)
    ref.expose()
    with at_once():
        ref.keep_slices()


def boxes_of(ref: Ref, placement: Placement) -> list[Box]:
    """Return the boxes of a variable that lie on devices of this process."""
    home = ref.home(placement)
    assert home is not None, "a variable in slices has devices"
    return sorted({box_of(index, ref.shape) for index in home.addressable_devices_indices_map(tuple(ref.shape)).values()})


def assign_slices(ref: Ref, value: Stored, placement: Placement) -> None:
    """Assign a stored value to a variable in slices. This process reads its slices alone."""
    home, shape = ref.home(placement), tuple(ref.shape)
    assert home is not None, "a variable in slices has devices"
    slices = value.read_boxes(boxes_of(ref, placement))
    with at_once():
        array = jax.make_array_from_callback(shape, home, lambda index: slices[box_of(index, shape)])
    ref.store(array, placement)


def note_slices(ref: Ref, source: str) -> None:
    """Note what was assigned to a variable in slices, once all workers have done so. `source` is the same on all of them."""
    placement = ref.cut_on()
    if placement is not None and placement.world is not None:
        note_cut(ref.name, source)


def replaced(leaf: Any, value: Any) -> Any:
    """Return the stored `value` like what it replaces: a NumPy array, a JAX array in the same place, or a Python number."""
    value = bare(value)
    if type(value) in NUMBER_TYPES:
        if isinstance(leaf, np.ndarray | np.generic | jax.Array | Mirrored):
            return replaced(leaf, np.asarray(value, dtype=_dtype_of(leaf)))
        return value
    if isinstance(leaf, np.ndarray):
        return np.array(value, copy=True)
    if isinstance(leaf, np.generic):
        return value[()]
    with on_device_of(None, leaf):
        fresh = jnp.array(value, copy=True)
    return jax.device_put(fresh, leaf.sharding) if isinstance(leaf, jax.Array) and leaf.committed else fresh


def _dtype_of(leaf: Any) -> Any:
    return leaf.value.dtype if isinstance(leaf, Mirrored) else leaf.dtype
