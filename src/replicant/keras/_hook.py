"""How a method of Keras is wrapped: in order, in one place, and only after a check that Keras has it as expected."""

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable
from typing import Any

from ._internals import moved


class Slot(enum.Enum):
    """The place of a wrapper whose module is loaded later. A row may have several slots. The table does not import such modules."""

    RESTORE = "a restore that waits for layers to be built"
    SERVERS = "parameter servers"


Wrapper = Callable[..., Any]  # wrapper(inner, self, ...), where `inner` is what it wraps


@dataclasses.dataclass
class Hook:
    """A method of Keras that Replicant relies on.

    Attributes:
        owner: The class of the method, or the module of a function.
        name: The name of the method.
        expected: The parameters that it must begin with, in this order; None for a property.
        wrappers: What wraps it, from the innermost out. If empty, Replicant only calls the method.
        original: The method as Keras has it, once it is wrapped.
        filled: What is in the slots.
        whole: The method with its present wrappers, if a slot may change them.
    """

    owner: Any
    name: str
    expected: tuple[str, ...] | None
    wrappers: tuple[Wrapper | Slot, ...] = ()
    original: Any = None
    filled: dict[Slot, Wrapper] = dataclasses.field(default_factory=dict)
    whole: Any = None

    def check(self) -> None:
        """Raise BackendError if the installed Keras does not have the method as expected."""
        what, found = f"{self.owner.__name__}.{self.name}", vars(self.owner).get(self.name)
        if self.expected is None:
            if not isinstance(found, property):
                raise moved(f"{what} is not a property but {found!r}")
        elif not callable(found):
            raise moved(f"{what} is gone")
        elif (parameters := tuple(inspect.signature(found).parameters))[: len(self.expected)] != self.expected:
            raise moved(f"{what} takes ({', '.join(parameters)}) instead of ({', '.join(self.expected)})")

    def install(self) -> None:
        """Wrap the method."""
        if not self.wrappers:
            return
        original = self.original = vars(self.owner)[self.name]
        if isinstance(original, property):
            assert original.fget is not None, "a property that is read"
            new: Any = property(self._around(original.fget), original.fset, original.fdel, original.__doc__)
        elif any(isinstance(wrapper, Slot) for wrapper in self.wrappers):
            self.whole = self._around(self.original)
            new = self._through()
        else:
            new = self._around(self.original)
        setattr(self.owner, self.name, new)

    def fill(self, slot: Slot, wrapper: Wrapper) -> None:
        """Put a wrapper into its slot, even if the method has other wrappers by now."""
        if self.filled.get(slot) is not wrapper:
            self.filled[slot] = wrapper
            self.whole = self._around(self.original)

    def _around(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        for each in self.wrappers:
            wrapper = self.filled.get(each) if isinstance(each, Slot) else each
            if wrapper is not None:
                inner = _wrapped(inner, wrapper)
        return inner

    def _through(self) -> Callable[..., Any]:
        @functools.wraps(self.original)
        def method(*args: Any, **kwargs: Any) -> Any:
            return self.whole(*args, **kwargs)

        return method


@dataclasses.dataclass
class Added:
    """A method or property that TensorFlow programs use, or Replicant needs, and Keras 3 does not have.

    Attributes:
        owner: The class that gets it, unless it has one of this name.
        name: Its name.
        method: The method or property.
    """

    owner: type
    name: str
    method: Callable[..., Any] | property

    def install(self) -> None:
        """Add the method. Classes that have one of their own keep it."""
        if not hasattr(self.owner, self.name):
            setattr(self.owner, self.name, self.method)


def _wrapped(inner: Callable[..., Any], wrapper: Wrapper) -> Callable[..., Any]:
    @functools.wraps(inner)
    def method(*args: Any, **kwargs: Any) -> Any:
        return wrapper(inner, *args, **kwargs)

    return method
