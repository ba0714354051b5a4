"""The error of code that uses the value of an array in Python while it is traced, when no array has a value yet.

JAX's own error names its caller's function, which is one of Replicant or Keras. This one names the user's line.
"""

import linecache
import types
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.core import Tracer

from ...errors import TracedValueError

_LIBRARIES = {"contextlib", "functools", "jax", "jaxlib", "keras", "numpy", "replicant"}
_PRINT = "To print it, write jax.debug.print('{}', x)."
_RETURN = "To use it in Python, return it from the function, and convert the result."
_NUMPY = f"`.numpy()` needs the values. {_PRINT} {_RETURN}"
_ADVICE: dict[type[Exception], str] = {  # the first that fits
    jax.errors.TracerBoolConversionError: (
        "`if`, `while`, `and`, `or`, `not` and `assert` need a Python bool. To choose between values, write "
        "keras.ops.where(condition, a, b) or jnp.where; to choose between computations, keras.ops.cond or jax.lax.cond; to loop, "
        "keras.ops.while_loop or jax.lax.while_loop."
    ),
    jax.errors.TracerIntegerConversionError: (
        "`range`, and an index into a list, need a Python int. To loop, write keras.ops.fori_loop or jax.lax.fori_loop; to pick a "
        "row of an array, keras.ops.take(array, index, axis=0). Or pass a Python int to the function."
    ),
    jax.errors.TracerArrayConversionError: (f"NumPy needs the values. Compute with keras.ops or jax.numpy instead. {_PRINT}"),
    jax.errors.ConcretizationTypeError: f"`float`, `int` and `.item()` need the value. {_PRINT} {_RETURN}",
    jax.errors.NonConcreteBooleanIndexError: (
        "`array[mask]` has as many rows as the mask has True values, but the shapes in a compiled program are fixed. Compute with "
        "keras.ops.where(mask, array, 0), or choose the rows before the step, in `dataset.map` or `dataset.filter`."
    ),
}


@contextmanager
def naming_the_line(what: str) -> Iterator[None]:
    """Raise TracedValueError where JAX says that a value does not exist yet. `what` names in the message what was traced."""
    try:
        yield
    except Exception as error:
        cause = _cause(error)
        advice = None if cause is None else _advice(cause)
        if cause is None or advice is None:
            raise
        raise TracedValueError(
            f"{what} uses the value of an array in Python while it is compiled, when no array has a value yet{_where(cause)}. "
            f"{advice}"
        ) from cause


def _cause(error: Exception) -> Exception | None:
    """Return JAX's error.

    Keras tries to make a new one of it, with another message. JAX's class fails then, and Keras may make an error of that.
    """
    if _advice(error) is not None:
        return error
    context, frames = error.__context__, _frames(error)
    failed_inside = bool(frames) and _library(frames[-1][0]) in ("jax", "keras")
    return _cause(context) if failed_inside and isinstance(context, Exception) else None


def _advice(error: Exception) -> str | None:
    """Return what to write instead; None if the error is about something else."""
    if isinstance(error, AttributeError):
        return _NUMPY if error.name == "numpy" and isinstance(error.obj, Tracer) else None
    return next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), None)


def _where(error: Exception) -> str:
    """Return the innermost line of the user's code; nothing if there is none."""
    theirs = [(frame, line) for frame, line in _frames(error) if _library(frame) not in _LIBRARIES]
    if not theirs:
        return ""
    frame, line = theirs[-1]
    code = frame.f_code
    text = linecache.getline(code.co_filename, line, frame.f_globals).strip()
    return f": {code.co_qualname}, {code.co_filename}:{line}" + (f", `{text}`" if text else "")


def _frames(error: BaseException) -> list[tuple[types.FrameType, int]]:
    found, step = [], error.__traceback__
    while step is not None:
        found.append((step.tb_frame, step.tb_lineno))
        step = step.tb_next
    return found


def _library(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
