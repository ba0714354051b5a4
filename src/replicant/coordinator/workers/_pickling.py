"""How a function travels to a worker: once, with its code and everything it closes over.

Code travels by value where the worker could not import it (`__main__`, nested functions), and by name elsewhere. Objects of the
cluster (its strategy, variables, iterators) become those of the receiving process. Types that cannot be pickled as they are, or
that mean something else in another process, have a rule in `rules`.
"""

import io
import itertools
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..._function import Function, function
from ...errors import ArgumentTypeError, UnserializableError
from ...strategies._strategy import Strategy
from .._server_strategy import ServerStrategy
from ..servers._site import current_site

# type -> a function that reduces its objects, as __reduce__ does. Connected libraries add theirs.
rules: dict[type, Callable[[Any], Any]] = {Function: lambda f: (function, (f.python_function,))}


class Packed(NamedTuple):
    """Pickled data, and the parcels that must arrive before it is unpickled."""

    data: bytes
    parcels: tuple["Parcel", ...]


class Parcel:
    """A value that each worker makes once. The function that makes it travels once; then its number stands for it.

    Args:
        make: a worker calls it when it first needs the value.
    """

    _numbers = itertools.count()

    def __init__(self, make: Callable[[], Any]):
        self.number = next(self._numbers)
        self._make = make
        self._packed: Packed | None = None

    def __reduce__(self) -> Any:
        return _parcel_of_site, (self.number,)

    def packed(self) -> Packed:
        """Pack `make`. Raises UnserializableError if it cannot be sent."""
        if self._packed is None:
            self._packed = pack(self._make, "The function of a per-worker dataset or value")
        return self._packed


def pack(value: Any, what: str) -> Packed:
    """Pack `value`, with the parcels that it refers to. Raises UnserializableError, as `dumps` does."""
    packed = pack_plain(value)
    if packed is not None:
        return packed
    parcels: dict[int, Parcel] = {}
    return Packed(dumps(value, what, parcels), tuple(parcels.values()))


def pack_plain(value: Any) -> Packed | None:
    """Pack `value` the fast way, if it is made of plain objects; otherwise return None."""
    parcels: dict[int, Parcel] = {}
    return Packed(pickle.dumps(value, protocol=5), tuple(parcels.values())) if _is_plain(value, parcels) else None


def dumps(value: Any, what: str, parcels: dict[int, Parcel] | None = None) -> bytes:
    """Pickle `value`.

    Args:
        value: any object.
        what: the value's name in messages.
        parcels: receives the parcels that `value` refers to. None: it must not refer to any.

    Raises:
        UnserializableError: names the object that cannot be sent.
    """
    file = io.BytesIO()
    pickler = _pickler_type()(file, protocol=5)
    pickler.parcels = parcels
    try:
        pickler.dump(value)
    except (UnserializableError, ArgumentTypeError):
        raise
    except Exception as error:
        path = " in ".join(pickler.path[-3:]) or repr(value)
        raise UnserializableError(
            f"{what} cannot be sent to a worker: {path} cannot be pickled ({type(error).__name__}: {error}). Make such an object "
            "inside the scheduled function, or in a function that you pass to create_per_worker_resource."
        ) from error
    return file.getvalue()


_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})


def _is_plain(value: Any, parcels: dict[int, Parcel]) -> bool:
    """Whether `value` consists of tuples, lists and dicts of numbers, text, NumPy arrays and parcels. Collects its parcels."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is tuple or kind is list:
        return all(_is_plain(x, parcels) for x in value)
    if kind is dict:
        return all(_is_plain(x, parcels) for x in (*value, *value.values()))
    if isinstance(value, Parcel):
        parcels[value.number] = value
        return True
    return (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.isbuiltin == 1 and not value.dtype.hasobject


def loads(data: bytes) -> Any:
    """Unpickle what `dumps` returned, at the site of this thread."""
    return pickle.loads(data)  # noqa: S301 - from a process that this program started


_types: list[type] = []


class _ClusterObjects:
    """The part of the pickler that knows parcels, strategies and `rules`. A mixin for cloudpickle's pickler.

    Attributes:
        path: the objects that were pickled, for messages.
        parcels: receives the parcels among them. None: there must not be any.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.path: list[str] = []
        self.parcels: dict[int, Parcel] | None = None

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, type):
            if isinstance(obj, Parcel):
                return self._number(obj)
            if isinstance(obj, Strategy):
                return _strategy_of_site, _check_strategy(obj)
            for kind, rule in rules.items():
                if isinstance(obj, kind) and (reduced := rule(obj)) is not NotImplemented:
                    return reduced
        self.path.append(f"{type(obj).__name__} {getattr(obj, '__qualname__', '')}".strip())
        return super().reducer_override(obj)  # type: ignore[misc]  # cloudpickle's

    def _number(self, parcel: Parcel) -> Any:
        """Pickle the parcel's number in its place."""
        if self.parcels is None:
            raise UnserializableError(
                f"A {type(parcel).__name__} cannot be part of an optimizer: only scheduled functions and their arguments may "
                "refer to it. Pass it as an argument to schedule."
            )
        self.parcels[parcel.number] = parcel
        return _parcel_of_site, (parcel.number,)


def _pickler_type() -> type:
    """The pickler, which pickles functions by value. Imports cloudpickle on first use."""
    if _types:
        return _types[0]
    try:
        import cloudpickle
    except ImportError as error:
        raise UnserializableError(
            "ParameterServerStrategy sends functions to its workers with cloudpickle, which is not installed: pip install "
            "cloudpickle."
        ) from error

    class Pickler(_ClusterObjects, cloudpickle.Pickler):
        """Pickles whatever a closure refers to."""

    _types.append(Pickler)
    return Pickler


def _check_strategy(strategy: Strategy) -> tuple[()]:
    if not isinstance(strategy, ServerStrategy):
        raise UnserializableError(
            f"A scheduled function uses {strategy!r}, but only the ParameterServerStrategy itself exists on the workers. Use it."
        )
    return ()


def _parcel_of_site(number: int) -> Any:
    """This worker's value of a parcel, which is made on first use."""
    site = current_site()
    if number not in site.resources:
        site.resources[number] = loads(site.parcels[number])()
        del site.parcels[number]
    return site.resources[number]


def _strategy_of_site() -> Strategy:
    return current_site().strategy
