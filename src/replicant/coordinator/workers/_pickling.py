"""How a scheduled function travels to a worker: with its code and everything it closes over, once.

Code goes by value where the worker could not import it (`__main__`, functions in functions), by name elsewhere. Objects of the
cluster (its strategy, variables, iterators) become those of the process that they arrive in. Kinds of objects that cannot be
pickled as they are, or that mean something else elsewhere, have a rule in `rules`.
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

# type -> how an object of it is reduced, as by __reduce__. Connected libraries add theirs.
rules: dict[type, Callable[[Any], Any]] = {Function: lambda f: (function, (f.python_function,))}


class Packed(NamedTuple):
    """Bytes, and the parcels that have to arrive before they are unpacked."""

    data: bytes
    parcels: tuple["Parcel", ...]


class Parcel:
    """What travels to each worker once and is named by its number from then on.

    Args:
        make: called by a worker when it first needs the value.
    """

    _numbers = itertools.count()

    def __init__(self, make: Callable[[], Any]):
        self.number = next(self._numbers)
        self._make = make
        self._packed: Packed | None = None

    def __reduce__(self) -> Any:
        return _parcel_of_site, (self.number,)

    def packed(self) -> Packed:
        """`make`, to be sent. Raises UnserializableError if it cannot be."""
        if self._packed is None:
            self._packed = pack(self._make, "The function of a per-worker dataset or value")
        return self._packed


def pack(value: Any, what: str) -> Packed:
    """`value` as bytes, and what it names. Raises UnserializableError as `dumps` does."""
    packed = pack_plain(value)
    if packed is not None:
        return packed
    parcels: dict[int, Parcel] = {}
    return Packed(dumps(value, what, parcels), tuple(parcels.values()))


def pack_plain(value: Any) -> Packed | None:
    """`value` as bytes if it pickles as it is, which is quick to find out and quick to do; else None."""
    parcels: dict[int, Parcel] = {}
    return Packed(pickle.dumps(value, protocol=5), tuple(parcels.values())) if _is_plain(value, parcels) else None


def dumps(value: Any, what: str, parcels: dict[int, Parcel] | None = None) -> bytes:
    """`value` as bytes; the parcels that it names are put into `parcels`.

    Raises UnserializableError, which names the object that cannot travel; `what` is for the message.
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
            f"{what} cannot travel to a worker: {path} cannot be pickled ({type(error).__name__}: {error}). Make such an object "
            "inside of the scheduled function, or in a function given to create_per_worker_dataset."
        ) from error
    return file.getvalue()


_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})


def _is_plain(value: Any, parcels: dict[int, Parcel]) -> bool:
    """Whether `value` pickles as it is: tuples, lists and dicts of numbers, text, NumPy arrays and parcels, which are noted."""
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
    """The inverse of `dumps`, at the site of this thread."""
    return pickle.loads(data)  # noqa: S301 - from a process that this program started


_types: list[type] = []


def _pickler_type() -> type:
    """The pickler; cloudpickle is imported on use."""
    if _types:
        return _types[0]
    try:
        import cloudpickle
    except ImportError as error:
        raise UnserializableError(
            "ParameterServerStrategy sends functions to its workers with cloudpickle, which is not installed: pip install "
            "cloudpickle."
        ) from error

    class Pickler(cloudpickle.Pickler):
        """Pickles functions by value, and what `rules` knows as they say."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.path: list[str] = []
            self.parcels: dict[int, Parcel] | None = None

        def reducer_override(self, obj: Any) -> Any:
            if not isinstance(obj, type):
                if isinstance(obj, Parcel):
                    return self.name(obj)
                if isinstance(obj, Strategy):
                    return _strategy_of_site, _check_strategy(obj)
                for kind, rule in rules.items():
                    if isinstance(obj, kind) and (reduced := rule(obj)) is not NotImplemented:
                        return reduced
            self.path.append(f"{type(obj).__name__} {getattr(obj, '__qualname__', '')}".strip())
            return super().reducer_override(obj)

        def name(self, parcel: Parcel) -> Any:
            """The parcel's number in the place of the parcel."""
            if self.parcels is None:
                raise UnserializableError(
                    f"A {type(parcel).__name__} cannot be part of an optimizer: only scheduled functions and their arguments "
                    "know it."
                )
            self.parcels[parcel.number] = parcel
            return _parcel_of_site, (parcel.number,)

    _types.append(Pickler)
    return Pickler


def _check_strategy(strategy: Strategy) -> tuple[()]:
    if not isinstance(strategy, ServerStrategy):
        raise UnserializableError(
            f"A scheduled function uses {strategy!r}: only the ParameterServerStrategy itself exists on the workers. Use that one."
        )
    return ()


def _parcel_of_site(number: int) -> Any:
    """The value of a parcel, made when it is first named."""
    site = current_site()
    if number not in site.resources:
        site.resources[number] = loads(site.parcels[number])()
        del site.parcels[number]
    return site.resources[number]


def _strategy_of_site() -> Strategy:
    return current_site().strategy
