"""How a scheduled function travels to a worker: with its code and everything it closes over, once.

Code goes by value where the worker could not import it (`__main__`, functions in functions), by name elsewhere. Objects of the
cluster (its strategy, variables, iterators) become those of the process that they arrive in. Kinds of objects that cannot be
pickled as they are, or that mean something else elsewhere, have a rule in `rules`.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

from .._function import Function, function
from .._strategy import Strategy
from ..errors import ArgumentTypeError, UnserializableError
from ._site import current_site

# type -> how an object of it is reduced, as by __reduce__. Connected libraries add theirs.
rules: dict[type, Callable[[Any], Any]] = {Function: lambda f: (function, (f.python_function,))}


def dumps(value: Any, what: str) -> bytes:
    """`value` as bytes. Raises UnserializableError, which names the object that cannot travel; `what` is for the message."""
    file = io.BytesIO()
    pickler = _pickler_type()(file, protocol=5)
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

        def reducer_override(self, obj: Any) -> Any:
            if not isinstance(obj, type):
                if isinstance(obj, Strategy):
                    return _strategy_of_site, _check_strategy(obj)
                for kind, rule in rules.items():
                    if isinstance(obj, kind) and (reduced := rule(obj)) is not NotImplemented:
                        return reduced
            self.path.append(f"{type(obj).__name__} {getattr(obj, '__qualname__', '')}".strip())
            return super().reducer_override(obj)

    _types.append(Pickler)
    return Pickler


def _check_strategy(strategy: Strategy) -> tuple[()]:
    if not hasattr(strategy, "place_variable"):
        raise UnserializableError(
            f"A scheduled function uses {strategy!r}: only the ParameterServerStrategy itself exists on the workers. Use that one."
        )
    return ()


def _strategy_of_site() -> Strategy:
    return current_site().strategy
