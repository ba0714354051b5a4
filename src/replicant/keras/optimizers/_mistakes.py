"""Errors for what programs do with optimizers that Keras 3 does not notice, or explains without a name."""

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ArgumentError, ArgumentTypeError, MissingNameError

_SHOWN = 3


def make(original: Callable[..., Any], optimizer: Any, learning_rate: Any, *args: Any, **options: Any) -> None:
    """Make an optimizer.

    Raises:
        ArgumentTypeError: If the learning rate is a text, which Keras shows like a number.
    """
    if isinstance(learning_rate, str):
        raise ArgumentTypeError(
            f"{type(optimizer).__name__}: learning_rate must be a number, a schedule or a function; got the text "
            f"{learning_rate!r}. Write float(learning_rate)."
        )
    original(optimizer, learning_rate, *args, **options)


def stateless_apply(
    original: Callable[..., Any], optimizer: Any, optimizer_variables: Any, grads: Any, trainable_variables: Sequence[Any]
) -> Any:
    """Apply an optimizer to values.

    Raises:
        ArgumentError: If there are more or fewer values than the optimizer was built for, as after a layer was frozen.
    """
    known = optimizer._trainable_variables if optimizer.built else trainable_variables
    if len(trainable_variables) != len(known):
        frozen = [variable.path for variable in known if not variable.trainable]
        names = ", ".join(map(repr, frozen[:_SHOWN])) + (f" and {len(frozen) - _SHOWN} more" if len(frozen) > _SHOWN else "")
        since = f" (trainable=False: {names})" if frozen else ""
        raise ArgumentError(
            f"{type(optimizer).__name__} was built for {len(known)} trainable variables, and there are {len(trainable_variables)} "
            f"now{since}. After you change `trainable` of a layer, call model.compile(...) with a new optimizer; in a loop of your "
            "own, make a new optimizer."
        )
    return original(optimizer, optimizer_variables, grads, trainable_variables)


def set_attribute(original: Callable[..., Any], optimizer: Any, name: str, value: Any) -> None:
    """Set an attribute of an optimizer.

    Raises:
        MissingNameError: If it is Keras 2's `lr` of an optimizer of Keras's own, which would keep its learning rate.
    """
    if name == "lr" and type(optimizer).__module__.startswith("keras."):
        raise _no_lr(optimizer, f" = {value!r}")
    original(optimizer, name, value)


def missing_attribute(optimizer: Any, name: str) -> Any:
    """Raise the error for an attribute that an optimizer does not have (``__getattr__``)."""
    if name == "lr":
        raise _no_lr(optimizer, "")
    return object.__getattribute__(optimizer, name)  # which raises Python's own error, or that of a property


def _no_lr(optimizer: Any, rest: str) -> MissingNameError:
    return MissingNameError(f"{type(optimizer).__name__} has no `lr` in Keras 3. Write optimizer.learning_rate{rest}.")
